"""The admin client with redirects, faults, and answers that no broker of Pulsar 4.0 gives by itself."""

import gzip
import json
import pickle
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledger_reaper_client import admin as client_admin
from streaming.adapters.pulsar.admin_api.admin import AdminBroker, PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.admin_api.segments import layout_in
from streaming.adapters.pulsar.credentials import Credentials
from streaming.adapters.pulsar.http import (
    Answer,
    PulsarHttp,
    answering,
    require_safe_secret,
    subscription_path,
    topic_path,
)
from streaming.adapters.pulsar.publish import new_client
from streaming.adapters.pulsar.tls import Tls
from streaming.config.hosts import hosts_of
from streaming.errors import ConfigError, ForbiddenError, RefusedError, UnavailableError
from streaming.ports import Unreadable
from tests.builders import layout_znode
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub
from tests.pulsar_settings import pulsar_settings
from udfs.formats.internal_stats import InternalStats
from udfs.paths import segment_of
from udfs.records import BrokerView, Presence

STATS = "/admin/v2/persistent/t/ns/x/internalStats"
SCHEMA = "/admin/v2/schemas/t/ns/x-partition-3/schema"
LOADED = "/admin/v2/broker-stats/bookieops"
LIST = "/admin/v2/persistent/t/ns"
OWNER = "t/ns/persistent/x"
TOPIC = "persistent://t/ns/x"
COMPLETE = {
    "ledgers": [{"ledgerId": 4}, {"ledgerId": 9}],
    "cursors": {"a+b": {"cursorLedger": 7}, "new": {"cursorLedger": -1}},
    "schemaLedgers": [{"ledgerId": 5}],
    "compactedLedger": {"ledgerId": 6},
}

RUNTIME = "/admin/v2/brokers/configuration/runtime"


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    with http_stub() as running:
        yield running


def _json(value: object, status: int = 200) -> CannedAnswer:
    return CannedAnswer(status, json.dumps(value).encode())


def _loaded(*topics: str) -> CannedAnswer:
    return _json({"t/ns": {topic: {"dataLedgerOpenOp": 0} for topic in topics}})


def _view(*stubs: HttpStub, timeout_seconds: float = 5.0) -> BrokerView:
    """Return the view of OWNER with these running brokers."""
    settings = PulsarAdminSettings(admin_url=stubs[0].url, timeout_seconds=timeout_seconds)
    broker = AdminBroker(settings, lambda: [stub.url for stub in stubs])
    (view,) = broker.views([OWNER])
    broker.close()
    return view


def _paths(stub: HttpStub) -> list[str]:
    return [request.path.partition("?")[0] for request in stub.requests]


def _reason(text: str, status: int = 404) -> CannedAnswer:
    return _json({"reason": text}, status)


def test_internal_stats_become_a_view(stub: HttpStub) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(STATS, _json(COMPLETE))

    assert _view(stub) == BrokerView(
        presence=Presence.PRESENT, ledgers=(4, 9), cursors={"a+b": 7, "new": -1}, compacted_ledger=6
    )


