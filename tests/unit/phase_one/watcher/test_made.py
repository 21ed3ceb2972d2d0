"""A ledger that was made and never listed is asked about when a broker of its time is gone, and not before."""

from pathlib import Path

import pytest

from streaming.phase_one.watcher import made
from streaming.phase_one.watcher.made import BROKERS, Candidate, Candidates, candidates_of
from tests.builders import TOPIC, compacted_request, custom_of, data_request, metadata, put, view
from tests.unit.phase_one.watcher.watching import PATIENCE_MS, World
from udfs.formats.ledger_metadata import serialize_v3
from udfs.records import PendingDelete, Presence

HOUR_S = PATIENCE_MS // 1000
DATA, COMPACTED = data_request(5), compacted_request(5)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Ledgers 1 and 2 are there and listed, 3 is an old leak, and two brokers run."""
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
    return ledger_id in candidates_of(world.parts.watched.notes[made.NOTE]).waiting


@pytest.mark.parametrize("is_restarted", [False, True], ids=["it runs on", "the watcher starts anew"])
def test_it_is_asked_about_when_it_is_old_and_a_broker_has_gone(world: World, *, is_restarted: bool) -> None:
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


def test_what_was_made_and_dropped_while_the_watcher_was_away_is_asked_about_if_a_broker_went_too(
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


def test_a_ledger_that_came_and_went_between_two_looks_is_asked_about_once(world: World) -> None:
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


def test_a_broker_that_began_after_it_says_nothing(world: World) -> None:
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
    assert _is_noted(world, 5) == what.endswith("can't be read"), "what could not be told is asked again"


def test_the_first_start_leaves_what_is_there_to_the_audit(world: World) -> None:
    watcher = world.start()
    world.turns(watcher, 70)
    found = candidates_of(world.parts.watched.notes[made.NOTE])
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
    noted = Candidates(7, waiting, frozenset({"c@3"}))
    assert candidates_of(noted.text()) == noted
