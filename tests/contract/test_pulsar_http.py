"""What the admin client makes of redirects, faults and answers that no broker of Pulsar 4.0 gives of itself."""

import json
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.adapters.pulsar.admin import AdminBroker, PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.http import PulsarHttp, answering, require_safe_token, topic_path
from streaming.adapters.pulsar.publish import new_client
from streaming.config.hosts import hosts_of
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError, RefusedError, UnavailableError
from tests.contract.http_stub import HttpStub, Told, http_stub
from udfs.records import BrokerView, Presence

STATS = "/admin/v2/persistent/t/ns/x/internalStats"
SCHEMA = "/admin/v2/schemas/t/ns/x/schema"
OWNER = "t/ns/persistent/x"
COMPLETE = {
    "ledgers": [{"ledgerId": 4}, {"ledgerId": 9}],
    "cursors": {"a+b": {"cursorLedger": 7}, "new": {"cursorLedger": -1}},
    "schemaLedgers": [{"ledgerId": 5}],
    "compactedLedger": {"ledgerId": 6},
}


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    with http_stub() as running:
        yield running


def _json(value: object, status: int = 200) -> Told:
    return Told(status, json.dumps(value).encode())


def _view(stub: HttpStub, timeout_seconds: float = 5.0) -> BrokerView:
    broker = AdminBroker(PulsarAdminSettings(stub.url, timeout_seconds=timeout_seconds))
    (view,) = broker.views([OWNER])
    broker.close()
    return view


def _reason(text: str, status: int = 404) -> Told:
    return _json({"reason": text}, status)


def test_internal_stats_become_a_view(stub: HttpStub) -> None:
    stub.tell(STATS, _json(COMPLETE))

    assert _view(stub) == BrokerView(Presence.PRESENT, (4, 9), {"a+b": 7, "new": -1}, compacted_ledger=6)


@pytest.mark.parametrize(
    ("answer", "presence"),
    [
        pytest.param(_reason("Topic persistent://t/ns/x not found"), Presence.GONE, id="topic not found"),
        pytest.param(
            _reason("Partitioned Topic not found: persistent://t/ns/x has zero partitions"),
            Presence.GONE,
            id="no partitions",
        ),
        pytest.param(_reason("Topic partitions were not yet created"), Presence.GONE, id="partition not made"),
        pytest.param(_reason("Namespace not found"), Presence.GONE, id="namespace not found"),
        pytest.param(_reason("Topic persistent://t/ns/y not found"), Presence.UNREADABLE, id="another topic not found"),
        pytest.param(_reason("Topic persistent://t/ns/x not found", 409), Presence.UNREADABLE, id="409 in those words"),
        pytest.param(Told(404, b"<html>Not Found</html>"), Presence.UNREADABLE, id="404 of something else"),
        pytest.param(Told(404), Presence.UNREADABLE, id="404 without a word"),
        pytest.param(_json({"reason": None}, 404), Presence.UNREADABLE, id="404 without a reason"),
        pytest.param(_json([], 404), Presence.UNREADABLE, id="404 with a list"),
        pytest.param(_reason("no", 401), Presence.UNREADABLE, id="not authenticated"),
        pytest.param(_reason("no", 403), Presence.UNREADABLE, id="not allowed"),
        pytest.param(_reason("no", 412), Presence.UNREADABLE, id="name not taken"),
        pytest.param(Told(204), Presence.UNREADABLE, id="no content"),
        pytest.param(Told(200, b"{"), Presence.UNREADABLE, id="half a JSON"),
        pytest.param(_json([]), Presence.UNREADABLE, id="a list"),
        pytest.param(_json({}), Presence.UNREADABLE, id="nothing in it"),
        pytest.param(_json(COMPLETE | {"ledgers": None}), Presence.UNREADABLE, id="null ledgers"),
        pytest.param(_json(COMPLETE | {"ledgers": [{}]}), Presence.UNREADABLE, id="ledger without id"),
        pytest.param(_json(COMPLETE | {"ledgers": [{"ledgerId": "4"}]}), Presence.UNREADABLE, id="id in quotes"),
        pytest.param(_json(COMPLETE | {"ledgers": [{"ledgerId": True}]}), Presence.UNREADABLE, id="id that is a bool"),
        pytest.param(_json(COMPLETE | {"ledgers": []}), Presence.PRESENT, id="no ledgers"),
        pytest.param(_json(COMPLETE | {"cursors": []}), Presence.UNREADABLE, id="cursors in a list"),
        pytest.param(_json(COMPLETE | {"cursors": {"s": {}}}), Presence.UNREADABLE, id="cursor without ledger"),
        pytest.param(_json(COMPLETE | {"cursors": {}}), Presence.PRESENT, id="no cursors"),
        pytest.param(_json(COMPLETE | {"schemaLedgers": None}), Presence.UNREADABLE, id="null schema ledgers"),
        pytest.param(_json(COMPLETE | {"compactedLedger": {}}), Presence.UNREADABLE, id="compacted ledger without id"),
    ],
)
def test_only_known_words_say_gone_and_only_complete_answers_present(
    stub: HttpStub, answer: Told, presence: Presence
) -> None:
    stub.tell(STATS, answer)

    view = _view(stub)

    assert view.presence is presence
    assert bool(view.detail) is (presence is not Presence.PRESENT)