@pytest.mark.parametrize(
    ("answer", "presence"),
    [
        pytest.param(
            _reason("Topic persistent://t/ns/x not found"), Presence.UNREADABLE, id="unloaded in the meantime"
        ),
        pytest.param(CannedAnswer(307, headers=(("Location", "http://x/"),)), Presence.UNREADABLE, id="it moves"),
        pytest.param(CannedAnswer(404, b"<html>Not Found</html>"), Presence.UNREADABLE, id="404 of something else"),
        pytest.param(CannedAnswer(404), Presence.UNREADABLE, id="404 without a word"),
        pytest.param(_json({"reason": None}, 404), Presence.UNREADABLE, id="404 without a reason"),
        pytest.param(_json([], 404), Presence.UNREADABLE, id="404 with a list"),
        pytest.param(_reason("no", 401), Presence.UNREADABLE, id="not authenticated"),
        pytest.param(_reason("no", 403), Presence.UNREADABLE, id="not allowed"),
        pytest.param(_reason("no", 412), Presence.UNREADABLE, id="name not taken"),
        pytest.param(CannedAnswer(204), Presence.UNREADABLE, id="no content"),
        pytest.param(CannedAnswer(200, b"{"), Presence.UNREADABLE, id="half a JSON"),
        pytest.param(CannedAnswer(200, b"[" * 100_000), Presence.UNREADABLE, id="nested JSON"),
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
def test_a_loaded_topic_is_present_only_by_a_complete_answer(
    stub: HttpStub, answer: CannedAnswer, presence: Presence
) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(STATS, answer)

    view = _view(stub)

    assert view.presence is presence
    assert bool(view.detail) is (presence is not Presence.PRESENT)


@pytest.mark.parametrize(
    ("answer", "presence"),
    [
        pytest.param(_json([TOPIC]), Presence.PRESENT, id="listed"),
        pytest.param(_json(["persistent://t/ns/y"]), Presence.GONE, id="another is listed"),
        pytest.param(_json([]), Presence.GONE, id="none is listed"),
        pytest.param(_reason("Namespace does not exist"), Presence.GONE, id="no namespace"),
        pytest.param(_reason("Namespace does not exist", 409), Presence.UNREADABLE, id="409 in those words"),
        pytest.param(_reason("Something does not exist"), Presence.UNREADABLE, id="404 in other words"),
        pytest.param(CannedAnswer(404, b"<html>Not Found</html>"), Presence.UNREADABLE, id="404 of something else"),
        pytest.param(CannedAnswer(404), Presence.UNREADABLE, id="404 without a word"),
        pytest.param(_json({"reason": None}, 404), Presence.UNREADABLE, id="404 without a reason"),
        pytest.param(_json({}), Presence.UNREADABLE, id="not a list"),
        pytest.param(CannedAnswer(200, b"["), Presence.UNREADABLE, id="half a JSON"),
        pytest.param(_reason("no", 403), Presence.UNREADABLE, id="not allowed"),
    ],
)
def test_the_list_of_its_namespace_decides_whether_an_unloaded_topic_exists(
    stub: HttpStub, answer: CannedAnswer, presence: Presence
) -> None:
    stub.answer_with(LOADED, _loaded("persistent://t/ns/other"))
    stub.answer_with(LIST, answer)

    view = _view(stub)

    assert view.presence is presence
    assert view.is_loaded is (presence is not Presence.PRESENT)
    assert set(_paths(stub)) == {LOADED, LIST}, "a request that would load the topic"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_reason("no", 403), id="takes a superuser"),
        pytest.param(CannedAnswer(404), id="another version"),
        pytest.param(CannedAnswer(500), id="it fails"),
        pytest.param(CannedAnswer(307, headers=(("Location", "http://127.0.0.1:1/"),)), id="it is a proxy"),
        pytest.param(_json([]), id="a list"),
        pytest.param(_json({"t/ns": []}), id="lists in it"),
        pytest.param(CannedAnswer(200, b"{"), id="half a JSON"),
    ],
)
def test_without_a_brokers_list_topics_that_no_other_has_loaded_are_unreadable(
    stub: HttpStub, answer: CannedAnswer
) -> None:
    with http_stub() as other:
        stub.answer_with(LOADED, _loaded("persistent://t/ns/z"))
        stub.answer_with(LIST, _json([TOPIC]))
        other.answer_with(LOADED, answer)

        view = _view(stub, other)

        assert (view.presence, view.is_unavailable) == (Presence.UNREADABLE, True)
        assert set(_paths(stub)) | set(_paths(other)) == {LOADED}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(_reason("no", 401), ForbiddenError, id="not authenticated"),
        pytest.param(_reason("no", 403), ForbiddenError, id="takes a superuser"),
        pytest.param(CannedAnswer(404), UnavailableError, id="another version"),
        pytest.param(CannedAnswer(500), UnavailableError, id="it fails"),
    ],
)
def test_each_running_broker_must_list_its_loaded_topics(
    stub: HttpStub, answer: CannedAnswer, error: type[Exception]
) -> None:
    with http_stub() as other:
        stub.answer_with(LOADED, _loaded())
        other.answer_with(LOADED, _loaded(), answer)
        settings = PulsarAdminSettings(admin_url=stub.url)

        assert AdminBroker(settings, lambda: [stub.url, other.url]).require_answers() == 2
        with pytest.raises(error, match=other.url):
            AdminBroker(settings, lambda: [stub.url, other.url]).require_answers()


FULL = {
    "ledgers": [{"ledgerId": 4, "entries": 3, "size": 30}, {"ledgerId": 9, "entries": 0, "size": 0}],
    "currentLedgerEntries": 2,
    "currentLedgerSize": 20,
    "pendingAddEntriesCount": 0,
    "cursors": {"s": {"markDeletePosition": "4:1", "properties": {}, "individuallyDeletedMessages": "[(9:0..9:1]]"}},
}


def _stats(*stubs: HttpStub, names: Sequence[str] = (OWNER,)) -> list[InternalStats | Unreadable | None]:
    settings = PulsarAdminSettings(admin_url=stubs[0].url, timeout_seconds=5)
    broker = AdminBroker(settings, lambda: [stub.url for stub in stubs])
    answers = broker.internal_stats(names)
    broker.close()
    return answers


def test_stats_are_requested_of_loaded_topics_only(stub: HttpStub) -> None:
    """The same request for another topic would load it, and a broker that loads a topic may trim it."""
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(STATS, _json(FULL))

    unloaded, loaded, invalid = _stats(stub, names=["t/ns/persistent/other", OWNER, "no topic"])

    assert unloaded is None
    assert isinstance(loaded, InternalStats)
    assert (loaded.sizes, loaded.cursors, loaded.acknowledged) == ({4: 30, 9: 20}, {"s": (4, 1)}, {"s": "[(9:0..9:1]]"})
    assert isinstance(invalid, Unreadable)
    assert {path for path in _paths(stub) if path.endswith("Stats")} == {STATS}


