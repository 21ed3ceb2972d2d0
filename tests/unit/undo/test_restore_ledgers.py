"""The journal entries that an undo selects, and its report on the data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.memory.bookies import MemoryBookies
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.cli.undo import advice
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.coordination import identity
from streaming.errors import ConfigError, SafetyError
from streaming.ports import Bookies, StoredAnswers
from streaming.state.journal import JournalEntry, ParquetJournal
from streaming.undo.bookie_answers import judged
from streaming.undo.restore_ledgers import newest_of, restorable, undo_ledgers
from streaming.undo.undo_report import (
    GONE,
    HALF_STORED,
    NO_BOOKIE_READS,
    NO_ENTRIES_NAMED,
    NOT_CHECKED,
    NOT_READ,
    PARTLY_STORED,
    STORED,
    Undone,
    UndoReport,
    UndoResult,
    UndoSelection,
)
from tests.builders import (
    NOW_MS,
    ROOT,
    bucket_custom,
    compacted_custom,
    cursor_custom,
    data_custom,
    exists,
    metadata,
    put,
    reference,
    schema_custom,
)
from tests.placements import placed
from tests.services import command_clients_of
from udfs.formats.acl import ALL, AclEntry, acl_bytes
from udfs.formats.ledger_metadata import serialize_v3
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.paths import BROKERS


def _entry(
    ledger_id: int, custom: dict[str, bytes] | None = None, *, at_ms: int = 1, data: bytes = b""
) -> dict[str, Any]:
    body = data or serialize_v3(metadata(custom))
    return {"ledger_id": ledger_id, "path": f"{ROOT}/00/0000/L{ledger_id:04}", "at_ms": at_ms, "data": body}


def test_the_newest_of_several_entries_for_a_ledger_counts() -> None:
    entries = [_entry(5, at_ms=1), _entry(5, at_ms=3), _entry(5, at_ms=2), _entry(4, at_ms=9)]
    assert [(each["ledger_id"], each["at_ms"]) for each in newest_of(entries)] == [(4, 9), (5, 3)]


@pytest.mark.parametrize(
    ("custom", "topic", "is_meant"),
    [
        pytest.param(data_custom(), "public/default/persistent/orders", True, id="its data"),
        pytest.param(data_custom(), "persistent://public/default/orders", True, id="its data, by the full name"),
        pytest.param(
            data_custom("public/default/persistent/orders-partition-3"),
            "persistent://public/default/orders",
            True,
            id="a partition's",
        ),
        pytest.param(
            data_custom("public/default/persistent/orders2"),
            "persistent://public/default/orders",
            False,
            id="a longer name's",
        ),
        pytest.param(cursor_custom(), "persistent://public/default/orders", True, id="its cursor's"),
        pytest.param(schema_custom(), "persistent://public/default/orders", True, id="its schema"),
        pytest.param(
            schema_custom("public/default/other"), "persistent://public/default/orders", False, id="another's schema"
        ),
        pytest.param(compacted_custom(), "persistent://public/default/orders", True, id="its compacted form"),
        pytest.param(bucket_custom(), "persistent://public/default/orders", True, id="its delayed index"),
    ],
)
def test_a_topic_selects_all_ledgers_whose_metadata_name_it(
    custom: dict[str, bytes], topic: str, is_meant: bool
) -> None:
    assert bool(newest_of([_entry(5, custom)], topic)) is is_meant


def test_a_topic_does_not_mean_what_can_not_be_parsed() -> None:
    assert newest_of([_entry(5, data=b"\x00garbage")], "public/default/persistent/orders") == []


def test_a_topic_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--topic"):
        newest_of([_entry(5)], "persistent://")


@pytest.mark.parametrize(
    ("is_there", "away", "status", "told"),
    [
        pytest.param(True, (), Undone.PUT_BACK, "read from the bookies", id="in time"),
        pytest.param(False, (), Undone.UNREADABLE, NO_BOOKIE_READS, id="no bookie reads them"),
        pytest.param(False, ("b1", "b2"), Undone.UNREADABLE, "are away: b1, b2", id="a bookie is away"),
        pytest.param(None, (), Undone.PUT_BACK, NOT_READ, id="nobody knows"),
    ],
)
def test_an_undo_reports_whether_the_data_exist(
    is_there: bool | None, away: tuple[str, ...], status: Undone, told: str
) -> None:
    result = UndoResult(
        ledger_id=5, path=f"{ROOT}/00/0000/L0005", owner="orders", deleted_ms=1, status=Undone.PUT_BACK, last_entry_id=9
    )
    found = judged(result, is_there, away)
    assert found.status is status
    assert told in found.detail
    # even in time: a collection that had begun may still take it
    assert "readledger" in advice(UndoReport([found]))
    assert "Nothing restores a segment" not in advice(UndoReport([found]))
    of_segment = replace(found, owner="segment://public/default/orders/0000-7fff-0")
    assert "Nothing restores a segment" in advice(UndoReport([of_segment]))


class World:
    """A cluster whose deleted ledger 5 is in the journal, with an ACL of its own."""

    path = f"{ROOT}/00/0000/L0005"
    data = serialize_v3(metadata())
    acl = acl_bytes([AclEntry(ALL, "world", "anyone")])

    def __init__(self, state: Path) -> None:
        base = load(None)
        zookeeper = base.zookeeper.model_copy(update={"ledgers_root": ROOT})
        parts = {"state": base.state.model_copy(update={"dir": str(state)}), "zookeeper": zookeeper}
        self.settings = base.model_copy(update=parts)
        self.store = MemoryStore(MemoryTree(ManualClock(NOW_MS)))
        self.pulsar = MemoryPulsar()
        self.bookies: Bookies = MemoryBookies()
        put(self.store.tree, f"{ROOT}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
        put(self.store.tree, f"{ROOT}/INSTANCEID", b"id")
        put(self.store.tree, BROKERS)
        self.brokers = MemoryStore(self.store.tree)
        self.brokers.create(f"{BROKERS}/broker-1:8080", b"{}", ephemeral=True)
        entry = JournalEntry(
            ledger_id=5, path=self.path, data=self.data, version=0, acl=self.acl, reference=reference()
        )
        ParquetJournal(str(state), "requests", 1, ManualClock(NOW_MS)).write([entry])

    def results(self, *, dry_run: bool = False) -> list[UndoResult]:
        clients = command_clients_of(self.store, self.pulsar, bookies=self.bookies)
        return undo_ledgers(self.settings, clients, UndoSelection(ledger_id=5), dry_run=dry_run).results

    def undo(self) -> list[Undone]:
        return [each.status for each in self.results()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_ledger_is_restored_once_as_the_journal_has_it(world: World) -> None:
    (would,) = world.results(dry_run=True)
    assert would.status is Undone.WOULD_PUT_BACK
    assert would.detail == f"{NOT_CHECKED}: bookie {ONE_BOOKIE} does not answer"
    assert not exists(world.store.tree, world.path)

    assert world.undo() == [Undone.PUT_BACK]
    assert world.undo() == [Undone.EXISTS]

    assert world.store.tree.read(world.path).data == world.data
    assert world.store.acl_of(world.path) == world.acl


ENTRIES = {(5, 0), (5, metadata().last_entry_id)}
ONE_BOOKIE = "127.0.0.1:3181"  # of the ledger


@pytest.mark.parametrize(
    ("stored", "statuses", "has_entries", "told"),
    [
        pytest.param(ENTRIES, (Undone.WOULD_PUT_BACK, Undone.PUT_BACK), True, STORED, id="both entries"),
        pytest.param({(5, 0)}, (Undone.WOULD_PUT_BACK, Undone.PUT_BACK), False, HALF_STORED, id="one of them"),
        pytest.param(set(), (Undone.TOO_LATE, Undone.TOO_LATE), False, GONE, id="none"),
    ],
)
def test_bookies_are_asked_for_the_entries_before_anything_is_put_back(
    world: World, stored: set[tuple[int, int]], statuses: tuple[Undone, Undone], has_entries: bool, told: str
) -> None:
    bookies = world.bookies = MemoryBookies()
    bookies.stored_by = {ONE_BOOKIE: stored | {(900, 0)}}
    put(world.store.tree, f"{ROOT}/00/0000/L0900", placed((0, [ONE_BOOKIE]), write=1, ack=1, last=9))
    for is_dry, status in zip((True, False), statuses, strict=True):
        (result,) = world.results(dry_run=is_dry)
        assert (result.status, result.has_entries, result.detail) == (status, has_entries, told)
    assert exists(world.store.tree, world.path) is (Undone.PUT_BACK in statuses)


@pytest.mark.parametrize(
    "control",
    [
        pytest.param(None, id="no ledger is closed"),
        pytest.param(placed((0, ["another"]), write=1, ack=1, last=9), id="its ledgers are on another bookie"),
        pytest.param(placed((0, [ONE_BOOKIE]), write=1, ack=1, last=9), id="another cluster's bookie answers there"),
    ],
)
def test_a_bookie_that_has_no_entry_of_this_cluster_is_not_believed(world: World, control: bytes | None) -> None:
    bookies = world.bookies = MemoryBookies()
    bookies.stored_by = {ONE_BOOKIE: set()}
    if control:
        put(world.store.tree, f"{ROOT}/00/0000/L0900", control)
    (result,) = world.results()
    assert (result.status, result.has_entries) == (Undone.PUT_BACK, None)
    assert exists(world.store.tree, world.path)


def test_only_the_bookies_that_may_have_the_entries_are_named(tmp_path: Path) -> None:
    world = OnTwoBookies(tmp_path)
    bookies = world.bookies = MemoryBookies()
    bookies.stored_by = {"a": {(5, 0)}}
    (result,) = world.results(dry_run=True)
    assert result.detail == f"{NOT_CHECKED}: bookie b does not answer"


def test_of_a_ledger_without_a_last_entry_no_bookie_is_blamed(tmp_path: Path) -> None:
    world = StillOpen(tmp_path)
    (result,) = world.results(dry_run=True)
    assert (result.status, result.detail) == (Undone.WOULD_PUT_BACK, f"{NOT_CHECKED}: {NO_ENTRIES_NAMED}")


class StillOpen(World):
    """A ledger that was OPEN when it was deleted."""

    data = placed((0, "a"), write=1, ack=1)


class Striped(World):
    """A ledger whose first and last entry are on bookies a and b only, and others on b and c, and on c and a."""

    data = placed((0, "abc"), write=2, ack=2, last=9)


class OnAThird(World):
    """A ledger that was on bookie c, too, while a was away."""

    data = placed((0, "a"), (3, "c"), (7, "a"), write=1, ack=1, last=9)


@pytest.mark.parametrize("kind", [Striped, OnAThird])
@pytest.mark.parametrize(
    ("on_c", "status", "told"),
    [
        pytest.param({(900, 0), (5, 3), (5, 8)}, Undone.PUT_BACK, PARTLY_STORED, id="it has some"),
        pytest.param({(900, 0)}, Undone.TOO_LATE, GONE, id="it has none"),
        pytest.param(None, Undone.PUT_BACK, NOT_READ, id="it does not answer"),
    ],
)
def test_a_bookie_may_have_entries_although_no_bookie_has_the_first_or_the_last(
    tmp_path: Path, kind: type[World], on_c: set[tuple[int, int]] | None, status: Undone, told: str
) -> None:
    world = kind(tmp_path)
    bookies = world.bookies = MemoryBookies()
    bookies.stored_by = {"a": {(900, 0)}, "b": {(900, 0)}}
    if on_c is not None:
        bookies.stored_by["c"] = on_c
    put(world.store.tree, f"{ROOT}/00/0000/L0900", placed((0, "abc"), write=3, ack=3, last=9))
    (result,) = world.results()
    assert result.status is status
    assert told in result.detail
    assert exists(world.store.tree, world.path) is (status is Undone.PUT_BACK)


class OnTwoBookies(World):
    """A ledger whose first entry is on bookie a, and whose last entry is on bookie b."""

    data = placed((0, "a"), (7, "b"), write=1, ack=1, last=9)


@pytest.mark.parametrize(
    ("stored_by", "status", "told"),
    [
        pytest.param({"a": set(), "b": set()}, Undone.TOO_LATE, GONE, id="both answer that they have none"),
        pytest.param({"a": set()}, Undone.PUT_BACK, NOT_READ, id="b, which may have the last entry, does not answer"),
        pytest.param({"b": set()}, Undone.PUT_BACK, NOT_READ, id="a, which may have the first entry, does not answer"),
        pytest.param({"a": set(), "b": {(5, 9)}}, Undone.PUT_BACK, HALF_STORED, id="b has the last entry"),
    ],
)
def test_an_undo_is_too_late_only_if_it_is_known_of_both_entries(
    tmp_path: Path, stored_by: dict[str, set[tuple[int, int]]], status: Undone, told: str
) -> None:
    world = OnTwoBookies(tmp_path)
    bookies = world.bookies = MemoryBookies()
    bookies.stored_by = {bookie: {*entries, (900, 0)} for bookie, entries in stored_by.items()}
    put(world.store.tree, f"{ROOT}/00/0000/L0900", placed((0, "ab"), write=2, ack=2, last=9))
    (result,) = world.results()
    assert result.status is status
    assert told in result.detail


@pytest.mark.parametrize("answers", [[False, None], [None, False]])
def test_an_undo_is_not_too_late_if_every_bookie_has_both_entries_and_one_answers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[bool | None]
) -> None:
    world = OnAllBookies(tmp_path)
    world.bookies = MemoryBookies()
    stored = StoredAnswers(answers, {"a": "was busy"})
    monkeypatch.setattr(world.bookies, "stored", lambda entries, _control: stored if entries else StoredAnswers([], {}))
    (result,) = world.results()
    assert result.status is Undone.PUT_BACK
    assert result.detail == f"its metadata are back; {NOT_CHECKED}: bookie a was busy, {NOT_READ}"


class OnAllBookies(World):
    """A ledger of which each bookie has all entries."""

    data = placed((0, "ab"), write=2, ack=2, last=9)


def test_metadata_of_entries_that_a_bookie_stores_are_not_removed_although_no_client_reads_them(world: World) -> None:
    bookies = world.bookies = MemoryBookies()
    bookies.stored_by = {ONE_BOOKIE: ENTRIES}
    bookies.addresses = {ONE_BOOKIE: "http://b1:8000"}
    bookies.entries = {(900, 0)}  # of the control entries only
    world.pulsar.store(f"{world.settings.topics.requests[0]}-partition-0", (900, 2))
    (result,) = world.results()
    assert result.status is Undone.UNREADABLE
    assert exists(world.store.tree, world.path)


def test_a_ledger_that_exists_is_never_written_over(world: World) -> None:
    put(world.store.tree, world.path, b"another's")
    assert world.undo() == [Undone.EXISTS]
    assert world.store.tree.read(world.path).data == b"another's"


def test_nothing_is_restored_into_another_cluster(world: World) -> None:
    there = identity.of_cluster(world.settings, world.store, MemoryPulsar())
    identity.hold(replace(there, instance_id="another"), world.settings.state.dir)
    with pytest.raises(SafetyError, match="belongs to another cluster"):
        world.undo()
    assert not exists(world.store.tree, world.path)


@pytest.mark.parametrize("dry_run", [False, True])
def test_nothing_is_restored_in_a_store_that_the_cluster_leaves(world: World, *, dry_run: bool) -> None:
    """The metadata would be created where no bookie looks for it."""
    put(world.store.tree, MIGRATION_PATH, b'{"phase":"COMPLETED","targetUrl":"oxia://oxia1:6648/default"}')
    with pytest.raises(SafetyError, match="has phase COMPLETED"):
        world.results(dry_run=dry_run)
    assert not exists(world.store.tree, world.path)


def test_a_ledger_that_the_journal_does_not_have_is_reported(world: World) -> None:
    with pytest.raises(ConfigError, match="has no such ledger"):
        undo_ledgers(world.settings, command_clients_of(world.store), UndoSelection(ledger_id=6))


def test_what_can_be_restored_is_read_without_restoring_it(world: World) -> None:
    clients = command_clients_of(world.store, world.pulsar, bookies=world.bookies)
    found = restorable(world.settings, clients, [5, 6])
    assert {ledger_id: result.status for ledger_id, result in found.items()} == {5: Undone.WOULD_PUT_BACK}
    assert not exists(world.store.tree, world.path)
    put(world.store.tree, world.path, b"another's")
    assert restorable(world.settings, clients, [5])[5].status is Undone.EXISTS


def test_another_clusters_journal_restores_nothing_here(world: World) -> None:
    there = identity.of_cluster(world.settings, world.store, MemoryPulsar())
    identity.hold(replace(there, instance_id="another"), world.settings.state.dir)
    with pytest.raises(SafetyError, match="belongs to another cluster"):
        restorable(world.settings, command_clients_of(world.store, world.pulsar), [5])
