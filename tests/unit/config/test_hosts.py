import socket

import pytest

from streaming.config.hosts import Hosts, each_url, may_carry_secret
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


def test_the_last_error_is_raised_if_no_host_answers() -> None:
    def ask(url: str) -> None:
        raise UnavailableError(url)

    with pytest.raises(UnavailableError, match="http://b"):
        Hosts("http://a,b").first_answer(ask)


def test_a_single_host_stays() -> None:
    hosts = Hosts("http://a")
    hosts.failed("http://a")
    assert hosts.in_order == ("http://a",)
    assert len(hosts) == 1


@pytest.mark.parametrize(
    ("url", "may"),
    [
        pytest.param("https://pulsar.example.com", True, id="TLS"),
        pytest.param("pulsar+ssl://pulsar.example.com:6651", True, id="TLS to brokers"),
        pytest.param("http://127.0.0.1:8080", True, id="this machine"),
        pytest.param("http://[::1]:8080", True, id="this machine by IPv6"),
        pytest.param("pulsar://[::ffff:127.0.0.1]:6650", True, id="this machine, mapped"),
        pytest.param("pulsar://localhost:6650", True, id="this machine by name"),
        pytest.param("pulsar://10.0.0.7:6650", False, id="another machine"),
        pytest.param("http://127.evil.example:8080", False, id="starts like a loopback address"),
        pytest.param("http://both.example", False, id="one address of two is another machine's"),
        pytest.param("http://unknown.example", False, id="no address"),
        pytest.param("http:///admin", False, id="no host"),
        pytest.param("/admin", False, id="no URL"),
    ],
)
def test_a_token_goes_over_tls_or_to_this_machine(url: str, may: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "127.evil.example": ["203.0.113.9"],
        "both.example": ["127.0.0.1", "203.0.113.9"],
        "localhost": ["127.0.0.1"],
    }
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str, port: None) -> list[object]:
        if host.endswith(".example") and host not in names:
            raise socket.gaierror
        return [info for address in names.get(host, [host]) for info in resolve(address, port)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    assert may_carry_secret(url) is may
