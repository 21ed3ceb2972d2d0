"""Passes over lanes: each message is processed once, and a lane that fails or hangs delays no other for long."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.pulsar.doorbell.doorbell import Doorbell, Fault
from streaming.adapters.pulsar.readers.admin_entries import NOTHING_SHOWN
from streaming.clock import ManualClock
from streaming.deletion.lanes import reader as module
from streaming.deletion.lanes.progress import LaneProgress
from streaming.deletion.lanes.reader import LANES, LaneReader
from streaming.deletion.lanes.slow import MOST_FAILURES, SLOW_LANES, SLOW_S
from streaming.deletion.service import LedgerDeletionService
from streaming.errors import ReaperError, RefusedError, StopRequestedError, UnavailableError
from streaming.queries.delivery.lane_reads import LATE, LanesRead
from streaming.queries.delivery.read_end import ReadEnd
from streaming.state.notes.parked_queries import ParkedQuery
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import base_topic, tenant_of

SUBSCRIPTION = "ledger-reaper"


def lane(tenant: str, name: str = "ledger-deletion") -> str:
    return f"persistent://{tenant}/{name}/__ledger_deletion-partition-0"


class Bell:
    """Rings when a test rings it; a lane that rang rings again only after settle()."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}
        self.watched: set[str] = set()
        self.settled: list[tuple[str, Position | None]] = []
        self.was_asked = threading.Event()  # whether it has rung
        self._rung: list[str] = []
        self._unsettled: set[str] = set()

    @property
    def listening(self) -> int:
        return len(self.watched - self._unsettled - self.faults.keys())

    def watch(self, partition: str) -> None:
        self.watched.add(partition)

    def forget(self, partition: str) -> None:
        self.watched.discard(partition)
        self._unsettled.discard(partition)

    def ring(self, *partitions: str) -> None:
        for partition in partitions:
            if partition not in self._unsettled:
                self._unsettled.add(partition)
                self._rung.append(partition)

    @property
    def has_rung(self) -> bool:
        self.was_asked.set()
        return bool(self._rung)

    def rung(self, _timeout_s: float) -> list[str]:
        rung, self._rung = self._rung, []
        return rung

    def settle(self, partition: str, processed: Position | None) -> None:
        self.settled.append((partition, processed))
        self._unsettled.discard(partition)

    def close(self) -> None: ...


class Rows(list[tuple[str, Position]]):
    """A fake DataFrame: the entries whose messages it has."""

    def unpersist(self) -> None: ...


class Service:
    """Gives each entry a receipt. Like the real one, it leaves out those that have one in a first batch only."""

    outages = SimpleNamespace(metrics=SimpleNamespace(registry=SimpleNamespace(set=lambda *_: None)))

    def __init__(self) -> None:
        self.receipts: list[tuple[str, Position]] = []
        self.queries: list[str] = []
        self.noted: list[Mapping[str, Sequence[EntrySpan]]] = []
        self.fails_after: Exception | None = None  # after the receipts were committed
        self.fails_for: set[str] = set()
        self.gate = SimpleNamespace(check_stop=lambda: None, stop=threading.Event())
        self.slots = SimpleNamespace(slow_down=lambda _query: None)
        self._started: set[str] = set()

    def describe(self, *_: object) -> None: ...

    def note(self, spans: Mapping[str, Sequence[EntrySpan]]) -> None:
        self.noted.append(spans)

    def restart(self, query: str) -> None:
        self._started.discard(query)

    def take(self, query: str, rows: Rows, _number: int, _extent: object = None) -> None:
        self.queries.append(query)
        if failed := self.fails_for & {partition for partition, _position in rows}:
            raise ReaperError(f"a bug with {failed}")
        is_first = query not in self._started
        self.receipts += [each for each in rows if not is_first or each not in self.receipts]
        failure, self.fails_after = self.fails_after, None
        if failure is not None:
            raise failure
        self._started.add(query)