def test_stats_of_a_topic_that_was_just_unloaded_are_not_requested(
    stub: HttpStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.adapters.pulsar.admin_api.loaded._USED_SECONDS", -1.0)
    stub.answer_with(LOADED, _loaded(TOPIC), _loaded())
    stub.answer_with(STATS, _json(FULL))

    (answer,) = _stats(stub)

    assert isinstance(answer, Unreadable)
    assert "just unloaded" in answer.detail
    assert STATS not in _paths(stub)


@pytest.mark.parametrize(
    "answer", [_json({}), _json(FULL | {"cursors": []}), CannedAnswer(307), CannedAnswer(403), CannedAnswer(404)]
)
def test_incomplete_stats_are_unreadable_and_no_redirect_is_followed(stub: HttpStub, answer: CannedAnswer) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(STATS, answer)

    assert isinstance(_stats(stub)[0], Unreadable)
    assert _paths(stub).count(STATS) == 1


def test_stats_of_other_topics_are_unknown_while_a_broker_does_not_list_its_topics(stub: HttpStub) -> None:
    with http_stub() as silent:
        stub.answer_with(LOADED, _loaded(TOPIC))
        stub.answer_with(STATS, _json(FULL))
        silent.answer_with(LOADED, CannedAnswer(403))

        loaded, other = _stats(stub, silent, names=[OWNER, "t/ns/persistent/other"])

        assert isinstance(loaded, InternalStats)
        assert isinstance(other, Unreadable)
        assert "maybe loaded" in other.detail


def test_a_topic_is_requested_from_its_broker_although_others_do_not_answer(stub: HttpStub) -> None:
    with http_stub() as owner, http_stub() as silent:
        owner.answer_with(LOADED, _loaded(TOPIC))
        owner.answer_with(STATS, _json(COMPLETE))
        stub.answer_with(LOADED, _loaded())
        silent.answer_with(LOADED, CannedAnswer(500))

        assert _view(stub, owner, silent).ledgers == (4, 9)
        assert _paths(owner).count(STATS) == 1


SEGMENT = "t/ns/segment/x/0000-7fff-0"
SEGMENT_TOPIC = "segment://t/ns/x/0000-7fff-0"
LAYOUT = "/admin/v2/scalable/t/ns/x"
NO_LAYOUT = "Scalable topic not found: topic://t/ns/x"


def _segment_view(stub: HttpStub, name: str = SEGMENT, *, existing: Sequence[str] = ()) -> BrokerView:
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url, timeout_seconds=5), lambda: [stub.url])
    (view,) = broker.views([name], existing)
    broker.close()
    return view


def test_a_loaded_segment_exists_and_shows_nothing(stub: HttpStub) -> None:
    """No broker of 5.0.0-M1 answers internalStats of a segment."""
    stub.answer_with(LOADED, _loaded(SEGMENT_TOPIC))

    view = _segment_view(stub)

    assert (view.presence, view.is_hidden, view.ledgers) == (Presence.PRESENT, True, ())
    assert set(_paths(stub)) == {LOADED}
    (stats,) = _stats(stub, names=[SEGMENT])
    assert isinstance(stats, Unreadable)
    assert set(_paths(stub)) == {LOADED}


def test_a_known_segment_that_is_not_loaded_needs_no_request(stub: HttpStub) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))

    assert _segment_view(stub, existing=[SEGMENT]) == BrokerView(presence=Presence.PRESENT, is_loaded=False)
    assert set(_paths(stub)) == {LOADED}


@pytest.mark.parametrize(
    ("answer", "presence"),
    [
        pytest.param(_reason(NO_LAYOUT), Presence.GONE, id="no such scalable topic"),
        pytest.param(CannedAnswer(200, layout_znode(1, 2)), Presence.GONE, id="a layout without it"),
        pytest.param(CannedAnswer(200, layout_znode(0, 1)), Presence.PRESENT, id="a layout with it"),
        pytest.param(
            CannedAnswer(200, layout_znode(0, hashRange={"start": 0, "end": 0xFFFF})),
            Presence.UNREADABLE,
            id="a layout that gives its id to another",
        ),
        pytest.param(_json({}), Presence.UNREADABLE, id="a layout of an unknown form"),
        pytest.param(CannedAnswer(200, b"{"), Presence.UNREADABLE, id="half a JSON"),
        pytest.param(_reason("Scalable topic not found: topic://t/ns/y"), Presence.UNREADABLE, id="of another topic"),
        pytest.param(_reason(NO_LAYOUT, 409), Presence.UNREADABLE, id="409 in those words"),
        pytest.param(_reason("Topic was migrated", 410), Presence.UNREADABLE, id="410"),
        pytest.param(CannedAnswer(404, b"<html>Not Found</html>"), Presence.UNREADABLE, id="404 of an older broker"),
        pytest.param(CannedAnswer(307, headers=(("Location", "http://x/"),)), Presence.UNREADABLE, id="a redirect"),
        pytest.param(_reason("no", 403), Presence.UNREADABLE, id="not allowed"),
        pytest.param(CannedAnswer(500), Presence.UNREADABLE, id="it fails"),
    ],
)
def test_the_layout_of_its_topic_decides_whether_an_unloaded_segment_exists(
    stub: HttpStub, answer: CannedAnswer, presence: Presence
) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(LAYOUT, answer)

    assert _segment_view(stub).presence is presence
    assert set(_paths(stub)) == {LOADED, LAYOUT}, "a request that would load a topic"


