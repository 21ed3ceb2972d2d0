import pytest

from streaming.config.hosts import Hosts, each_url
from streaming.errors import UnavailableError


@pytest.mark.parametrize(
    ("url", "each"),
    [
        pytest.param("http://a:8080", ["http://a:8080"], id="one"),
        pytest.param("http://a:8080/", ["http://a:8080"], id="a slash at the end"),
        pytest.param("https://a:1,b:2", ["https://a:1", "https://b:2"], id="two"),
        pytest.param("https://a:1, b:2,/x", ["https://a:1/x", "https://b:2/x"], id="with a path and a blank"),
        pytest.param("pulsar+ssl://[::1]:6651,h", ["pulsar+ssl://[::1]:6651", "pulsar+ssl://h"], id="brokers"),
    ],
)
def test_a_url_of_several_hosts_is_one_url_for_each(url: str, each: list[str]) -> None:
    assert list(each_url(url)) == each


def test_a_host_that_did_not_answer_comes_last() -> None:
    hosts = Hosts("http://a,b,c")

    hosts.failed("http://a")
    assert hosts.in_order == ("http://b", "http://c", "http://a")
    hosts.failed("http://a")
    assert hosts.in_order == ("http://b", "http://c", "http://a")
    hosts.failed("http://b")
    assert hosts.in_order == ("http://c", "http://a", "http://b")


def test_each_host_is_asked_until_one_answers_and_what_failed_comes_last() -> None:
    hosts, asked = Hosts("http://a,b,c"), []

    def ask(url: str) -> str:
        asked.append(url)
        if url != "http://b":
            raise UnavailableError(url)
        return "yes"

    assert hosts.first_answer(ask) == hosts.first_answer(ask) == "yes"
    assert asked == ["http://a", "http://b", "http://b"]
    assert hosts.in_order == ("http://b", "http://c", "http://a")


def test_where_none_answers_the_last_one_says_why() -> None:
    def ask(url: str) -> None:
        raise UnavailableError(url)

    with pytest.raises(UnavailableError, match="http://b"):
        Hosts("http://a,b").first_answer(ask)


def test_a_single_host_stays() -> None:
    hosts = Hosts("http://a")
    hosts.failed("http://a")
    assert hosts.in_order == ("http://a",)
    assert len(hosts) == 1
