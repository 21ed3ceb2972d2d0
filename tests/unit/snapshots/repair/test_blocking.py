"""Messages that no broker can decode are taken away, and nothing else is."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.clock import ManualClock
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.snapshots.repair.blocking import Blocking, blocking_in, in_doubt
from streaming.snapshots.repair.repair_journal import RepairJournal
from streaming.state.filesystem import Folder
from tests.unit.snapshots.repair_world import OLD, SPACE, TOPIC, World, doubled, entries, repairs
from udfs.formats.entry import Content
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.avro_schemas import SchemaOrigin
from udfs.snapshots.codec import Snapshot, decode_snapshot
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import empty_index
from udfs.snapshots.values import Fault, ReadValue, read_message
from udfs.undelivered import Undeliverable, UndeliveredMessage

GARBAGE = b"\xff\xff"


def _read(kind: SnapshotKind, at: Position, key: str | None, value: bytes | None) -> ReadValue:
    name = None if key is None else key.encode()
    found = UndeliveredMessage(
        batch_index=-1, content=Content(key=name, payload=value or b"", properties={}, is_null=value is None)
    )
    return read_message(kind, SPACE, at, found, lambda _version: SchemaOrigin.BROKERS)


@dataclass
class Store:
    """The two topics that brokers read as a whole. messages: of each, in order. meanwhile: written before that read."""

    messages: dict[SnapshotKind, list[tuple[str | None, bytes | None]]]
    sent: list[tuple[SnapshotKind, str, bytes | None]] = field(default_factory=list)
    compacts: bool = True
    compacted_kinds: list[SnapshotKind] = field(default_factory=list)
    keeps: frozenset[str] = frozenset()  # keys that no compaction takes away
    meanwhile: tuple[str, bytes] | None = None
    meanwhile_at: int = 2
    reads: int = 0
    fails_at: str = ""
    reads_as: dict[Position, ReadValue] = field(default_factory=dict)  # until the first compaction

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        return set(self.messages)

    def last(self, namespace: str, kind: SnapshotKind) -> Position:
        return (7, len(self.messages[kind]) - 1)

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        self.reads += 1
        if self.reads == self.meanwhile_at and self.meanwhile is not None:
            self.messages[kind].append(self.meanwhile)
        rows = list(self.messages[kind])
        for number, (key, value) in enumerate(rows):
            read = self.reads_as.get((7, number)) or _read(kind, (7, number), key, value)
            yield replace(read, data=value or b"") if read.key in with_bytes_of else replace(read, data=b"")

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        if key == self.fails_at:
            raise UnavailableError("no answer")
        self.sent.append((kind, key, value))
        self.messages[kind].append((key, value))
        return self.last(namespace, kind)

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        if self.compacts:
            self.compacted_kinds.append(kind)
            self.reads_as.clear()
            rows = self.messages[kind]
            last = {key: value for key, value in rows if key is not None}
            kept = [(key, value) for key, value in rows if key in self.keeps and value == GARBAGE]
            live: list[tuple[str | None, bytes | None]] = [
                (key, value) for key, value in last.items() if value is not None
            ]
            self.messages[kind] = kept + live
        return self.compacts


def _store(*rows: tuple[str | None, bytes | None], kind: SnapshotKind = SnapshotKind.INDEX) -> Store:
    return Store({kind: [(TOPIC, OLD if kind is SnapshotKind.INDEX else b"\x00"), *rows]})


def _blocking(store: Store, journal: Folder) -> Blocking:
    return Blocking(store, RepairJournal(journal, ManualClock(1_000)))


def _remove(store: Store, journal: Folder) -> None:
    blocking = _blocking(store, journal)
    blocking.remove(SPACE, blocking.messages(SPACE))


def test_just_the_message_is_removed_and_what_it_was_is_in_the_journal_before(journal: Folder) -> None:
    store = _store(("no key of ours", GARBAGE), ("odd", OLD), (None, GARBAGE))
    _remove(store, journal)
    assert store.sent == [(SnapshotKind.INDEX, "no key of ours", None)]
    assert store.messages[SnapshotKind.INDEX] == [(TOPIC, OLD), ("odd", OLD)]
    assert len(entries(journal)) == 1


@pytest.mark.parametrize("kind", [SnapshotKind.INDEX, SnapshotKind.SINGLE])
def test_a_key_that_names_a_topic_gets_what_has_its_broker_read_the_topic_again(
    kind: SnapshotKind, journal: Folder
) -> None:
    store = _store((TOPIC, GARBAGE), kind=kind)
    _remove(store, journal)
    ((_kind, key, value),) = store.sent
    assert (key, value is None) == (TOPIC, False)
    if kind is SnapshotKind.INDEX:
        assert value == empty_index(TOPIC)
    else:
        found = decode_snapshot(value or b"")
        assert isinstance(found, Snapshot)
        assert (found.topic, found.max_read, found.aborts.rows) == (TOPIC, BEFORE_ALL, 0)


def test_a_value_of_its_own_topic_is_never_replaced_whatever_it_was_called(journal: Folder) -> None:
    store = _store()
    living = replace(_read(SnapshotKind.INDEX, (7, 0), TOPIC, OLD), fault=Fault.FOREIGN_SCHEMA, is_blocking=True)
    store.reads_as[7, 0] = living
    with pytest.raises(SafetyError, match="is a value of its own topic"):
        _blocking(store, journal).remove(SPACE, [living])
    assert (store.sent, entries(journal)) == ([], [])


@pytest.mark.parametrize("key", [TOPIC, "odd"])
@pytest.mark.parametrize(
    ("value", "version"), [(OLD + b"\x02", b"newer"), (OLD + b"\x02", b"")], ids=["added", "without a schema"]
)
def test_what_another_version_of_pulsar_may_have_written_is_not_removed(
    key: str, value: bytes, version: bytes, journal: Folder
) -> None:
    found = UndeliveredMessage(
        batch_index=-1, content=Content(key=key.encode(), payload=value, properties={}, schema_version=version)
    )
    read = read_message(SnapshotKind.INDEX, SPACE, (7, 1), found, lambda _version: SchemaOrigin.UNKNOWN)
    store = _store((key, value))
    store.reads_as[7, 1] = read
    assert _blocking(store, journal).messages(SPACE) == []
    assert [each.position for each in _blocking(store, journal).doubtful(SPACE)] == ([(7, 1)] if version else [])
    _blocking(store, journal).remove(SPACE, [replace(read, is_blocking=True)])
    assert (store.sent, entries(journal)) == ([], [])


def test_garbage_with_a_schema_version_that_is_not_registered_is_removed_and_put_back(journal: Folder) -> None:
    store = _store(("evil", GARBAGE), ("odd", OLD))
    for entry, (key, value) in enumerate(store.messages[SnapshotKind.INDEX][1:], 1):
        content = Content(key=str(key).encode(), payload=value or b"", properties={}, schema_version=b"99")
        found = UndeliveredMessage(batch_index=-1, content=content)
        read = read_message(SnapshotKind.INDEX, SPACE, (7, entry), found, lambda _version: SchemaOrigin.UNREGISTERED)
        store.reads_as[7, entry] = read
    _remove(store, journal)
    assert store.sent == [(SnapshotKind.INDEX, "evil", None)]
    assert _blocking(store, journal).doubtful(SPACE) == []
    assert _blocking(store, journal).undo(SPACE) == (1, [])
    assert store.sent[1:] == [(SnapshotKind.INDEX, "evil", GARBAGE)]


def test_what_stays_is_named_with_the_way_out() -> None:
    said = in_doubt(SPACE, [_read(SnapshotKind.INDEX, (7, number), "odd", GARBAGE) for number in range(7)])
    assert "7 messages" in said
    assert "__transaction_buffer_snapshot_indexes 7:4 (key 'odd'" in said
    assert "and 2 more" in said
    assert f"snapshots repair --unknown-schemas --namespace {SPACE}" in said


def test_an_encrypted_message_is_replaced_whatever_its_bytes_are(journal: Folder) -> None:
    store = _store()
    encrypted = UndeliveredMessage(
        batch_index=-1,
        content=Content(key=TOPIC.encode(), payload=OLD, properties={}),
        why=Undeliverable.ENCRYPTED,
        detail="encrypted",
    )
    read = read_message(SnapshotKind.INDEX, SPACE, (7, 0), encrypted, lambda _version: SchemaOrigin.BROKERS)
    store.reads_as[7, 0] = read
    _blocking(store, journal).remove(SPACE, [read])
    assert store.sent == [(SnapshotKind.INDEX, TOPIC, empty_index(TOPIC))]


def test_one_that_was_replaced_already_needs_a_compaction_only(journal: Folder) -> None:
    store = _store((TOPIC, GARBAGE), (TOPIC, OLD))
    _remove(store, journal)
    assert (store.sent, store.compacted_kinds) == ([], [SnapshotKind.INDEX])
    assert store.messages[SnapshotKind.INDEX] == [(TOPIC, OLD)]


@pytest.mark.parametrize("at", [2, 3])
def test_what_its_broker_wrote_meanwhile_stays(at: int, journal: Folder) -> None:
    store = _store((TOPIC, GARBAGE))
    store.meanwhile_at = at
    blocking = _blocking(store, journal)
    shown = blocking.messages(SPACE)
    store.meanwhile = (TOPIC, OLD)
    blocking.remove(SPACE, shown)
    assert store.sent == []


def test_a_message_that_the_operator_was_not_shown_stays_and_is_told(journal: Folder) -> None:
    store = _store(("odd", GARBAGE))
    blocking = _blocking(store, journal)
    shown = blocking.messages(SPACE)
    store.messages[SnapshotKind.INDEX].append(("odd", b"other garbage"))
    with pytest.raises(SafetyError, match="1 messages that no broker can decode are left"):
        blocking.remove(SPACE, shown)
    assert store.sent == []


def test_where_nothing_blocks_nothing_is_done(journal: Folder) -> None:
    store = _store(("odd", OLD))
    assert _blocking(store, journal).messages(SPACE) == []
    _blocking(store, journal).remove(SPACE, [])
    assert (store.sent, store.compacted_kinds, entries(journal)) == ([], [], [])


def test_a_compaction_that_does_not_end_and_a_message_that_stays_are_told(journal: Folder) -> None:
    store = _store(("odd", GARBAGE))
    store.compacts = False
    with pytest.raises(UnavailableError, match="has not ended yet: run the same command again"):
        _remove(store, journal)
    stays = _store(("odd", GARBAGE))
    stays.keeps = frozenset({"odd"})
    with pytest.raises(SafetyError, match=r"are left: __transaction_buffer_snapshot_indexes 7:0 \(key 'odd'"):
        _remove(stays, journal)


def test_an_undo_publishes_the_bytes_again(journal: Folder) -> None:
    store = _store(("odd", GARBAGE), (TOPIC, GARBAGE))
    _remove(store, journal)
    store.sent.clear()
    assert _blocking(store, journal).undo(SPACE) == (2, [])
    assert set(store.sent) == {(SnapshotKind.INDEX, "odd", GARBAGE), (SnapshotKind.INDEX, TOPIC, GARBAGE)}
    assert _blocking(store, journal).undo(SPACE) == (0, [])  # they are there already


def test_an_undo_leaves_what_a_broker_has_written_since(journal: Folder) -> None:
    store = _store((TOPIC, GARBAGE))
    _remove(store, journal)
    store.messages[SnapshotKind.INDEX].append((TOPIC, OLD))
    store.sent.clear()
    assert _blocking(store, journal).undo(SPACE) == (0, [TOPIC])
    assert store.sent == []


def test_an_undo_of_nothing_says_so(journal: Folder) -> None:
    with pytest.raises(ConfigError, match="holds no message of t/ns"):
        _blocking(_store(), journal).undo(SPACE)


def test_a_removal_that_broke_off_is_run_again(journal: Folder) -> None:
    store = _store(("one", GARBAGE), ("two", GARBAGE))
    store.fails_at = "two"
    with pytest.raises(UnavailableError):
        _remove(store, journal)
    store.fails_at = ""
    _remove(store, journal)
    assert store.messages[SnapshotKind.INDEX] == [(TOPIC, OLD)]
    assert _blocking(store, journal).undo(SPACE) == (2, [])


@pytest.mark.parametrize("world", [World(), doubled()], ids=["a lost segment", "doubled ids"])
@pytest.mark.parametrize("what", ["repair", "undo"])
def test_a_topic_is_not_repaired_while_none_of_the_namespace_loads(world: World, what: str, journal: Folder) -> None:
    world.indexes.insert(0, _read(SnapshotKind.INDEX, (1, 0), "odd", GARBAGE))
    found = repairs(world, journal)
    with pytest.raises(SafetyError, match=r"1:0 \(key 'odd'.*snapshots repair --namespace t/ns"):
        (found.repair if what == "repair" else found.undo)(TOPIC)
    assert world.done == []


def test_no_topic_that_is_missing_is_read() -> None:
    class Nothing:
        def compacted(self, *_each: object) -> Iterator[ReadValue]:
            raise RefusedError("there is no such topic")

    assert blocking_in(cast(SnapshotTopics, Nothing()), SPACE, {SnapshotKind.SEGMENT}) == []


def test_an_encrypted_message_without_a_key_needs_a_compaction_only(journal: Folder) -> None:
    found = UndeliveredMessage(
        batch_index=-1,
        content=Content(key=None, payload=GARBAGE, properties={}),
        why=Undeliverable.ENCRYPTED,
        detail="the payload is encrypted",
    )
    read = read_message(SnapshotKind.INDEX, SPACE, (7, 1), found, lambda _version: SchemaOrigin.BROKERS)
    store = _store()
    _blocking(store, journal).remove(SPACE, [read])
    assert (store.sent, store.compacted_kinds) == ([], [SnapshotKind.INDEX])