class World:
    def __init__(self) -> None:
        self.pulsar, self.bell, self.service = MemoryPulsar(), Bell(), Service()
        self.topics: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.odd: dict[str, int] = {}  # partition -> the entry at which a pass gives up
        self.late: set[str] = set()  # partitions that no pass reads in time
        self.passes = 0
        self.last: dict[str, Position | None] = {}
        self.read_slowly: Callable[[str], None] = lambda _partition: None
        self.gave_up: list[bool] = []
        self.read_together: list[list[str]] = []  # by the slow reader
        self.earlier: dict[str, Position] = {}
        self.of_queries: dict[str, Position] = {}
        self.shown: list[tuple[str, ParkedQuery | None]] = []
        self.now_s = 0.0
        self.reader = self.start()

    def start(self) -> LaneReader:
        """Start another reader, as after a kill."""
        self.bell = Bell()
        self.service._started.clear()
        self.reader = LaneReader(
            existing=lambda: (dict(self.topics), self.refused),
            admin=self.pulsar,
            progress=LaneProgress(
                subscription=SUBSCRIPTION,
                service=cast("LedgerDeletionService", self.service),
                clock=ManualClock(),
                newest_receipts=lambda: dict(self.earlier),
                of_queries=lambda topics: {
                    partition: at for partition, at in self.of_queries.items() if base_topic(partition) in topics
                },
            ),
            bell=cast("Doorbell", self.bell),
            read=cast("Any", self._read),
            read_one=cast("Any", self._read_one),
            last_message=lambda partition: self.last.get(partition, self.pulsar.internal_stats(partition).last),
            show=lambda name, parked: self.shown.append((name, parked)),
            monotonic=lambda: self.now_s,
        )
        self.reader.list_lanes()
        return self.reader

    def add(self, partition: str, *ledgers: tuple[int, int]) -> None:
        """Create a lane with these (ledger, entries)."""
        self.pulsar.store(partition, *ledgers)
        topic = partition.removesuffix("-partition-0")
        self.pulsar.ensure_subscription(topic, SUBSCRIPTION)
        self.topics[topic] = 1
        self.reader.list_lanes()

    def work(self, *rung: str, slowly: int = 0) -> None:
        """Ring, run a pass, and read slow lanes so often."""
        self.bell.ring(*rung)
        self.reader.run_pass()
        for _ in range(slowly):
            self.reader.read_slowly()

    @property
    def is_quiet(self) -> bool:
        self.reader.list_lanes()
        return self.reader.is_quiet

    @property
    def is_exactly_once(self) -> bool:
        stored = {
            (f"{topic}-partition-0", (ledger, entry))
            for topic in self.topics
            for ledger, entries in self.pulsar.internal_stats(f"{topic}-partition-0").ledgers
            for entry in range(entries)
        }
        return len(self.service.receipts) == len(stored) and {*self.service.receipts} == stored

    def _read(self, _query: str, spans: Mapping[str, Sequence[EntrySpan]], most: int) -> LanesRead:
        rows, ends = Rows(), {}
        self.passes += 1
        for partition, each in spans.items():
            if partition in self.late:
                ends[partition] = ReadEnd(None, LATE)
                continue
            positions = [(span.ledger, entry) for span in each for entry in range(span.first, span.last + 1)]
            upto, fault = None, ""
            for position in positions[:most]:
                if self.odd.get(partition) == position[1]:
                    fault = "odd"
                    break
                rows.append((partition, position))
                upto = position
            ends[partition] = ReadEnd(upto, fault)
        return LanesRead(cast("Any", rows), ends, rows.unpersist, 0)

    def _read_one(self, query: str, spans: Mapping[str, Sequence[EntrySpan]], *, gives_up: bool = False) -> Rows:
        assert query == SLOW_LANES
        self.gave_up.append(gives_up)
        self.read_together.append([*spans])
        if not gives_up:
            for partition in spans:
                self.read_slowly(partition)
        return Rows(
            (partition, (span.ledger, entry))
            for partition, each in spans.items()
            for span in each
            for entry in range(span.first, span.last + 1)
        )


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.reader.join(0)


A, B = lane("a"), lane("b")


def test_what_rang_is_processed_and_acknowledged_after_its_receipts(world: World) -> None:
    world.add(A, (5, 3), (6, 2))
    world.add(B, (7, 1))
    assert world.bell.watched == {A, B}
    world.work(A)
    assert {partition for partition, _ in world.service.receipts} == {A}
    assert world.bell.settled == [(A, (6, 1))]
    world.work(B)
    assert world.is_exactly_once


def test_nothing_is_acknowledged_if_the_receipts_fail_and_nothing_is_processed_twice_after_that(world: World) -> None:
    world.add(A, (5, 3))
    world.work(A)
    world.pulsar.store(A, (5, 5))
    world.service.fails_after = UnavailableError("the disk is away")
    with pytest.raises(UnavailableError):
        world.work(A)
    assert world.bell.settled == [(A, (5, 2))]
    assert not world.is_quiet
    world.work(slowly=1)
    assert world.is_exactly_once
    assert world.bell.settled[-1] == (A, (5, 4))


def test_a_kill_between_receipts_and_acknowledgement_processes_nothing_twice(world: World) -> None:
    world.add(A, (5, 3))
    world.add(B, (6, 3))
    world.work(A)
    world.earlier = {A: (5, 2)}
    world.start()
    world.work(B)
    world.pulsar.store(A, (5, 5))
    world.work(A)
    assert world.is_exactly_once


def test_a_cursor_that_was_moved_back_processes_nothing_twice(world: World) -> None:
    world.add(A, (5, 3))
    world.work(A)
    world.work(A)  # the cursor of the fake has never moved
    assert world.is_exactly_once