@pytest.mark.parametrize(
    ("answer", "presence", "is_unavailable"),
    [
        pytest.param(CannedAnswer(200, layout_znode(0, 1)), Presence.PRESENT, False, id="the other knows"),
        pytest.param(_reason(NO_LAYOUT), Presence.GONE, False, id="the other knows that it is absent"),
        pytest.param(CannedAnswer(404), Presence.UNREADABLE, True, id="no broker knows"),
    ],
)
def test_a_broker_before_5_0_does_not_answer_for_the_others(
    stub: HttpStub, answer: CannedAnswer, presence: Presence, *, is_unavailable: bool
) -> None:
    """During a rolling upgrade."""
    with http_stub() as other:
        for each in (stub, other):
            each.answer_with(LOADED, _loaded())
        stub.answer_with(LAYOUT, _reason("Not Found", 404))
        other.answer_with(LAYOUT, answer)
        broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url, timeout_seconds=5), lambda: [stub.url, other.url])
        (view,) = broker.views([SEGMENT])
        broker.close()

    assert (view.presence, view.is_unavailable) == (presence, is_unavailable)


def test_a_deeply_nested_layout_is_unreadable() -> None:
    body: list[Any] = []
    for _ in range(100_000):
        body = [body]
    segment = segment_of(SEGMENT)
    assert segment is not None
    view = layout_in(segment.topic, "http://broker", Answer(200, {"epoch": body}, "OK"))
    assert isinstance(view, BrokerView)
    assert view.presence is Presence.UNREADABLE
    while body:  # Python would free the nested lists recursively
        body = body.pop()


def test_the_brokers_layout_of_a_loaded_segment_is_read_as_well(stub: HttpStub) -> None:
    stub.answer_with(LOADED, _loaded(SEGMENT_TOPIC))
    stub.answer_with(LAYOUT, CannedAnswer(200, layout_znode(1, 2)))
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url, timeout_seconds=5), lambda: [stub.url])
    views = broker.layout_views([SEGMENT, OWNER, "no topic"])
    broker.close()

    assert [view.presence for view in views] == [Presence.GONE, Presence.UNREADABLE, Presence.UNREADABLE]
    assert set(_paths(stub)) == {LAYOUT}


@pytest.mark.parametrize("name", ["t/ns/segment/a+b/0000-ffff-0", "t/ns/segment/a%2520b/0000-ffff-0"])
def test_a_scalable_topic_whose_name_is_encoded_is_not_requested(stub: HttpStub, name: str) -> None:
    """Brokers of 5.0.0-M1 take the encoded name for the name itself."""
    stub.answer_with(LOADED, _loaded(TOPIC))

    assert _segment_view(stub, name).presence is Presence.UNREADABLE
    assert set(_paths(stub)) == {LOADED}


def test_a_segment_that_two_brokers_have_loaded_is_unreadable(stub: HttpStub) -> None:
    with http_stub() as other:
        for broker_stub in (stub, other):
            broker_stub.answer_with(LOADED, _loaded(SEGMENT_TOPIC))
        broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), lambda: [stub.url, other.url])

        (view,) = broker.views([SEGMENT])
        broker.close()

        assert (view.presence, view.is_unavailable) == (Presence.UNREADABLE, False)


def test_a_schema_of_which_only_segments_are_loaded_is_not_requested(stub: HttpStub) -> None:
    """The request names a topic, and a broker assigns the bundle of that name."""
    stub.answer_with(LOADED, _loaded(SEGMENT_TOPIC))
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), lambda: [stub.url])

    views = broker.schema_views(["t/ns/x", "t/ns/y"])
    broker.close()

    assert [view.presence for view in views] == [Presence.UNREADABLE, Presence.GONE]
    assert set(_paths(stub)) == {LOADED}


def test_a_topic_that_two_brokers_have_loaded_is_unreadable(stub: HttpStub) -> None:
    with http_stub() as other:
        for broker_stub in (stub, other):
            broker_stub.answer_with(LOADED, _loaded(TOPIC))
            broker_stub.answer_with(STATS, _json(COMPLETE))

        view = _view(stub, other)

        assert (view.presence, view.is_unavailable) == (Presence.UNREADABLE, False)


