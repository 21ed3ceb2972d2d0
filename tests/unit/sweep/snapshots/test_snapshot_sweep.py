"""Tombstones for snapshots: their order, the checks before and after them, and messages that are published again."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import pytest

from streaming.errors import FencedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.state.journal import SnapshotEntry
from streaming.sweep.jobs import Job, Swept
from streaming.sweep.snapshots.snapshot_jobs import Snapshots
from streaming.sweep.snapshots.snapshot_stores import DryRunSnapshots
from streaming.sweep.snapshots.snapshot_sweep import SnapshotSweeper
from tests.builders import MINUTE_MS, TOPIC, list_znode, put, snapshot_request, view
from tests.world import EPOCH, Bench
from udfs.formats.entry import Content
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.paths import managed_ledger_path, topic_of
from udfs.records import Outcome, PendingDelete, Reason, SnapshotContext
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.avro_schemas import SchemaOrigin
from udfs.snapshots.codec import Index, Segment, Snapshot, encode_index, encode_segment, encode_snapshot, entries_of
from udfs.snapshots.keys import SegmentKey, SnapshotKind, is_keeper
from udfs.snapshots.values import ReadValue, read_message
from udfs.undelivered import UndeliveredMessage

SPACE = "public/default"
OWNER = topic_of(TOPIC)
SINGLE, SEGMENT, INDEX = SnapshotKind.SINGLE, SnapshotKind.SEGMENT, SnapshotKind.INDEX


def segment(number: int) -> bytes:
    return encode_segment(Segment(OWNER, number, (8, number), ids_of([(0, number)])))


def index(*named: tuple[int, Position]) -> bytes:
    rows = [(number, place, (8, number)) for number, place in named]
    return encode_index(Index(OWNER, entries_of(rows), (8, 99), ids_of([])))


@dataclass
class Compacted:
    """The snapshot topics of a namespace."""

    publish_ms: int
    messages: dict[SnapshotKind, list[ReadValue]] = field(default_factory=lambda: {SINGLE: [], SEGMENT: [], INDEX: []})
    guarded: bool = True
    down: bool = False
    sent: list[tuple[SnapshotKind, str, bytes | None]] = field(default_factory=list)
    compactions: list[SnapshotKind] = field(default_factory=list)
    horizon: dict[SnapshotKind, int] = field(default_factory=dict)
    too_early: int = 0
    on_send: Callable[[], None] = lambda: None  # runs right before a message is stored
    on_sent: Callable[[], None] = lambda: None  # runs right after a message is stored
    is_deaf: bool = False
    fails: Callable[[str], None] = lambda _where: None

    def add(self, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        place = (100, len(self.messages[kind]))
        content = Content(key=key.encode(), payload=value or b"", properties={}, is_null=value is None)
        found = UndeliveredMessage(batch_index=-1, content=content, publish_ms=self.publish_ms)
        read = read_message(kind, SPACE, place, found, lambda _version: SchemaOrigin.BROKERS)
        self.messages[kind].append(replace(read, data=value or b""))
        return place

    def segments(self, *numbers: int) -> list[Position]:
        return [self.add(SEGMENT, str(SegmentKey(number, OWNER)), segment(number)) for number in numbers]

    def __call__(self) -> AbstractContextManager[Snapshots]:
        return nullcontext(self)

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        if self.down:
            raise UnavailableError("no broker answers")
        return {kind for kind, messages in self.messages.items() if messages}

    def last(self, namespace: str, kind: SnapshotKind) -> Position:
        return self.messages[kind][-1].position

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        done = self.horizon.get(kind, 0)
        before, after = self.messages[kind][:done], self.messages[kind][done:]
        latest = {read.key: read for read in before}
        return iter([*(read for read in before if read is latest[read.key] and not read.is_null), *after])

    def stored(
        self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL, with_bytes_of: Collection[str] = ()
    ) -> Iterator[ReadValue]:
        self.fails("stored")
        return iter([read for read in self.messages[kind] if read.position > after])

    def is_guarded(self, namespace: str) -> bool:
        return self.guarded

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        act, self.on_send = self.on_send, lambda: None
        act()
        self.fails("before")
        self.sent.append((kind, key, value))
        place = (100, 999) if self.is_deaf else self.add(kind, key, value)
        then, self.on_sent = self.on_sent, lambda: None
        then()
        self.fails("after")
        return place

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        self.fails("compact")
        self.compactions.append(kind)
        if self.too_early:
            self.too_early -= 1
        else:
            self.horizon[kind] = len(self.messages[kind])
        return True

    @property
    def tombstones(self) -> list[str]:
        return [key for _kind, key, value in self.sent if value is None]


@dataclass
class RecordingJournal:
    """A journal that records how many messages had been sent at each write."""

    topics: Compacted
    entries: list[SnapshotEntry] = field(default_factory=list)
    sent_before: list[int] = field(default_factory=list)
    is_full: bool = False

    def newest_snapshots(self, topic: str, keys: Collection[str]) -> dict[str, tuple[Position, bytes]]:
        written = [entry for entry in self.entries if entry.topic == topic and entry.key in keys]
        return {entry.key: ((entry.ledger_id, entry.entry_id), entry.value) for entry in written}

    def write_snapshots(self, entries: Sequence[SnapshotEntry]) -> None:
        if self.is_full:
            raise UnavailableError("disk full")
        self.entries += entries
        self.sent_before.append(len(self.topics.sent))


@dataclass
class World:
    """A gone topic with two segments, an index and a single snapshot; all old, and first checked long ago."""

    bench: Bench = field(default_factory=Bench)

    def __post_init__(self) -> None:
        self.topics = Compacted(self.bench.clock.now_ms())
        self.journal = RecordingJournal(self.topics)
        places = self.topics.segments(0, 1)
        self.topics.add(INDEX, OWNER, index((0, places[0]), (1, places[1])))
        self.topics.add(SINGLE, OWNER, encode_snapshot(Snapshot(OWNER, (8, 0), aborts_of([(0, 1, 8, 0)]))))
        self.bench.age()

    def revive(self) -> None:
        self.bench.owner(managed_ledger_path(TOPIC), list_znode(8))
        self.bench.broker.topics[TOPIC] = view(8)

    def sweep(self, *requests: PendingDelete, first_look: bool = False, is_dry: bool = False) -> list[Swept]:
        seen_ms = None if first_look else self.bench.clock.now_ms() - 11 * MINUTE_MS
        topics: Snapshots = self.topics
        opened = (lambda: nullcontext(DryRunSnapshots(topics))) if is_dry else self.topics
        sweeper = SnapshotSweeper(opened, self.bench.loader(), self.journal, self.bench.clock, self.bench.rules())
        return sweeper.sweep([Job(request, seen_ms) for request in requests], {})


ALL = (
    snapshot_request(INDEX, place=(100, 0)),
    snapshot_request(SINGLE, place=(100, 0)),
    snapshot_request(SEGMENT, 0, (100, 0)),
    snapshot_request(SEGMENT, 1, (100, 1)),
)


def results(swept: Sequence[Swept]) -> list[tuple[Outcome, Reason]]:
    return [(result.verdict.outcome, result.verdict.reason) for result in swept]


@pytest.fixture
def world() -> World:
    return World()


def test_segments_of_a_gone_topic_get_tombstones_before_its_index_and_a_live_record_follows_them(world: World) -> None:
    swept = world.sweep(*ALL)
    assert results(swept) == [(Outcome.DELETED, Reason.OWNER_GONE)] * 4
    assert [result.length_bytes > 0 for result in swept] == [True] * 4
    segments = [str(SegmentKey(number, OWNER)) for number in (0, 1)]
    assert world.topics.tombstones == [*segments, OWNER, OWNER]
    assert [kind for kind, _key, value in world.topics.sent if value is None] == [SEGMENT, SEGMENT, SINGLE, INDEX]
    (keeper,) = [(kind, key) for kind, key, value in world.topics.sent if value is not None]
    assert keeper[0] is SEGMENT
    assert is_keeper(keeper[1])
    assert world.topics.compactions == [SEGMENT, SINGLE, INDEX]
    assert isinstance(world.topics.messages[SEGMENT][-1].value, Segment)


def test_the_bytes_are_in_the_journal_before_their_tombstone_is_sent(world: World) -> None:
    world.sweep(*ALL)
    assert world.journal.sent_before == [0, 3, 4]  # the keeper follows both segments
    kept = {(entry.topic.rsplit("/", 1)[1], entry.key): entry.value for entry in world.journal.entries}
    assert kept[str(SEGMENT), str(SegmentKey(1, OWNER))] == segment(1)
    assert {entry.uuid for entry in world.journal.entries} == {"entry 0", "entry 1"}


def test_a_journal_that_is_full_keeps_everything(world: World) -> None:
    world.journal.is_full = True
    with pytest.raises(UnavailableError):
        world.sweep(*ALL)
    assert world.topics.sent == []


def test_the_first_check_sends_nothing(world: World) -> None:
    swept = world.sweep(*ALL, first_look=True)
    assert {reason for _outcome, reason in results(swept)} == {Reason.OWNER_ABSENT_ONCE}
    assert world.topics.sent == []
    assert swept[2].absent_since_ms == world.bench.clock.now_ms()


def test_an_index_waits_for_segments_without_a_request(world: World) -> None:
    (swept,) = world.sweep(ALL[0])
    assert (swept.verdict.reason, swept.absent_since_ms) == (
        Reason.OWNER_ABSENT_ONCE,
        world.bench.clock.now_ms() - 11 * MINUTE_MS,
    )
    assert "segments of its topic have to go first" in swept.verdict.detail
    assert world.topics.sent == []


def test_a_dry_run_returns_the_same_and_sends_nothing(world: World) -> None:
    assert results(world.sweep(*ALL, is_dry=True)) == [(Outcome.DELETED, Reason.OWNER_GONE)] * 4
    assert world.topics.sent == []


def test_nothing_of_a_live_topic_is_removed(world: World) -> None:
    world.revive()
    assert results(world.sweep(*ALL)) == [(Outcome.RETRY, Reason.IN_USE)] * 4
    assert world.topics.sent == []


def test_a_segment_that_a_live_topics_index_no_longer_names_is_removed(world: World) -> None:
    world.revive()
    world.topics.add(INDEX, OWNER, index((1, (100, 1))))
    assert results(world.sweep(ALL[2])) == [(Outcome.DELETED, Reason.UNREFERENCED)]
    assert world.topics.tombstones == [str(SegmentKey(0, OWNER))]


def test_a_segment_that_an_index_names_in_between_is_published_again(world: World) -> None:
    world.revive()
    old = index((0, (100, 0)), (1, (100, 1)))
    world.topics.add(INDEX, OWNER, index((1, (100, 1))))
    world.topics.on_send = lambda: world.topics.add(INDEX, OWNER, old) and None
    assert results(world.sweep(ALL[2])) == [(Outcome.RETRY, Reason.OWNER_CHANGED)]
    assert world.topics.sent[-1] == (SEGMENT, str(SegmentKey(0, OWNER)), segment(0))
    assert world.topics.compactions == []


def test_a_value_written_in_between_is_published_again(world: World) -> None:
    newer = encode_snapshot(Snapshot(OWNER, (9, 0), aborts_of([(0, 7, 9, 0)])))
    world.topics.on_send = lambda: world.topics.add(SINGLE, OWNER, newer) and None
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.OWNER_CHANGED)]
    assert world.topics.sent[-1] == (SINGLE, OWNER, newer)


def test_a_value_written_right_before_the_bytes_are_published_again_is_published_instead(world: World) -> None:
    newer = encode_snapshot(Snapshot(OWNER, (9, 0), aborts_of([(0, 7, 9, 0)])))

    def revive_and_write() -> None:
        world.revive()
        world.topics.on_send = lambda: world.topics.add(SINGLE, OWNER, newer) and None

    world.topics.on_sent = revive_and_write
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.OWNER_CHANGED)]
    assert world.topics.sent[0] == (SINGLE, OWNER, None)
    assert world.topics.messages[SINGLE][-1].data == newer


def test_a_newer_value_after_our_tombstone_is_left_as_it_is(world: World) -> None:
    newer = encode_snapshot(Snapshot(OWNER, (9, 0), aborts_of([(0, 7, 9, 0)])))

    def revive_and_write() -> None:
        world.revive()
        world.topics.add(SINGLE, OWNER, newer)

    world.topics.on_sent = revive_and_write
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.OWNER_CHANGED)]
    assert [value for _kind, _key, value in world.topics.sent] == [None]
    assert world.topics.messages[SINGLE][-1].data == newer


def test_a_topic_that_comes_back_in_between_gets_its_messages_again(world: World) -> None:
    world.topics.on_send = world.revive
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.OWNER_CHANGED)]
    assert world.topics.sent[-1][2] is not None


def test_a_topic_that_comes_back_during_the_sweep_keeps_the_rest(world: World) -> None:
    world.topics.on_send = world.revive
    swept = world.sweep(*ALL[2:])
    assert results(swept) == [(Outcome.RETRY, Reason.OWNER_CHANGED)] * 2
    assert [value is None for _kind, _key, value in world.topics.sent] == [True, False]


NEWER = encode_snapshot(Snapshot(OWNER, (9, 0), aborts_of([(0, 7, 9, 0)])))


def failing(world: World, *places: str, error: Exception | None = None) -> None:
    """Let the topics fail once at each of these calls."""
    left = list(places)

    def fails(where: str) -> None:
        if left and left[0] == where:
            left.pop(0)
            raise error or UnavailableError(where)

    world.topics.fails = fails


def revive_and_write(world: World) -> Callable[[], None]:
    """Return a function with which the topic comes back and writes a snapshot."""

    def act() -> None:
        world.revive()
        world.topics.add(SINGLE, OWNER, NEWER)

    return act


def test_a_tombstone_without_an_answer_is_verified_too(world: World) -> None:
    world.topics.on_send = revive_and_write(world)
    failing(world, "after")
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.OWNER_CHANGED)]
    assert world.topics.messages[SINGLE][-1].data == NEWER


def test_a_tombstone_that_was_not_stored_changes_nothing(world: World) -> None:
    failing(world, "before")
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.STORE_UNAVAILABLE)]
    assert [len(world.topics.messages[SINGLE]), world.topics.sent] == [1, []]
    assert results(world.sweep(ALL[1])) == [(Outcome.DELETED, Reason.OWNER_GONE)]


@pytest.mark.parametrize("places", [("stored",), ("after", "stored"), ("stored", "stored")])
def test_the_next_scan_restores_the_message_of_a_tombstone_that_was_not_verified(
    world: World, places: tuple[str, ...]
) -> None:
    world.topics.on_send = revive_and_write(world)
    failing(world, *places)
    swept = [results(world.sweep(ALL[1]))[0] for _try in range(4)]
    assert swept[0] == (Outcome.RETRY, Reason.STORE_UNAVAILABLE)
    assert (Outcome.RETRY, Reason.OWNER_CHANGED) in swept
    assert swept[-1] == (Outcome.RETRY, Reason.IN_USE)
    assert world.topics.messages[SINGLE][-1].data == NEWER
    assert len([value for _kind, _key, value in world.topics.sent if value is not None]) == 1


def test_a_message_that_was_not_verified_is_restored_from_the_journal_if_nothing_newer_was_written(
    world: World,
) -> None:
    before = world.topics.messages[SINGLE][0].data
    world.topics.on_sent = world.revive
    failing(world, "stored")
    world.sweep(ALL[1])
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.OWNER_CHANGED)]
    assert world.topics.messages[SINGLE][-1].data == before


def test_a_value_that_its_broker_writes_right_before_is_not_replaced_by_the_next_scan(world: World) -> None:
    world.topics.on_sent = world.revive
    failing(world, "stored")
    world.sweep(ALL[1])
    writes = [NEWER]

    def fails(where: str) -> None:
        if where == "stored" and writes:
            world.topics.add(SINGLE, OWNER, writes.pop())

    world.topics.fails = fails
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.IN_USE)]
    assert len(world.topics.sent) == 1
    assert world.topics.messages[SINGLE][-1].data == NEWER


def test_a_tombstone_that_is_not_ours_stays(world: World) -> None:
    world.revive()
    world.topics.add(SINGLE, OWNER, None)
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.IN_USE)]
    assert world.topics.sent == []


def test_an_instance_that_is_replaced_in_the_middle_restores_messages_that_were_needed(world: World) -> None:
    def act() -> None:
        world.revive()
        put(world.bench.tree, EPOCH, b"newer")

    world.topics.on_sent = act
    with pytest.raises(FencedError):
        world.sweep(*ALL[2:])
    assert world.topics.messages[SEGMENT][-1].data == segment(0)


def test_a_metadata_store_that_fails_in_the_middle_does_not_prevent_the_restore_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.topics.on_send = lambda: world.topics.add(SEGMENT, str(SegmentKey(0, OWNER)), segment(0)) and None
    holding = InUseLoader.holding
    asked: list[int] = []

    def fails(self: InUseLoader, paths: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
        asked.append(1)
        if len(asked) > 1:
            raise UnavailableError("no ZooKeeper")
        return holding(self, paths)

    monkeypatch.setattr(InUseLoader, "holding", fails)
    with pytest.raises(UnavailableError):
        world.sweep(*ALL[2:])
    assert not world.topics.messages[SEGMENT][-1].is_null


def test_a_migration_ends_the_sweep_before_anything_is_sent(world: World) -> None:
    put(world.bench.tree, MIGRATION_PATH, b'{"phase":"COPYING","targetUrl":"oxia://oxia1:6648/default"}')
    with pytest.raises(UnavailableError, match="a migration to another metadata store has started"):
        world.sweep(*ALL)
    assert world.topics.sent == []


def test_a_migration_that_starts_after_a_tombstone_stops_the_next(world: World) -> None:
    world.topics.on_sent = lambda: put(world.bench.tree, MIGRATION_PATH, b"")
    with pytest.raises(UnavailableError, match="a migration to another metadata store has started"):
        world.sweep(*ALL[2:])
    assert [value for _kind, _key, value in world.topics.sent if value is None] == [None]


def test_a_newer_instance_ends_the_sweep_before_anything_is_sent(world: World) -> None:
    put(world.bench.tree, EPOCH, b"newer")
    with pytest.raises(FencedError):
        world.sweep(*ALL)
    assert world.topics.sent == []


def test_a_tombstone_that_is_not_found_afterwards_is_a_failure(world: World) -> None:
    world.topics.is_deaf = True
    assert results(world.sweep(ALL[1])) == [(Outcome.RETRY, Reason.STILL_THERE)]


def test_a_namespace_whose_brokers_do_not_answer_waits(world: World) -> None:
    world.topics.down = True
    assert results(world.sweep(*ALL)) == [(Outcome.RETRY, Reason.STORE_UNAVAILABLE)] * 4


def test_two_equal_requests_send_one_tombstone_and_the_second_run_finds_the_message_gone(world: World) -> None:
    assert results(world.sweep(ALL[1], ALL[1])) == [
        (Outcome.DELETED, Reason.OWNER_GONE),
        (Outcome.ALREADY_GONE, Reason.DUPLICATE),
    ]
    assert results(world.sweep(ALL[1])) == [(Outcome.ALREADY_GONE, Reason.NOT_FOUND)]
    assert world.topics.tombstones == [OWNER]


def test_a_message_that_no_broker_wrote_is_refused_and_named(world: World) -> None:
    world.topics.add(SINGLE, OWNER, b"\xff\xff")
    at = world.topics.messages[SINGLE][-1].position
    request = replace(ALL[1], ledger_id=at[0], snapshot_context=SnapshotContext(str(SINGLE), OWNER, at[1]))
    assert results(world.sweep(request)) == [(Outcome.DEAD_LETTER, Reason.NOT_PULSARS)]
    assert world.topics.sent == []


def test_tombstones_that_were_not_compacted_away_are_compacted_by_the_next_scan(world: World) -> None:
    failing(world, "compact")
    assert results(world.sweep(ALL[2])) == [(Outcome.DELETED, Reason.OWNER_GONE)]
    assert world.topics.compactions == []
    assert results(world.sweep(ALL[2])) == [(Outcome.ALREADY_GONE, Reason.NOT_FOUND)]
    assert world.topics.compactions == [SEGMENT]
    world.sweep(ALL[2])
    assert world.topics.compactions == [SEGMENT]


def test_a_compaction_that_started_too_early_is_requested_again(world: World) -> None:
    world.topics.too_early = 1
    world.sweep(ALL[2])
    assert world.topics.compactions == [SEGMENT, SEGMENT]
    assert not any(read.is_null for read in world.topics.compacted(SPACE, SEGMENT))


def test_an_instance_that_is_replaced_in_the_middle_compacts_its_tombstones(world: World) -> None:
    world.topics.on_sent = lambda: put(world.bench.tree, EPOCH, b"newer")
    with pytest.raises(FencedError):
        world.sweep(*ALL[2:])
    assert world.topics.compactions == [SEGMENT]


@pytest.mark.parametrize("others", [0, 1])
def test_a_topic_with_messages_that_may_have_to_be_restored_is_not_compacted(world: World, others: int) -> None:
    """Not even if there are tombstones of others, for which it would otherwise be compacted."""
    for number in range(others):
        world.topics.add(SEGMENT, str(SegmentKey(7 + number, OWNER)), None)
    failing(world, "stored")
    world.sweep(*ALL[2:])
    assert world.topics.compactions == []


def test_a_topic_whose_guard_vanishes_in_between_is_not_compacted(world: World) -> None:
    def act() -> None:
        world.topics.guarded = False

    world.topics.on_sent = act
    assert results(world.sweep(ALL[2])) == [(Outcome.DELETED, Reason.OWNER_GONE)]
    assert world.topics.compactions == []


def test_without_a_guard_no_segment_is_removed(world: World) -> None:
    world.topics.guarded = False
    assert results(world.sweep(ALL[2])) == [(Outcome.RETRY, Reason.NOT_GUARDED)]
    assert world.topics.sent == []