@pytest.mark.parametrize("committed", [None, (4, 1), (5, 2), (5, 4)])
@pytest.mark.parametrize("cursor", [None, (4, 0), (5, 2)])
def test_passes_continue_after_a_former_query_and_repeat_nothing(
    world: World, committed: Position | None, cursor: Position | None
) -> None:
    """The query has written receipts up to (5, 4), committed them or not, and the connector's cursor is before that."""
    world.service.receipts = [(A, (4, 0)), (A, (4, 1)), *((A, (5, entry)) for entry in range(5))]
    world.earlier = {A: (5, 4)}
    world.of_queries = {} if committed is None else {A: committed}
    world.start()
    world.add(A, (4, 2), (5, 8))
    if cursor is not None:
        world.pulsar.partition(A).cursors[SUBSCRIPTION] = cursor
    known = world.reader.progress.with_processed(dict)
    assert known == ({} if committed is None else {A: committed})
    for _ in range(3):
        world.work(A)
    assert world.is_exactly_once
    assert world.bell.settled[-1] == (A, (5, 7))


def test_the_accounts_are_not_to_check_partitions_that_only_the_topic_of_the_former_query_had(world: World) -> None:
    """The topic was deleted, and created again with one partition."""
    world.of_queries = {A: (4, 1), f"{base_topic(A)}-partition-1": (4, 7)}
    world.start()
    world.add(A, (5, 3))
    assert world.reader.progress.with_processed(dict) == {A: (4, 1)}


def test_a_topic_of_a_former_query_that_is_not_listed_for_a_while_is_still_compared_after_a_failed_pass(
    world: World,
) -> None:
    world.of_queries = {A: (5, 0)}
    world.add(A, (5, 3))
    world.service.receipts = [(A, (5, 0))]
    world.service.fails_after = UnavailableError("after the receipts")
    with pytest.raises(UnavailableError):
        world.work(A)
    world.service._started.add(SLOW_LANES)  # by another slow lane
    topics, world.topics = world.topics, {}
    world.reader.list_lanes()
    world.topics = topics
    world.reader.list_lanes()
    world.work(A, slowly=2)
    assert world.is_exactly_once
    assert world.bell.settled[-1] == (A, (5, 2))


def test_a_lane_that_was_gone_for_a_while_processes_nothing_twice(world: World) -> None:
    world.add(A, (5, 3))
    world.work(A)
    topics, world.topics = world.topics, {}
    world.reader.list_lanes()
    assert world.bell.watched == set()
    world.topics = topics
    world.reader.list_lanes()
    world.pulsar.store(A, (5, 4))
    world.work(A)
    assert world.is_exactly_once


def test_a_lane_is_read_from_its_subscriptions_cursor(world: World) -> None:
    world.add(A, (5, 3))
    world.pulsar.partition(A).cursors[SUBSCRIPTION] = (5, 1)
    world.work(A)
    assert world.service.receipts == [(A, (5, 2))]


def test_a_flood_is_processed_in_passes_beside_the_requests_of_others(world: World) -> None:
    world.add(A, (5, 100_000))
    world.add(B, (6, 1))
    world.work(A)
    world.work(A, B)
    counts = [sum(partition == name for partition, _ in world.service.receipts) for name in (A, B)]
    assert counts[1] == 1
    assert 0 < counts[0] <= 2 * 500