def test_two_brokers_at_one_address_are_both_unknown(stub: HttpStub) -> None:
    """A topic that the answering broker has not loaded may be loaded by the other."""
    stub.answer_with(LOADED, _loaded())
    stub.answer_with(LIST, _json([]))
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), lambda: [stub.url, stub.url])

    (view,) = broker.views([OWNER])

    assert (view.presence, view.is_unavailable) == (Presence.UNREADABLE, True)
    assert "several brokers advertise" in view.detail
    assert broker.is_loaded(OWNER) is None
    with pytest.raises(UnavailableError, match="several brokers advertise"):
        broker.require_answers()
    broker.close()


def test_without_known_running_brokers_all_topics_are_unreadable(stub: HttpStub) -> None:
    def away() -> list[str]:
        raise UnavailableError("ZooKeeper is away")

    for running in (away, list):
        broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), running)
        views = [*broker.views([OWNER]), *broker.schema_views(["t/ns/x"])]
        assert [(view.presence, view.is_unavailable) for view in views] == [(Presence.UNREADABLE, True)] * 2
        broker.close()
    assert not stub.requests


def test_the_list_of_a_namespace_is_not_read_for_known_topics(stub: HttpStub) -> None:
    """A tenant decides how long the list is."""
    stub.answer_with(LOADED, _loaded("persistent://t/ns/loaded"))
    stub.answer_with("/admin/v2/persistent/t/ns/loaded/internalStats", _json(COMPLETE))
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), lambda: [stub.url])
    names = [OWNER, "t/ns/persistent/loaded"]

    unloaded, loaded = broker.views(names, existing=names)
    broker.close()

    assert unloaded == BrokerView(presence=Presence.PRESENT, is_loaded=False)
    assert (loaded.is_loaded, loaded.ledgers) == (True, (4, 9))
    assert LIST not in _paths(stub)


def test_a_known_topic_is_unreadable_without_a_brokers_list(stub: HttpStub) -> None:
    stub.answer_with(LOADED, CannedAnswer(500))
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), lambda: [stub.url])

    (view,) = broker.views([OWNER], existing=[OWNER])
    broker.close()

    assert (view.presence, view.is_unavailable) == (Presence.UNREADABLE, True)


def test_a_namespaces_and_a_brokers_list_are_read_once_for_many_topics(stub: HttpStub) -> None:
    stub.answer_with(LOADED, _loaded())
    stub.answer_with(LIST, _json([f"persistent://t/ns/{number}" for number in range(500)]))
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), lambda: [stub.url])

    views = broker.views([f"t/ns/persistent/{number}" for number in range(1_000)])
    broker.close()

    assert [view.presence for view in views] == [Presence.PRESENT] * 500 + [Presence.GONE] * 500
    assert _paths(stub) == [LOADED, LIST]


def test_partitions_that_are_being_created_are_unavailable(stub: HttpStub) -> None:
    stub.answer_with(STATS, _reason("Topic partitions were not yet created"))
    admin = PulsarAdmin(PulsarAdminSettings(admin_url=stub.url))

    with pytest.raises(UnavailableError, match="has not created the topic's partitions yet; try again soon"):
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
def test_a_schema_is_gone_only_by_the_known_message(stub: HttpStub, answer: CannedAnswer, presence: Presence) -> None:
    stub.answer_with(LOADED, _loaded(f"{TOPIC}-partition-3"))
    stub.answer_with(SCHEMA, answer)
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), lambda: [stub.url])

    assert [view.presence for view in broker.schema_views(["t/ns/x"])] == [presence]
    broker.close()


def test_a_schema_without_a_loaded_topic_is_gone(stub: HttpStub) -> None:
    stub.answer_with(LOADED, _loaded("persistent://t/ns/y"))
    broker = AdminBroker(PulsarAdminSettings(admin_url=stub.url), lambda: [stub.url])

    assert [view.presence for view in broker.schema_views(["t/ns/x"])] == [Presence.GONE]
    broker.close()
    assert _paths(stub) == [LOADED], "a request for the topic would assign a bundle"


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_temporary_fault_is_retried(stub: HttpStub, status: int) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(STATS, CannedAnswer(status), CannedAnswer(status), _json(COMPLETE))

    assert _view(stub).presence is Presence.PRESENT
    assert _paths(stub).count(STATS) == 3


def test_a_lasting_fault_is_unreadable_after_a_few_attempts(stub: HttpStub) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(STATS, _reason("metadata store away", 500))

    view = _view(stub)

    assert view.presence is Presence.UNREADABLE
    assert not view.is_unavailable, "the broker reported this topic"
    assert "500: metadata store away" in view.detail
    assert _paths(stub).count(STATS) == 4


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_broker_makes_the_topic_unavailable(stub: HttpStub, status: int) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(STATS, _reason("too many requests", status))

    view = _view(stub)

    assert view.presence is Presence.UNREADABLE
    assert view.is_unavailable


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_broker_too_busy_for_a_list_makes_its_topics_unavailable(stub: HttpStub, status: int) -> None:
    stub.answer_with(LOADED, _loaded())
    stub.answer_with(LIST, _reason("too many requests", status))

    view = _view(stub)

    assert view.presence is Presence.UNREADABLE
    assert view.is_unavailable