def test_partitions_that_are_being_made_are_worth_another_try(stub: HttpStub) -> None:
    stub.tell(STATS, _reason("Topic partitions were not yet created"))
    admin = PulsarAdmin(PulsarAdminSettings(stub.url))

    with pytest.raises(UnavailableError, match="has not made the topic's partitions yet; try again soon"):
        admin.internal_stats("persistent://t/ns/x")
    admin.close()


@pytest.mark.parametrize(
    ("answer", "presence"),
    [
        pytest.param(_json({"version": 0, "type": "STRING"}), Presence.PRESENT, id="a schema"),
        pytest.param(_reason("Schema not found"), Presence.GONE, id="schema not found"),
        pytest.param(_reason("Namespace not found"), Presence.UNREADABLE, id="another 404"),
        pytest.param(_reason("no", 403), Presence.UNREADABLE, id="not allowed"),
        pytest.param(_json({}), Presence.UNREADABLE, id="an empty answer"),
    ],
)
def test_a_schema_is_gone_only_in_known_words(stub: HttpStub, answer: Told, presence: Presence) -> None:
    stub.tell(SCHEMA, answer)
    broker = AdminBroker(PulsarAdminSettings(stub.url))

    assert [view.presence for view in broker.schema_views(["t/ns/x"])] == [presence]
    broker.close()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_passing_fault_is_asked_again(stub: HttpStub, status: int) -> None:
    stub.tell(STATS, Told(status), Told(status), _json(COMPLETE))

    assert _view(stub).presence is Presence.PRESENT
    assert len(stub.asked) == 3


def test_a_lasting_fault_is_unreadable_after_a_few_tries(stub: HttpStub) -> None:
    stub.tell(STATS, _reason("metadata store away", 500))

    view = _view(stub)

    assert view.presence is Presence.UNREADABLE
    assert "500: metadata store away" in view.detail
    assert len(stub.asked) == 4


def test_a_broker_that_does_not_answer_in_time_is_unreadable(stub: HttpStub) -> None:
    stub.tell(STATS, Told(200, b"{}", after_seconds=30.0))

    view = _view(stub, timeout_seconds=0.2)

    assert view.presence is Presence.UNREADABLE
    assert "does not answer (ReadTimeout" in view.detail