@pytest.mark.parametrize("is_rung", [False, True], ids=["a pass runs", "a lane has rung during it"])
def test_a_slow_lanes_chunk_comes_after_the_pass_that_runs(
    world: World, is_rung: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GIVE_WAY_S", 600.0)
    order: list[str] = []

    def slow_chunk() -> None:
        world.reader.let_passes_go_first()
        order.append("slow chunk")
        world.bell.was_asked.set()

    thread = threading.Thread(target=slow_chunk)

    def take(*_: object) -> None:
        if not order:
            world.bell.ring(*[B] * is_rung)
            thread.start()
            assert world.bell.was_asked.wait(60)  # the slow chunk waits now
        order.append("pass")

    world.service.take = take  # type: ignore[assignment,method-assign]
    world.add(A, (5, 1))
    world.add(B, (6, 1))
    world.work(A)
    world.work()
    thread.join(60)
    assert order == [*["pass"] * (1 + is_rung), "slow chunk"]


def test_a_slow_lanes_chunk_does_not_wait_long_for_passes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GIVE_WAY_S", 0.0)
    world.add(A, (5, 1))
    world.service.take = lambda *_: world.reader.let_passes_go_first()  # type: ignore[method-assign]
    world.work(A)


def test_no_tenant_takes_all_of_a_pass(world: World) -> None:
    many = [lane("a", f"ns{number}") for number in range(module._MOST_LANES + 5)]
    for each in (*many, B):
        world.add(each, (5, 1))
    world.work(*many, B)
    assert (B, (5, 0)) in world.service.receipts
    assert len(world.service.receipts) == module._MOST_LANES
    world.work()
    assert world.is_exactly_once


def test_an_odd_lane_is_read_by_itself_and_its_tenants_others_too_for_a_while(world: World) -> None:
    other = lane("a", "other")
    world.add(A, (5, 3))
    world.add(other, (6, 1))
    world.add(B, (7, 1))
    world.odd[A] = 1
    world.work(A, B)
    assert (B, (7, 0)) in world.service.receipts
    assert (A, (5, 0)) in world.service.receipts
    assert A not in dict(world.bell.settled)
    world.work(other)
    assert (other, (6, 0)) not in world.service.receipts
    world.work(slowly=2)
    assert world.is_exactly_once
    assert {*world.bell.settled} == {(A, (5, 2)), (other, (6, 0)), (B, (7, 0))}
    world.now_s = SLOW_S
    world.pulsar.store(other, (6, 2))
    world.work(other)
    assert world.service.queries[-1] == LANES


def test_brokers_that_return_no_positions_in_time_make_only_their_own_lanes_slow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = [lane("a", f"ns{number}") for number in range(module._RANGES_AT_ONCE)]
    for each in (*hanging, B):
        world.add(each, (5, 1))
    goes_on = threading.Event()
    stats = world.pulsar.internal_stats

    def hangs(partition: str) -> Any:
        if partition != B:
            goes_on.wait()
        return stats(partition)

    monkeypatch.setattr(world.pulsar, "internal_stats", hangs)
    try:
        world.work(*hanging)
        world.work(B)
    finally:
        goes_on.set()
    assert world.service.receipts == [(B, (5, 0))]
    for _ in hanging:
        world.reader.read_slowly()
    assert world.is_exactly_once


def test_a_pass_that_fails_as_a_whole_finds_the_lane_that_made_it_fail(world: World) -> None:
    lanes = [lane(f"tenant{number}") for number in range(8)]
    for each in lanes:
        world.add(each, (5, 1))
    world.service.fails_for = {lanes[3]}
    world.bell.ring(*lanes)
    for _ in range(8):
        try:
            world.reader.run_pass()
        except ReaperError:
            continue
    assert {partition for partition, _ in world.service.receipts} == {*lanes} - {lanes[3]}
    world.service.fails_for = set()
    world.reader.read_slowly()
    assert world.is_exactly_once


def test_a_slow_lane_that_fails_is_tried_again_later_and_others_before_it(world: World) -> None:
    world.add(A, (5, 1))
    world.add(B, (6, 1))
    world.odd = {A: 0, B: 0}

    def fails(partition: str) -> None:
        if partition == A:
            raise UnavailableError("it is away")

    world.read_slowly = fails
    world.work(A, B, slowly=3)
    assert world.service.receipts == [(B, (6, 0))]
    assert world.reader.unread() == {}, "the fault is young"
    world.now_s = 60.0
    assert world.reader.unread() == {A: "it is away"}
    world.reader.list_lanes()
    name, parked = world.shown[-1]
    assert name == LANES
    assert parked is not None
    assert "it is away" in parked.why
    world.read_slowly = lambda _partition: None
    world.reader.read_slowly()
    assert world.is_exactly_once
    world.reader.list_lanes()
    assert world.shown[-1] == (LANES, None)


def test_a_turn_of_a_slow_lane_takes_several_messages_although_one_message_of_its_ledger_is_large(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lane("a", "other")
    for each in (A, other):
        world.add(each, (5, 200))
        world.odd[each] = 0
    stats = world.pulsar.internal_stats
    monkeypatch.setattr(world.pulsar, "internal_stats", lambda each: replace(stats(each), sizes={5: 200 * 2**20}))
    world.work(A, slowly=1)
    assert world.service.receipts == [(A, (5, entry)) for entry in range(128)]
    world.work(other, slowly=1)
    assert len(world.service.receipts) == 128 + 2 * 64, "the lanes of a turn share its entries"


def test_slow_lanes_of_a_tenant_that_have_more_messages_are_read_together_in_the_next_turn(world: World) -> None:
    """They would ring one after the other, and take turns that each wait for the broker."""
    lanes = [lane("a", f"ns{number}") for number in range(2)]
    for each in lanes:
        world.add(each, (5, 1200))
        world.odd[each] = 0
    world.work(*lanes, slowly=3)
    assert [sorted(turn) for turn in world.read_together] == [lanes] * 3
    assert world.is_exactly_once
    assert (lanes[0], (5, 499)) in world.bell.settled, "what has receipts is acknowledged after each turn"


def test_a_turn_takes_a_few_slow_lanes_of_one_tenant(world: World) -> None:
    lanes = [lane("a", f"ns{number}") for number in range(6)]
    for each in (*lanes, B):
        world.add(each, (5, 2))
        world.odd[each] = 0
    world.work(*lanes, B, slowly=3)
    turns = [({tenant_of(each) for each in turn}, len(turn)) for turn in world.read_together]
    assert sorted(turns, key=str) == [({"a"}, 2), ({"a"}, 4), ({"b"}, 1)]
    assert world.is_exactly_once


def test_a_turn_takes_fewer_lanes_if_their_broker_is_slow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = [lane("a", f"ns{number}") for number in range(4)]
    for each in (*lanes, B):
        world.add(each, (5, 2))
        world.odd[each] = 0
    world.work(*lanes, B)
    stats = world.pulsar.internal_stats

    def takes_long(partition: str) -> Any:
        world.now_s += 30.0 if partition != B else 0.0
        return stats(partition)

    monkeypatch.setattr(world.pulsar, "internal_stats", takes_long)
    world.work(slowly=2)
    assert world.now_s == 60.0, "one lane of them was planned, which takes two requests"
    assert [len(turn) for turn in world.read_together] == [1, 1]
    world.work(slowly=3)
    assert world.is_exactly_once


@pytest.mark.parametrize("fails_after_the_receipts", [False, True])
def test_after_a_turn_that_failed_its_lanes_are_read_one_by_one(
    world: World, *, fails_after_the_receipts: bool
) -> None:
    lanes = [lane("a", f"ns{number}") for number in range(3)]
    for each in lanes:
        world.add(each, (5, 2))
        world.odd[each] = 0

    def fails(partition: str) -> None:
        if partition == lanes[1]:
            raise UnavailableError("it is away")

    if fails_after_the_receipts:
        world.bell.ring(*lanes)
        world.reader.run_pass()
        world.service.fails_after = UnavailableError("the disk is full")
        world.work(slowly=1)
    else:
        world.read_slowly = fails
        world.work(*lanes, slowly=4)
        assert sorted(map(sorted, world.read_together)) == [[lanes[0]], lanes, [lanes[1]], [lanes[2]]]
        assert {partition for partition, _position in world.service.receipts} == {lanes[0], lanes[2]}
        world.now_s, world.read_slowly = 60.0, lambda _partition: None
    world.work(slowly=3)
    assert world.is_exactly_once
    for each in lanes:  # what failed once is not read alone for ever
        world.pulsar.store(each, (5, 4))
    world.work(*lanes, slowly=1)
    assert sorted(world.read_together[-1]) == lanes
    assert world.is_exactly_once


def test_entries_that_the_broker_does_not_show_are_given_up_after_ten_minutes(world: World) -> None:
    world.add(A, (5, 1))
    world.odd = {A: 0}

    def shows_nothing(_partition: str) -> None:
        raise UnavailableError(NOTHING_SHOWN)

    world.read_slowly = shows_nothing
    world.work(A)
    for world.now_s in (1.0, 200.0, 400.0, 600.9, 700.0):
        world.reader.read_slowly()
    assert world.gave_up == [False, False, False, False, True]
    assert world.is_exactly_once


def opens_a_transaction(world: World, entries: int) -> None:
    """Give a lane so many entries, all but the first after the start of a transaction, and read it once."""
    world.add(A, (5, entries))
    world.odd = {A: 1}
    world.last[A] = (5, 0)
    world.work(A, slowly=1)


def test_messages_of_an_open_transaction_wait_for_its_end(world: World) -> None:
    opens_a_transaction(world, entries=3)
    assert not world.is_quiet
    world.now_s = 50.0
    world.reader.read_slowly()
    assert world.service.receipts == [(A, (5, 0))]
    world.last[A] = (5, 2)
    world.now_s = 60.0
    world.reader.read_slowly()
    assert world.is_exactly_once
    assert world.bell.settled == [(A, (5, 2))]


def test_messages_after_a_transaction_that_never_ends_wait_for_a_minute(world: World) -> None:
    opens_a_transaction(world, entries=3)
    for world.now_s in (10.0, 59.9):
        world.reader.read_slowly()
        assert world.service.receipts == [(A, (5, 0))]
        assert not world.is_quiet
    world.now_s = 69.9
    world.reader.read_slowly()
    assert world.is_exactly_once
    assert world.is_quiet

    world.pulsar.store(A, (5, 4))
    world.work(A, slowly=1)
    assert world.service.receipts[-1] == (A, (5, 2)), "it may be after another transaction"
    world.pulsar.store(A, (5, 6))
    world.last[A] = (5, 4)
    world.now_s = 200.0
    for _ in range(3):
        world.work(A, slowly=1)
    assert world.service.receipts[-1] == (A, (5, 4)), "another transaction gets its time, too"


def test_many_messages_after_a_transaction_that_never_ends_wait_once(world: World) -> None:
    world.add(A, (5, 1200))
    world.odd = {A: 0}
    world.last[A] = BEFORE_ALL
    world.work(A, slowly=1)
    world.now_s = 60.0
    for _ in range(3):
        world.work(A, slowly=1)
    assert world.is_exactly_once


def test_a_message_that_arrives_while_a_lane_is_planned_does_not_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(A, (5, 1))
    world.odd = {A: 0}
    world.work(A, slowly=1)
    world.work(A)
    ask = world.reader._slow.last_message

    def then_arrives(partition: str) -> Position | None:
        last = ask(partition)
        world.pulsar.store(A, (5, 2))
        return last

    monkeypatch.setattr(world.reader._slow, "last_message", then_arrives)
    world.reader.read_slowly()
    world.work(A, slowly=1)
    assert world.is_exactly_once


def test_a_transaction_after_a_marker_that_waited_gets_its_time(world: World) -> None:
    """Brokers since Pulsar 3.3 report the last message before a marker, so a marker looks like an open transaction."""
    opens_a_transaction(world, entries=2)
    for world.now_s in (10.0, 80.0):
        world.reader.read_slowly()
    assert world.is_exactly_once
    world.now_s = 7 * 86_400.0
    world.pulsar.store(A, (5, 4))
    world.odd = {A: 2}
    world.work(A, slowly=1)
    assert world.service.receipts == [(A, (5, 0)), (A, (5, 1))]


def test_a_lane_that_is_deleted_while_its_transaction_is_open_is_forgotten(world: World) -> None:
    opens_a_transaction(world, entries=2)
    world.topics.clear()
    world.reader.list_lanes()
    world.now_s = 100.0
    world.reader.read_slowly()
    assert world.is_quiet
    assert world.service.receipts == [(A, (5, 0))]


def test_a_lane_that_was_created_again_is_not_settled_for_its_predecessor_while_it_waits(world: World) -> None:
    """Otherwise it rings again, and a pass and the slow reader may process the same messages at the same time."""
    world.add(A, (5, 1))
    world.work(A)
    for _ in range(2):  # rings without a message: settled later
        world.work(A)
    topics, world.topics = world.topics, {}
    world.reader.list_lanes()
    world.topics = topics
    world.reader.list_lanes()
    world.pulsar.store(A, (5, 1), (6, 2))
    world.odd = {A: 0}
    world.last[A] = (5, 0)
    world.work(A, slowly=1)
    before = [*world.bell.settled]
    world.now_s = SLOW_S  # its tenant is not slow any more, but the lane is still held
    world.work()
    assert world.bell.settled == before


def test_without_the_last_message_everything_is_read(world: World) -> None:
    world.add(A, (5, 3))
    world.odd = {A: 1}
    world.last[A] = None
    world.work(A, slowly=1)
    assert world.is_exactly_once


def test_lanes_that_are_new_since_an_old_list_keep_a_run_from_ending(world: World) -> None:
    assert world.reader.is_quiet
    world.now_s += module._FRESH_S + 1
    for _ in range(2):
        assert not world.reader.is_quiet
    world.pulsar.store(A, (5, 1))
    world.topics[base_topic(A)] = 1
    world.reader.list_lanes()
    world.bell.ring(A)
    assert not world.reader.is_quiet
    world.work()
    assert world.reader.is_quiet


def test_lanes_are_quiet_when_each_listens_or_is_given_up(world: World) -> None:
    assert world.is_quiet
    world.add(A, (5, 1))
    world.add(B, (6, 0))
    world.bell.ring(A)
    assert not world.is_quiet
    world.reader.run_pass()
    assert world.is_quiet
    world.bell.faults[B] = Fault("busy", 1, 0.0, is_missing=False)
    assert not world.is_quiet
    world.bell.faults[B] = Fault("busy", 5, 0.0, is_missing=False)
    assert world.is_quiet
    assert world.reader.given_up == {B: "busy"}
    world.bell.faults[B] = Fault("gone", 5, 0.0, is_missing=True)
    assert world.is_quiet
    assert world.reader.given_up == {}


def test_a_subscription_that_brokers_do_not_create_for_a_consumer_is_created(world: World) -> None:
    """The operator has set allowAutoSubscriptionCreation to false, and the topic's creator did not subscribe."""
    first, second, closed = lane("acme"), lane("acme", "second"), lane("rival")
    for partition in (B, first, second, closed):
        world.add(partition, (5, 1))
    for partition in (first, second, closed):
        del world.pulsar.partition(partition).cursors[SUBSCRIPTION]
        world.bell.faults[partition] = Fault("no subscription", 1, 0.0, False, has_no_subscription=True)
    asked: list[str] = []

    def asks(operation: str, names: Sequence[str]) -> None:
        if operation == "ensure_subscription":
            asked.append(names[0])
            if names[0] == base_topic(closed):
                raise RefusedError("too many subscriptions")

    world.pulsar.faults.before(asks)
    world.reader.look_after()
    assert asked == [base_topic(each) for each in (first, closed, second)], "the tenants take turns"
    assert all(SUBSCRIPTION in world.pulsar.partition(each).cursors for each in (first, second))
    del world.bell.faults[first], world.bell.faults[second]
    world.reader.look_after()
    assert len(asked) == 3, "a topic that is refused is tried again later"
    world.now_s += 60
    world.reader.look_after()
    assert asked[3:] == [base_topic(closed)]


def test_creating_subscriptions_takes_a_bounded_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = [lane("acme"), lane("rival"), lane("zoo")]
    for partition in lanes:
        world.add(partition, (5, 1))
        world.bell.faults[partition] = Fault("no subscription", 1, 0.0, False, has_no_subscription=True)
    asked: list[str] = []

    def hangs(operation: str, names: Sequence[str]) -> None:
        if operation == "ensure_subscription":
            asked.append(names[0])
            world.now_s += module._SUBSCRIBE_S
            raise UnavailableError("its broker hangs")

    world.pulsar.faults.before(hangs)
    for _ in lanes:
        world.reader.look_after()
    assert asked == [base_topic(each) for each in lanes], "one after the other"


def test_a_stop_ends_a_pass_without_an_acknowledgement(world: World) -> None:
    world.add(A, (5, 1))
    world.service.fails_after = StopRequestedError()
    with pytest.raises(StopRequestedError):
        world.work(A)
    assert world.bell.settled == []


def test_lanes_that_are_not_read_are_shown_as_one(world: World) -> None:
    for number in range(20):
        world.add(lane(f"t{number:02}"), (number, 0))
        world.bell.faults[lane(f"t{number:02}")] = Fault("busy", 9, 0.0, is_missing=False)
    world.refused = {"persistent://z/x/y": "too many partitions"}
    world.now_s = 100.0
    world.reader.list_lanes()
    name, parked = world.shown[-1]
    assert name == LANES
    assert parked is not None
    assert parked.shown("noon").startswith("lanes have not been read since noon UTC: 21 lanes: persistent://t00/")
    assert parked.why.endswith("and 16 more")


def test_the_accounts_check_what_was_processed_since_the_last_check_that_succeeded(world: World) -> None:
    world.add(A, (5, 1))
    world.add(B, (6, 2))
    world.work(A)

    def fails(_processed: Mapping[str, Position]) -> None:
        raise UnavailableError("it is away")

    with pytest.raises(UnavailableError):
        world.reader.progress.with_processed(fails)
    world.work(B)
    assert world.reader.progress.with_processed(dict) == {A: (5, 0), B: (6, 1)}
    assert world.reader.progress.with_processed(dict) == {}


def test_lanes_that_wait_are_known_to_the_accounts_with_the_position_that_was_reached(world: World) -> None:
    for number, partition in enumerate((A, B)):
        world.add(partition, (5 + number, 1))
    world.work(A)
    world.pulsar.store(A, (5, 2))
    assert world.reader.waiting == {}
    world.odd = {B: 0}
    world.work(B)  # is slow from now on
    world.reader._waiting.add(A)
    assert world.reader.waiting == {A: (5, 0), B: BEFORE_ALL}


@pytest.mark.parametrize("is_slow", [False, True])
def test_lanes_that_are_deleted_while_they_wait_are_named_in_the_log(
    world: World, is_slow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in (A, B):
        world.add(partition, (5, 1))
    if is_slow:
        world.odd = {A: 0}
        world.work(A)
    else:
        world.reader._waiting.add(A)
    world.topics.clear()
    for _ in range(2):
        world.reader.list_lanes()
    found = [each.message for each in caplog.records if "deleted with unread messages" in each.message]
    assert found == [f"1 partition of a lane was deleted with unread messages, which are lost: {A}"]


def test_a_lane_that_is_refused_while_it_waits_is_not_reported_as_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add(A, (5, 1))
    world.reader._waiting.add(A)
    world.topics.clear()
    world.refused = {base_topic(A): "it has 65 partitions"}
    world.reader.list_lanes()
    assert "lost" not in caplog.text
    assert world.bell.watched == set()


@pytest.mark.parametrize("later_s", [0.0, 2 * SLOW_S])
def test_a_lane_that_rings_while_it_is_still_being_read_is_read_after_that(world: World, later_s: float) -> None:
    world.service._started.add(SLOW_LANES)  # by another slow lane
    world.add(A, (5, 1))
    world.odd = {A: 0}
    world.work(A)

    def is_created_again(_partition: str) -> None:
        topics, world.topics = world.topics, {}
        world.reader.list_lanes()
        world.topics = topics
        world.reader.list_lanes()
        world.now_s, world.odd, world.read_slowly = later_s, {}, lambda _partition: None
        world.work(A)

    world.read_slowly = is_created_again
    world.reader.read_slowly()
    world.work(slowly=1)
    world.pulsar.store(A, (5, 2))
    world.work(A, slowly=1)
    assert world.is_exactly_once


def test_a_lane_that_is_deleted_while_it_is_found_slow_is_not_read_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(A, (5, 3))

    def deleted(_partition: str) -> None:
        world.topics.clear()
        world.reader.list_lanes()
        raise RefusedError("404")

    monkeypatch.setattr(world.pulsar, "internal_stats", deleted)
    world.work(A)
    world.reader.read_slowly()
    assert world.is_quiet


def test_messages_are_processed_once_if_their_note_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(A, (5, 3))
    world.odd[A] = 0
    world.work(A)

    def full(_spans: object) -> None:
        monkeypatch.undo()
        raise UnavailableError("the disk is full")

    monkeypatch.setattr(world.service, "note", full)
    world.reader.read_slowly()
    world.now_s = 100
    world.reader.read_slowly()
    assert world.is_exactly_once


def test_the_lanes_of_a_slow_tenant_take_part_in_one_pass_only(world: World) -> None:
    lanes = [lane("a", f"ns{number}") for number in range(2 * module._MOST_LANES)]
    for each in lanes:
        world.add(each, (5, 1))
        world.odd[each] = 0
    world.bell.ring(*lanes)
    for _ in range(3):
        world.reader.run_pass()
    assert world.passes == 1
    for _ in lanes:
        world.now_s += 10
        world.reader.read_slowly()
    assert world.is_exactly_once


def test_a_lane_that_can_never_be_read_is_given_up_and_tried_again_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(A, (5, 1))
    world.add(B, (6, 1))

    def refused(_partition: str) -> None:
        raise RefusedError("404")

    with monkeypatch.context() as broken:
        broken.setattr(world.pulsar, "internal_stats", refused)
        world.work(A)
        for _ in range(MOST_FAILURES + 1):
            assert not world.is_quiet
            world.now_s += 100
            world.reader.read_slowly()
        assert world.is_quiet
        assert world.reader.given_up.keys() == {A}
    world.now_s += 100
    world.work(B, slowly=1)
    assert world.reader.given_up == {}
    assert world.is_exactly_once


def test_a_lane_that_rings_without_a_message_keeps_no_run_from_ending(world: World) -> None:
    world.add(A, (5, 1))
    world.work(A)
    for _ in range(module._EMPTY_RINGS):
        world.now_s += 100
        world.work()
        world.work(A)
    assert world.is_quiet


def test_if_lanes_of_several_tenants_are_late_at_once_none_is_slow_until_that_repeats(world: World) -> None:
    lanes = [lane(f"t{number}") for number in range(module._STALL_TENANTS)]
    for each in lanes:
        world.add(each, (5, 1))
        world.late.add(each)
    world.work(*lanes)
    world.late.clear()
    world.work()
    assert world.is_exactly_once
    assert {*world.service.queries} == {LANES}
    for each in lanes:
        world.pulsar.store(each, (5, 2))
        world.late.add(each)
    world.bell.ring(*lanes)
    for _ in range(module._MOST_STALLS + 1):
        world.reader.run_pass()
    for _ in lanes:
        world.reader.read_slowly()
    assert world.is_exactly_once
    assert SLOW_LANES in world.service.queries


def test_a_broker_that_stalls_for_several_tenants_makes_none_slow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RANGES_S", 0.2)
    lanes = [lane(f"t{number}") for number in range(module._STALL_TENANTS)]
    for each in lanes:
        world.add(each, (5, 1))
    goes_on = threading.Event()

    def stalls(_partition: str) -> Any:
        goes_on.wait()
        raise UnavailableError("late")

    with monkeypatch.context() as broken:
        broken.setattr(world.pulsar, "internal_stats", stalls)
        try:
            world.work(*lanes)
        finally:
            goes_on.set()
    world.work()
    assert world.is_exactly_once
    assert {*world.service.queries} == {LANES}


def test_a_lane_that_was_created_again_during_its_turn_is_read_by_one_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for another turn, and its tenant is no longer slow when it rings."""
    world.add(A, (5, 2))
    world.odd[A] = 0

    def created_again(partition: str) -> None:
        world.read_slowly = lambda _partition: None
        topics, world.topics = world.topics, {}
        world.reader.list_lanes()
        world.topics = topics
        world.pulsar.store(partition, (5, 2), (6, 3))
        world.reader.list_lanes()
        world.work(partition)

    world.read_slowly = created_again
    world.work(A, slowly=1)
    world.odd, world.now_s = {}, SLOW_S + 1
    take = world.service.take

    def take_beside_a_turn(*args: Any) -> None:
        monkeypatch.setattr(world.service, "take", take)
        world.reader.read_slowly()
        take(*args)  # its rows were read before the turn wrote receipts

    monkeypatch.setattr(world.service, "take", take_beside_a_turn)
    world.work(A)
    monkeypatch.setattr(world.service, "take", take)
    world.work(slowly=1)
    assert world.is_exactly_once


def test_partitions_of_a_failed_pass_stay_in_doubt_if_another_thread_takes_others_meanwhile(world: World) -> None:
    """Python may switch threads at each call, also between the read of an attribute and its replacement."""
    world.add(A, (5, 2))
    world.add(B, (6, 2))
    world.work(A, B)
    world.pulsar.store(B, (6, 4))

    class Switching(dict[str, Sequence[EntrySpan]]):
        def keys(self) -> Any:
            world.service.fails_after = UnavailableError("after the receipts")
            failing.start()
            failing.join()
            return super().keys()

    def fail() -> None:
        with pytest.raises(UnavailableError):
            world.work(B)

    failing = threading.Thread(target=fail)
    spans = Switching({A: [EntrySpan(5, 0, 1)]})
    world.reader.progress.take(SLOW_LANES, cast("Any", Rows()), 1, spans)
    if not failing.ident:
        world.service.fails_after = UnavailableError("after the receipts")
        fail()
    world.service._started |= {LANES, SLOW_LANES}
    world.work(slowly=1)
    assert world.is_exactly_once