def test_a_list_above_the_size_limit_makes_its_topics_unavailable(
    stub: HttpStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.adapters.pulsar.http._MOST_BYTES", 1024)
    stub.answer_with(LOADED, _loaded())
    stub.answer_with(LIST, _json(["0" * 4096]))

    view = _view(stub)

    assert (view.presence, view.is_unavailable) == (Presence.UNREADABLE, True)
    assert "answered with more than" in view.detail


def test_an_answer_above_the_size_limit_is_not_read_completely(stub: HttpStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.adapters.pulsar.http._MOST_BYTES", 1024 * 1024)
    unpacked = json.dumps(COMPLETE | {"padding": "0" * 8 * 1024 * 1024}).encode()
    packed = CannedAnswer(
        200, gzip.compress(unpacked), (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
    )
    stub.answer_with(LOADED, _loaded(TOPIC))
    for answer in (packed, CannedAnswer(200, unpacked)):
        stub.answers[STATS].clear()
        stub.answer_with(STATS, answer)
        view = _view(stub)
        assert view.presence is Presence.UNREADABLE
        assert not view.is_unavailable
        assert "answered with more than 1 MiB" in view.detail


def test_a_broker_that_does_not_answer_in_time_is_unreadable(stub: HttpStub) -> None:
    stub.answer_with(LOADED, _loaded(TOPIC))
    stub.answer_with(STATS, CannedAnswer(200, b"{}", after_seconds=30.0))

    view = _view(stub, timeout_seconds=0.2)

    assert view.presence is Presence.UNREADABLE
    assert view.is_unavailable
    assert "does not answer (ReadTimeout" in view.detail


def test_a_closed_connection_is_no_answer_and_a_refused_connection_is_an_outage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def cut() -> None:
            connection, _address = server.accept()
            connection.recv(1 << 16)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            connection.close()

        threading.Thread(target=cut, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with PulsarHttp(PulsarAdminSettings(admin_url=url)) as http:
            assert http.body("v2/an-entry", most_bytes=9, patience_seconds=5.0) is None
    with PulsarHttp(PulsarAdminSettings(admin_url=url)) as http, pytest.raises(UnavailableError):
        http.body("v2/an-entry", most_bytes=9, patience_seconds=5.0)


def test_a_redirect_to_another_broker_keeps_token_method_body_and_query(stub: HttpStub, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    with http_stub() as owner:
        path = "/admin/v2/persistent/t/ns/x/messageTTL"
        location = f"{owner.url}{path}?messageTTL=0&authoritative=true"
        stub.answer_with(path, CannedAnswer(307, headers=(("Location", location),)))
        owner.answer_with(path, CannedAnswer(204))
        with PulsarAdmin(
            PulsarAdminSettings(admin_url=stub.url, credentials=Credentials(token_file=str(token)))
        ) as admin:
            admin.set_message_ttl("persistent://t/ns/x", seconds=0)

        (request,) = owner.requests
        assert (request.method, request.path) == ("POST", f"{path}?messageTTL=0&authoritative=true")
        assert request.authorization == stub.requests[0].authorization == "Bearer abc"


@pytest.mark.parametrize("target", ["http://broker-2.example.com:8080", "http://127.evil.example:8080"])
def test_the_token_follows_no_redirect_to_another_machine_without_tls(
    target: str, stub: HttpStub, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("abc")
    stub.answer_with("/admin/v2/x", CannedAnswer(307, headers=(("Location", f"{target}/admin/v2/x"),)))

    with PulsarHttp(PulsarAdminSettings(admin_url=stub.url, credentials=Credentials(token_file=str(token)))) as http:
        with pytest.raises(UnavailableError, match="not reached over TLS"):
            http.get("v2/x")
        with pytest.raises(UnavailableError, match="not reached over TLS"):
            http.body("v2/x", most_bytes=9, patience_seconds=1.0)


@pytest.mark.parametrize(
    ("brokers", "is_safe"),
    [(["127.0.0.1:8080"], True), (["127.0.0.1:8080", "broker-2.example.com:8080"], False), (None, False)],
)
def test_pulsars_clients_send_a_token_in_clear_text_only_on_this_machine(
    brokers: list[str] | None, is_safe: bool, stub: HttpStub, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("abc")
    stub.answer_with("/admin/v2/brokers", _json(brokers))
    pulsar = pulsar_settings(
        service_url="pulsar://127.0.0.1:6650",
        admin_url=stub.url,
        token_file=str(token),
        timeout_seconds=1,
    )

    if is_safe:
        require_safe_secret(pulsar)
    else:
        with pytest.raises(ConfigError, match=r"use pulsar\+ssl"):
            new_client(pulsar)


def test_a_rotated_token_is_used_by_the_next_request(stub: HttpStub, tmp_path: Path) -> None:
    token = tmp_path / "token"
    stub.answer_with("/admin/v2/clusters", _json(["c"]))
    with PulsarAdmin(PulsarAdminSettings(admin_url=stub.url, credentials=Credentials(token_file=str(token)))) as admin:
        for text in ("first", "second"):
            token.write_text(text)
            assert admin.clusters() == ["c"]

    assert [request.authorization for request in stub.requests] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    "set_to",
    [
        {"metadataStoreUrl": "oxia://oxia1:6648"},
        {"metadataStoreUrl": "zk:zk1:2181", "bookkeeperMetadataServiceUri": "metadata-store:oxia://oxia1/bk"},
        {},
    ],
)
def test_a_broker_names_its_metadata_stores_as_far_as_they_are_set(stub: HttpStub, set_to: dict[str, str]) -> None:
    others = {"bookkeeperMetadataServiceUri": "", "webServicePort": "8080"}
    stub.answer_with(RUNTIME, _json(others | set_to))
    with PulsarAdmin(PulsarAdminSettings(admin_url=stub.url)) as admin:
        assert admin.metadata_stores() == set_to


@pytest.mark.parametrize(
    ("answer", "error"),
    [(CannedAnswer(200, b"[]"), UnavailableError), (CannedAnswer(403, b"{}"), RefusedError)],
    ids=["an unknown format", "no right"],
)
def test_metadata_stores_that_a_broker_does_not_return_are_unknown(
    stub: HttpStub, answer: CannedAnswer, error: type[Exception]
) -> None:
    stub.answer_with(RUNTIME, answer)
    with PulsarAdmin(PulsarAdminSettings(admin_url=stub.url)) as admin, pytest.raises(error):
        admin.metadata_stores()


def test_endless_redirects_are_unavailable(stub: HttpStub) -> None:
    stub.answer_with("/admin/v2/clusters", CannedAnswer(307, headers=(("Location", f"{stub.url}/admin/v2/clusters"),)))

    with (
        PulsarHttp(PulsarAdminSettings(admin_url=stub.url)) as http,
        pytest.raises(UnavailableError, match="redirected too often"),
    ):
        http.get("v2/clusters")


def test_a_refusal_contains_advice(stub: HttpStub) -> None:
    stub.answer_with("/admin/v2/clusters", _reason("Don't have permission", 403))

    with (
        PulsarAdmin(PulsarAdminSettings(admin_url=stub.url)) as admin,
        pytest.raises(RefusedError, match=r"role the permissions"),
    ):
        admin.clusters()


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"[" * 100_000], ids=["HTML", "nested"])
def test_an_answer_that_is_not_json_is_unavailable(stub: HttpStub, body: bytes) -> None:
    stub.answer_with("/admin/v2/clusters", CannedAnswer(200, body))

    with (
        PulsarAdmin(PulsarAdminSettings(admin_url=stub.url)) as admin,
        pytest.raises(UnavailableError, match="is not JSON"),
    ):
        admin.clusters()


def test_an_unreachable_broker_is_unavailable() -> None:
    settings = PulsarAdminSettings(admin_url="http://127.0.0.1:1", timeout_seconds=0.5)

    with PulsarAdmin(settings) as admin, pytest.raises(UnavailableError, match=r"Check that the broker runs"):
        admin.clusters()
    broker = AdminBroker(settings, lambda: ["http://127.0.0.1:1"])
    assert [view.presence for view in broker.views([OWNER, "no topic"])] == [Presence.UNREADABLE] * 2
    broker.close()


def _both(first: str, second: str) -> str:
    return f"{first},{second.removeprefix('http://')}"


NOBODY = "http://127.0.0.1:1"


def test_an_unreachable_broker_is_skipped_and_then_tried_last(stub: HttpStub) -> None:
    stub.answer_with("/admin/v2/clusters", _json(["c"]))
    url = _both(NOBODY, stub.url)

    with PulsarAdmin(PulsarAdminSettings(admin_url=url)) as admin:
        assert admin.clusters() == ["c"]

    assert hosts_of(url).in_order == (stub.url, NOBODY)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(CannedAnswer(200, after_seconds=30.0), id="hangs"),
        pytest.param(CannedAnswer(503), id="is going down"),
    ],
)
def test_a_failing_broker_does_not_prevent_the_use_of_another(stub: HttpStub, fault: CannedAnswer) -> None:
    path = "/admin/v2/clusters"
    with http_stub() as other:
        stub.answer_with(path, fault)
        other.answer_with(path, _json(["c"]))
        with PulsarAdmin(PulsarAdminSettings(admin_url=_both(stub.url, other.url), timeout_seconds=0.3)) as admin:
            assert [admin.clusters(), admin.clusters()] == [["c"]] * 2

        assert len(stub.requests) == 1
        assert len(other.requests) == 2


def test_every_broker_is_tried_before_a_request_fails(stub: HttpStub) -> None:
    path = "/admin/v2/clusters"
    stub.answer_with(path, _json(["c"]))
    with http_stub() as first, http_stub() as second:
        for slow in (first, second):
            slow.answer_with(path, CannedAnswer(200, after_seconds=30.0))
        url = _both(_both(first.url, second.url), stub.url)
        with PulsarAdmin(PulsarAdminSettings(admin_url=url, timeout_seconds=0.2)) as admin:
            assert admin.clusters() == ["c"]


def test_without_an_answering_broker_all_is_unavailable() -> None:
    with PulsarAdmin(PulsarAdminSettings(admin_url=_both(NOBODY, "http://127.0.0.1:2"), timeout_seconds=0.5)) as admin:
        with pytest.raises(UnavailableError, match="does not answer"):
            admin.clusters()
        with pytest.raises(UnavailableError, match="does not answer"):
            admin.entry("persistent://t/ns/x", (7, 0), 10, 0.5)


def test_a_client_of_a_single_url_gets_that_of_an_answering_broker(stub: HttpStub) -> None:
    stub.answer_with("/admin/v2/clusters", _reason("no", 403))  # an answer of any status

    assert (
        answering(PulsarAdminSettings(admin_url=_both("http://127.0.0.1:3", stub.url), timeout_seconds=1)) == stub.url
    )


def test_a_single_broker_is_returned_without_a_request(stub: HttpStub) -> None:
    assert answering(PulsarAdminSettings(admin_url=f"{stub.url}/")) == stub.url
    assert not stub.requests
    assert answering(PulsarAdminSettings(admin_url=_both(NOBODY, "http://127.0.0.1:4"), timeout_seconds=0.5)) != ""


def test_an_entry_is_requested_from_the_next_broker_if_one_is_unreachable(stub: HttpStub) -> None:
    stub.answer_with("/admin/v2/persistent/t/ns/x/ledger/7/entry/0", CannedAnswer(200, b"bytes"))

    with PulsarAdmin(PulsarAdminSettings(admin_url=_both(NOBODY, stub.url))) as admin:
        body = admin.entry("persistent://t/ns/x", (7, 0), 10, 5.0)

    assert body is not None
    assert body.data == b"bytes"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param(PulsarAdminSettings(admin_url="127.0.0.1:8080"), "must start with http", id="no scheme"),
        pytest.param(
            PulsarAdminSettings(admin_url="http://h", tls=Tls(trust_certs_file="/no/such")),
            "tls_trust_certs_file",
            id="no CA file",
        ),
        pytest.param(
            PulsarAdminSettings(admin_url="http://h", tls=Tls(trust_certs_file=__file__)),
            "tls_trust_certs_file",
            id="CA file is none",
        ),
        pytest.param(
            PulsarAdminSettings(admin_url="https://h", credentials=Credentials(token_file="/no/such")),
            "token_file",
            id="no token file",
        ),
    ],
)
def test_invalid_settings_are_named(settings: PulsarAdminSettings, text: str) -> None:
    with pytest.raises(ConfigError, match=text), PulsarHttp(settings) as http:
        http.get("v2/clusters")


