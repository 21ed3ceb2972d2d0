"""A ledger that was created and never listed is requested once a broker of its time is gone, and not before."""

from pathlib import Path

import pytest

from streaming.phase_one.watcher import unlisted
from streaming.phase_one.watcher.unlisted import Candidate, Candidates, candidates_of, shared
from streaming.phase_one.watcher.watcher import Watcher
from tests.builders import (
    CURSOR,
    TOPIC,
    bucket_request,
    compacted_request,
    cursor_znode,
    custom_of,
    data_request,
    metadata,
    put,
    view,
)
from tests.unit.phase_one.watcher.watching import DELAY_MS, PATIENCE_MS, World
from udfs.formats.ledger_metadata import serialize_v3
from udfs.formats.managed_ledger import ManagedCursorInfo, serialize_cursor
from udfs.paths import BROKERS, managed_ledger_path
from udfs.records import PendingDelete, Presence

HOUR_S = PATIENCE_MS // 1000
DATA, COMPACTED = data_request(5), compacted_request(5)
HIS_TOPIC = "rival/ns/persistent/his"
HIS = managed_ledger_path(HIS_TOPIC)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Ledgers 1 and 2 exist and are listed, 3 is an old leak, and two brokers run."""
    world = World(tmp_path)
    world.list(1, 2)
    for each in (1, 2, 3):
        _make(world, data_request(each))
    for broker in ("a", "b"):
        put(world.tree, f"{BROKERS}/{broker}")
    world.broker.topics[TOPIC] = view(1, 2)
    return world


def _make(world: World, request: PendingDelete, custom: dict[str, bytes] | None = None) -> None:
    world.ledger(request.ledger_id, serialize_v3(metadata(custom or custom_of(request))))


def _restart_broker(world: World, name: str = "a") -> None:
    world.tree.remove(f"{BROKERS}/{name}")
    put(world.tree, f"{BROKERS}/{name}")


def _is_noted(world: World, ledger_id: int) -> bool:
    return ledger_id in candidates_of(world.parts.watched.notes[unlisted.NOTE]).waiting


@pytest.mark.parametrize("is_restarted", [False, True], ids=["it runs on", "the watcher starts anew"])
def test_an_unlisted_ledger_is_requested_when_it_is_old_and_a_broker_has_gone(
    world: World, *, is_restarted: bool
) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, DATA)
    world.turns(watcher, 70)
    assert _is_noted(world, 5)
    if is_restarted:
        watcher = world.start()
    world.turns(watcher, HOUR_S)
    assert world.topic.requests == [], "both brokers run on, and one may still be about to list it"
    _restart_broker(world)
    world.turns(watcher, 240)
    assert world.topic.requests == [DATA]
    assert not _is_noted(world, 5)


def test_a_ledger_created_and_dropped_while_the_watcher_was_away_is_requested_if_a_broker_went_too(
    world: World,
) -> None:
    world.turns(world.start(), 70)
    _make(world, DATA)
    world.list(1, 2, 5)
    world.list(1, 2)
    _restart_broker(world)
    world.clock.advance(3_600_000)
    watcher = world.start()
    world.turns(watcher, HOUR_S - 100)
    assert world.topic.requests == []
    world.turns(watcher, 300)
    assert world.topic.requests == [DATA]


def test_a_ledger_that_came_and_went_between_two_scans_is_requested_once(world: World) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, DATA)
    world.list(1, 2, 5)
    world.turns(watcher, 10)
    world.list(1, 2)  # and the ledger stays: it has leaked
    world.turns(watcher, 70)
    assert not _is_noted(world, 5)
    _restart_broker(world)
    world.turns(watcher, HOUR_S + 200)
    assert world.topic.requests == [DATA]


def test_it_is_not_asked_about_while_it_is_young(world: World) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, DATA)
    world.turns(watcher, 70)
    _restart_broker(world)
    world.turns(watcher, HOUR_S - 200)
    assert world.topic.requests == []
    assert _is_noted(world, 5)


def test_a_broker_that_started_after_the_ledger_was_created_does_not_count(world: World) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, DATA)
    world.turns(watcher, 70)
    put(world.tree, f"{BROKERS}/c")
    world.turns(watcher, 70)
    world.tree.remove(f"{BROKERS}/c")
    world.turns(watcher, HOUR_S + 200)
    assert world.topic.requests == []


@pytest.mark.parametrize(
    "what", ["listed", "gone", "another's", "needed by its broker", "its owner can't be read", "it can't be read"]
)
def test_it_is_not_asked_about(world: World, what: str) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    if what == "needed by its broker":
        _make(world, COMPACTED)
        world.broker.topics[TOPIC] = view(1, 2, compacted_ledger=5)
    else:
        _make(world, DATA, {"application": b"other"} if what == "another's" else None)
    world.turns(watcher, 70)
    path = next(each for each in world.tree.paths() if each.endswith("L0005"))
    if what == "listed":
        world.list(1, 2, 5)
    elif what == "gone":
        world.tree.remove(path)
    elif what == "its owner can't be read":
        world.broker.topics[TOPIC] = view(presence=Presence.UNREADABLE)
    elif what == "it can't be read":
        world.store.unreadable.add(path)
    _restart_broker(world)
    world.turns(watcher, HOUR_S + 200)
    assert world.topic.requests == []
    assert _is_noted(world, 5) == what.endswith("can't be read"), "an unknown answer is requested again"


def test_the_first_start_leaves_what_is_there_to_the_audit(world: World) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    found = candidates_of(world.parts.watched.notes[unlisted.NOTE])
    assert (found.newest_id, found.waiting, len(found.brokers)) == (3, {}, 2)
    _restart_broker(world)
    world.turns(watcher, HOUR_S + 200)
    assert world.topic.requests == []


def test_folders_of_ledgers_come_in_the_order_of_their_ids(world: World) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    for each in (9_999, 10_000, 2**31 - 2, 2**31 + 5):
        _make(world, data_request(each))
        world.turns(watcher, 70)
        assert _is_noted(world, each), each


def test_a_note_comes_back_as_it_was() -> None:
    waiting = {5: Candidate(1, frozenset({"a@1", "b@2"})), 6: Candidate(2, frozenset())}
    noted = Candidates(newest_id=7, waiting=waiting, brokers=frozenset({"c@3"}))
    assert candidates_of(noted.text()) == noted
    old = b'{"newest_id": 7, "waiting": {"5": [1, ["a@1", "b@2"]], "6": [2, []]}, "brokers": ["c@3"]}'
    assert candidates_of(old) == noted, "as an older version wrote it"
    noted.from_id, noted.behind, noted.seen = 3, 2, frozenset({5, 6, 7, 9})
    assert candidates_of(noted.text()) == noted
    many = Candidates(
        newest_id=0, waiting={each: Candidate(each, frozenset({f"{n}@1" for n in range(100)})) for each in range(100)}
    )
    assert candidates_of(many.text()) == many
    assert len(many.text()) < 10_000, "what ran then is written once"


@pytest.mark.parametrize("component", ["bucket", "compacted"])
def test_a_tenant_whose_cursor_names_and_drops_the_ledger_does_not_prevent_its_request(
    world: World, component: str
) -> None:
    world.list(100, at=HIS)
    name = CURSOR if component == "bucket" else "__compaction"
    put(world.tree, f"{HIS}/{name}", cursor_znode(-1))
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, DATA)
    claimed = {"buckets": [5]} if component == "bucket" else {"properties": {"CompactedTopicLedger": 5}}
    put(world.tree, f"{HIS}/{name}", cursor_znode(-1, **claimed))
    world.turns(watcher, 10)
    put(world.tree, f"{HIS}/{name}", cursor_znode(-1))
    world.turns(watcher, 10)
    _restart_broker(world)
    world.turns(watcher, HOUR_S + 300)
    assert DATA in world.topic.requests


def _later_leak_is_asked_about(world: World, watcher: Watcher) -> bool:
    _make(world, data_request(50))
    world.turns(watcher, 70)
    _restart_broker(world)
    world.turns(watcher, HOUR_S + 300)
    return data_request(50) in world.topic.requests


def test_a_tenant_with_many_of_them_leaves_room_for_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlisted, "_MOST_CANDIDATES", 5)
    world.list(100, at=HIS)
    odd = serialize_cursor(
        ManagedCursorInfo(
            cursors_ledger_id=-1,
            mark_delete_ledger_id=0,
            mark_delete_entry_id=0,
            cursor_properties={"#pulsar.internal.delayed.bucket_1_2": "x"},
        )
    )
    put(world.tree, f"{HIS}/bad", odd)  # so that the ledgers his topic needs are unknown
    world.broker.topics[HIS_TOPIC] = view(100)
    watcher = world.start()
    world.turns(watcher, 70)
    for each in range(10, 16):
        _make(world, data_request(each, HIS_TOPIC))
    world.turns(watcher, 70)
    assert _later_leak_is_asked_about(world, watcher)
    assert watcher_metric(world, "unlisted_left_total") > 0


def test_delayed_buckets_that_their_own_cursors_name_take_nobodys_room(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unlisted, "_MOST_CANDIDATES", 5)
    watcher = world.start()
    world.turns(watcher, 70)
    for each in range(10, 20):
        _make(world, bucket_request(each))
    put(world.tree, f"{managed_ledger_path(TOPIC)}/{CURSOR}", cursor_znode(-1, buckets=range(10, 20)))
    world.turns(watcher, 70)
    assert _later_leak_is_asked_about(world, watcher)
    assert not caplog.records, "none is left out"


def test_compacted_ledgers_that_came_and_went_take_nobodys_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlisted, "_MOST_CANDIDATES", 5)
    watcher = world.start()
    world.turns(watcher, 70)
    for each in range(10, 16):
        _make(world, compacted_request(each))
        world.broker.topics[TOPIC] = view(1, 2, compacted_ledger=each)
        world.turns(watcher, 70)
        for path in [path for path in world.tree.paths() if path.endswith(f"L{each - 1:04}") and each > 10]:
            world.tree.remove(path)
    assert _later_leak_is_asked_about(world, watcher)


def test_the_number_of_kept_candidates_is_shared_among_topics() -> None:
    assert sorted(shared([[1, 2, 3, 4, 5, 6], [7], [8, 9]], 5)) == [1, 2, 7, 8, 9]
    assert sorted(shared([[1, 2, 3, 4], [5, 6, 7, 8], [9]], 5)) == [1, 2, 5, 6, 9]
    assert shared([[1, 2], [3]], 9) == [3, 1, 2]
    assert shared([], 5) == []


def test_a_ledger_is_found_although_its_folder_could_not_be_listed_at_first(world: World) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, DATA)
    _make(world, data_request(10_001))  # in another folder
    world.list(1, 2, 10_001)
    world.store.unreadable.add("/ledgers/00/0000")
    world.turns(watcher, 300)
    world.store.unreadable.clear()
    world.turns(watcher, 70)
    _restart_broker(world)
    world.turns(watcher, HOUR_S + 300)
    assert DATA in world.topic.requests
    assert world.topic.ids.count(10_001) == 0


def test_a_folder_that_can_never_be_listed_does_not_hold_up_the_others_for_ever(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    world.store.unreadable.add("/ledgers/00/0001")
    put(world.tree, "/ledgers/00/0001")
    world.turns(watcher, 2 * HOUR_S)
    for each in (6, 7):
        _make(world, data_request(each))
        world.turns(watcher, 140)
    noted = candidates_of(world.parts.watched.notes[unlisted.NOTE])
    assert (noted.newest_id, noted.from_id) == (7, 7), "scans do not start where they did two hours ago"
    assert caplog.text.count("can't be listed for an hour") == 1


def test_a_ledger_that_is_written_after_a_higher_id_is_found(world: World) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, data_request(6))
    world.list(1, 2, 6)
    world.turns(watcher, 60)
    _make(world, DATA)  # its broker got the id before 6 was assigned, and wrote it after our scan
    world.turns(watcher, 70)
    _restart_broker(world)
    world.turns(watcher, HOUR_S + 300)
    assert world.topic.requests == [DATA]


@pytest.mark.parametrize("after_s", [10, 70, 130], ids=["at once", "after a look", "after two looks"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_ledger_that_a_list_named_for_a_moment_is_requested_once_though_the_watcher_is_killed(
    world: World, after_s: int, *, is_killed: bool
) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, DATA)
    world.list(1, 2, 5)
    world.turns(watcher, 10)
    world.list(1, 2)  # its broker dropped it, and died before it could delete it
    world.turns(watcher, after_s)
    if is_killed:
        watcher = world.start()
    world.turns(watcher, 70)
    _restart_broker(world)
    world.turns(watcher, 2 * HOUR_S)
    assert world.topic.requests == [DATA]


def test_a_ledger_that_the_last_scan_found_is_requested_once_though_the_watcher_is_killed_after_it(
    world: World,
) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    _make(world, DATA)
    world.list(1, 2, 5)
    world.turns(watcher, 60)  # a scan finds it listed
    scans = watcher.scans
    world.list(1, 2)
    watcher.turn()
    world.parts.outbox.publish_due(world.clock.now_ms() + DELAY_MS)
    assert watcher.scans == scans, "no scan comes before the end"
    assert world.topic.requests == [DATA]
    watcher = world.start()
    world.turns(watcher, 70)
    _restart_broker(world)
    world.turns(watcher, 2 * HOUR_S)
    assert world.topic.requests == [DATA]


def watcher_metric(world: World, name: str) -> float:
    return world.parts.metrics.registry.get_sample_value(f"ledger_reaper_watcher_{name}") or 0.0