def test_a_connection_that_is_cut_tells_nothing_of_an_entry_and_one_that_is_refused_is_an_outage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def cut() -> None:
            connection, _address = server.accept()
            connection.recv(1 << 16)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            connection.close()

        threading.Thread(target=cut, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with PulsarHttp(PulsarAdminSettings(url)) as http:
            assert http.body("v2/an-entry", most_bytes=9, patience_seconds=5.0) is None
    with PulsarHttp(PulsarAdminSettings(url)) as http, pytest.raises(UnavailableError):
        http.body("v2/an-entry", most_bytes=9, patience_seconds=5.0)


def test_a_redirect_to_another_broker_keeps_token_method_body_and_query(stub: HttpStub, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    with http_stub() as owner:
        path = "/admin/v2/persistent/t/ns/x/messageTTL"
        location = f"{owner.url}{path}?messageTTL=0&authoritative=true"
        stub.tell(path, Told(307, headers=(("Location", location),)))
        owner.tell(path, Told(204))
        with PulsarAdmin(PulsarAdminSettings(stub.url, token_file=str(token))) as admin:
            admin.set_message_ttl("persistent://t/ns/x", seconds=0)

        (asked,) = owner.asked
        assert (asked.method, asked.path) == ("POST", f"{path}?messageTTL=0&authoritative=true")
        assert asked.authorization == stub.asked[0].authorization == "Bearer abc"


@pytest.mark.parametrize("target", ["http://broker-2.example.com:8080", "http://127.evil.example:8080"])
def test_the_token_follows_no_redirect_to_another_machine_without_tls(
    target: str, stub: HttpStub, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("abc")
    stub.tell("/admin/v2/x", Told(307, headers=(("Location", f"{target}/admin/v2/x"),)))

    with PulsarHttp(PulsarAdminSettings(stub.url, token_file=str(token))) as http:
        with pytest.raises(UnavailableError, match="not reached over TLS"):
            http.get("v2/x")
        with pytest.raises(UnavailableError, match="not reached over TLS"):
            http.body("v2/x", most_bytes=9, patience_seconds=1.0)


@pytest.mark.parametrize(
    ("brokers", "is_safe"),
    [(["127.0.0.1:8080"], True), (["127.0.0.1:8080", "broker-2.example.com:8080"], False), (None, False)],
)
def test_pulsars_clients_get_a_token_in_clear_text_only_where_all_brokers_are_on_this_machine(
    brokers: list[str] | None, is_safe: bool, stub: HttpStub, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("abc")
    stub.tell("/admin/v2/brokers", _json(brokers))
    pulsar = PulsarSettings(
        service_url="pulsar://127.0.0.1:6650",
        admin_url=stub.url,
        token_file=str(token),
        tls_trust_certs_file="",
        tls_check_hostname=True,
        timeout_seconds=1,
    )

    if is_safe:
        require_safe_token(pulsar)
    else:
        with pytest.raises(ConfigError, match=r"use pulsar\+ssl"):
            new_client(pulsar)


def test_a_rotated_token_is_seen_by_the_next_request(stub: HttpStub, tmp_path: Path) -> None:
    token = tmp_path / "token"
    stub.tell("/admin/v2/clusters", _json(["c"]))
    with PulsarAdmin(PulsarAdminSettings(stub.url, token_file=str(token))) as admin:
        for text in ("first", "second"):
            token.write_text(text)
            assert admin.clusters() == ["c"]

    assert [asked.authorization for asked in stub.asked] == ["Bearer first", "Bearer second"]


def test_redirects_without_end_are_unavailable(stub: HttpStub) -> None:
    stub.tell("/admin/v2/clusters", Told(307, headers=(("Location", f"{stub.url}/admin/v2/clusters"),)))

    with PulsarHttp(PulsarAdminSettings(stub.url)) as http, pytest.raises(UnavailableError, match="redirected again"):
        http.get("v2/clusters")


def test_a_refusal_says_what_to_do(stub: HttpStub) -> None:
    stub.tell("/admin/v2/clusters", _reason("Don't have permission", 403))

    with PulsarAdmin(PulsarAdminSettings(stub.url)) as admin, pytest.raises(RefusedError, match=r"role the rights"):
        admin.clusters()


def test_an_answer_that_is_no_json_is_unavailable(stub: HttpStub) -> None:
    stub.tell("/admin/v2/clusters", Told(200, b"<html>welcome</html>"))

    with PulsarAdmin(PulsarAdminSettings(stub.url)) as admin, pytest.raises(UnavailableError, match="no JSON"):
        admin.clusters()


def test_a_broker_that_is_not_there_is_unavailable() -> None:
    settings = PulsarAdminSettings("http://127.0.0.1:1", timeout_seconds=0.5)

    with PulsarAdmin(settings) as admin, pytest.raises(UnavailableError, match=r"Check that the broker runs"):
        admin.clusters()
    broker = AdminBroker(settings)
    assert [view.presence for view in broker.views([OWNER, "no topic"])] == [Presence.UNREADABLE] * 2
    broker.close()


def _both(first: str, second: str) -> str:
    return f"{first},{second.removeprefix('http://')}"


NOBODY = "http://127.0.0.1:1"


def test_a_broker_that_is_not_there_is_passed_over_and_asked_last_from_then_on(stub: HttpStub) -> None:
    stub.tell("/admin/v2/clusters", _json(["c"]))
    url = _both(NOBODY, stub.url)

    with PulsarAdmin(PulsarAdminSettings(url)) as admin:
        assert admin.clusters() == ["c"]

    assert hosts_of(url).in_order == (stub.url, NOBODY)


@pytest.mark.parametrize(
    "fault", [pytest.param(Told(200, after_seconds=30.0), id="hangs"), pytest.param(Told(503), id="is going down")]
)
def test_a_broker_that_serves_nobody_does_not_keep_us_from_the_other(stub: HttpStub, fault: Told) -> None:
    path = "/admin/v2/clusters"
    with http_stub() as other:
        stub.tell(path, fault)
        other.tell(path, _json(["c"]))
        with PulsarAdmin(PulsarAdminSettings(_both(stub.url, other.url), timeout_seconds=0.3)) as admin:
            assert [admin.clusters(), admin.clusters()] == [["c"]] * 2

        assert len(stub.asked) == 1
        assert len(other.asked) == 2


def test_every_broker_is_tried_before_an_answer_is_given_up(stub: HttpStub) -> None:
    path = "/admin/v2/clusters"
    stub.tell(path, _json(["c"]))
    with http_stub() as first, http_stub() as second:
        for each in (first, second):
            each.tell(path, Told(200, after_seconds=30.0))
        url = _both(_both(first.url, second.url), stub.url)
        with PulsarAdmin(PulsarAdminSettings(url, timeout_seconds=0.2)) as admin:
            assert admin.clusters() == ["c"]


def test_where_no_broker_answers_all_is_unavailable() -> None:
    with PulsarAdmin(PulsarAdminSettings(_both(NOBODY, "http://127.0.0.1:2"), timeout_seconds=0.5)) as admin:
        with pytest.raises(UnavailableError, match="does not answer"):
            admin.clusters()
        with pytest.raises(UnavailableError, match="does not answer"):
            admin.entry("persistent://t/ns/x", (7, 0), 10, 0.5)


def test_a_client_that_takes_one_broker_is_told_one_that_answers(stub: HttpStub) -> None:
    stub.tell("/admin/v2/clusters", _reason("no", 403))  # it answers, whatever it says

    assert answering(PulsarAdminSettings(_both("http://127.0.0.1:3", stub.url), timeout_seconds=1)) == stub.url


def test_a_single_broker_is_named_without_a_question(stub: HttpStub) -> None:
    assert answering(PulsarAdminSettings(f"{stub.url}/")) == stub.url
    assert not stub.asked
    assert answering(PulsarAdminSettings(_both(NOBODY, "http://127.0.0.1:4"), timeout_seconds=0.5)) != ""


def test_an_entry_is_asked_of_the_next_broker_where_one_is_not_there(stub: HttpStub) -> None:
    stub.tell("/admin/v2/persistent/t/ns/x/ledger/7/entry/0", Told(200, b"bytes"))

    with PulsarAdmin(PulsarAdminSettings(_both(NOBODY, stub.url))) as admin:
        body = admin.entry("persistent://t/ns/x", (7, 0), 10, 5.0)

    assert body is not None
    assert body.data == b"bytes"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param(PulsarAdminSettings("127.0.0.1:8080"), "must begin with http", id="no scheme"),
        pytest.param(PulsarAdminSettings("http://h", tls_ca_file="/no/such"), "tls_trust_certs_file", id="no CA file"),
        pytest.param(
            PulsarAdminSettings("http://h", tls_ca_file=__file__), "tls_trust_certs_file", id="CA file is none"
        ),
        pytest.param(PulsarAdminSettings("https://h", token_file="/no/such"), "token_file", id="no token file"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: PulsarAdminSettings, text: str) -> None:
    with pytest.raises(ConfigError, match=text), PulsarHttp(settings) as http:
        http.get("v2/clusters")


def test_settings_can_be_sent_to_a_worker() -> None:
    settings = PulsarAdminSettings("http://h", token_file="f")

    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        pytest.param("t/ns/persistent/x", "v2/persistent/t/ns/x", id="managed ledger"),
        pytest.param("persistent://t/ns/x-partition-3", "v2/persistent/t/ns/x-partition-3", id="topic"),
        pytest.param("t/ns/persistent/a+b%2Bc", "v2/persistent/t/ns/a%20b%2Bc", id="space and plus"),
        pytest.param("t/ns/persistent/%C3%BC%3F%25", "v2/persistent/t/ns/%C3%BC%3F%25", id="what a URL would misread"),
        pytest.param("t/c/ns/persistent/x", "persistent/t/c/ns/x", id="name with a cluster (V1)"),
    ],
)
def test_a_topic_has_one_path(topic: str, path: str) -> None:
    assert topic_path(topic) == path


ENTRY = "/admin/v2/persistent/t/ns/x/ledger/4/entry/0"


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(("X-Pulsar-replicated-from", "\x00\x1b[2J"), id="characters that no header may have"),
        pytest.param(("X-Pulsar-PROPERTY-x", "y" * 1_000_000), id="more than a header may be long"),
    ],
)
def test_an_entry_with_which_the_broker_breaks_http_has_no_answer_and_is_no_outage(
    stub: HttpStub, header: tuple[str, str]
) -> None:
    stub.tell(ENTRY, Told(200, b"payload", (header,)))
    with PulsarAdmin(PulsarAdminSettings(stub.url)) as admin:
        assert admin.entry("persistent://t/ns/x", (4, 0), 100, 3.0) is None


def test_an_entry_of_a_broker_that_is_not_there_is_an_outage() -> None:
    with PulsarAdmin(PulsarAdminSettings("http://127.0.0.1:1")) as admin, pytest.raises(UnavailableError):
        admin.entry("persistent://t/ns/x", (4, 0), 100, 3.0)