def test_settings_can_be_sent_to_a_worker() -> None:
    settings = PulsarAdminSettings(admin_url="http://h", credentials=Credentials(token_file="f"))

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


@pytest.mark.parametrize(
    ("subscription", "path"),
    [
        pytest.param("orders-1", "orders-1", id="plain"),
        pytest.param("a b/c", "a%20b%2Fc", id="space and slash"),
        pytest.param("a+b", "a%252Bb", id="plus"),
        pytest.param("a%2Bb", "a%25252Bb", id="percent"),
        pytest.param("\u00fc?", "%C3%BC%3F", id="what a URL would misread"),
    ],
)
def test_a_subscription_has_one_path_in_the_service_and_its_client(subscription: str, path: str) -> None:
    topic = "persistent://t/ns/x"
    assert subscription_path(topic, subscription) == f"v2/persistent/t/ns/x/subscription/{path}"
    assert f"v2/{client_admin.subscription_path(topic, subscription)}" == subscription_path(topic, subscription)


ENTRY = "/admin/v2/persistent/t/ns/x/ledger/4/entry/0"


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(("X-Pulsar-replicated-from", "\x00\x1b[2J"), id="characters that no header may have"),
        pytest.param(("X-Pulsar-PROPERTY-x", "y" * 1_000_000), id="more than a header may be long"),
    ],
)
def test_an_invalid_http_answer_for_an_entry_is_no_answer_and_no_outage(
    stub: HttpStub, header: tuple[str, str]
) -> None:
    stub.answer_with(ENTRY, CannedAnswer(200, b"payload", (header,)))
    with PulsarAdmin(PulsarAdminSettings(admin_url=stub.url)) as admin:
        assert admin.entry("persistent://t/ns/x", (4, 0), 100, 3.0) is None


def test_an_entry_of_an_unreachable_broker_is_an_outage() -> None:
    with PulsarAdmin(PulsarAdminSettings(admin_url="http://127.0.0.1:1")) as admin, pytest.raises(UnavailableError):
        admin.entry("persistent://t/ns/x", (4, 0), 100, 3.0)
