"""The service removes snapshots while a broker writes: no existing topic loses a snapshot of its broker.

A broker deletes and recreates a topic, seals segments, names and drops them, and writes single snapshots: between
sweeps, and right before and after any of our messages. Sometimes the brokers do not answer: right before or after one
of our messages is stored, or when the service reads. After each sweep, and after the retry of requests that found no
broker:
a) each key of an existing topic has its broker's last value, except segments that the index has dropped;
b) the journal contains the bytes of every value that got a tombstone.
"""

import random

from streaming.errors import UnavailableError
from streaming.sweep.jobs import Job, Swept
from streaming.sweep.snapshots.snapshot_sweep import SnapshotSweeper
from tests.builders import MINUTE_MS, TOPIC, snapshot_request
from tests.unit.sweep.snapshots.test_snapshot_sweep import INDEX, OWNER, SEGMENT, SINGLE, World, index
from udfs.formats.internal_stats import Position
from udfs.paths import managed_ledger_path
from udfs.records import Outcome, PendingDelete, Reason
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.codec import Segment, Snapshot, encode_segment, encode_snapshot
from udfs.snapshots.keys import SegmentKey, SnapshotKind

RUNS, EVENTS, REMOVED, COMPLETED = 100, 60, 500, 20
FAILS = 0.06


class Broker:
    """The broker of a topic."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = World()
        self.is_alive = False
        self.number = 2
        self.count = 0
        self.named: dict[int, Position] = {}  # the index's segments by number
        self.left: set[str] = set()  # keys of trimmed segments
        self.wrote: dict[tuple[SnapshotKind, str], bytes] = {}  # the last value of each key
        self.since: dict[PendingDelete, int] = {}
        self.unsettled: list[PendingDelete] = []
        self.completed = 0
        self.is_reliable = False
        self.world.topics.fails = self.fail
        self.world.topics.on_send = self.world.topics.on_sent = self.disturb

    def act(self) -> None:
        kinds = ["delete", "seal", "seal", "name", "name", "single"] if self.is_alive else ["create"]
        getattr(self, f"_{self.dice.choice(kinds)}")()

    def disturb(self) -> None:
        """Sometimes act right before or after one of our messages."""
        if self.dice.random() < 0.1:
            self.act()
        self.world.topics.on_send = self.world.topics.on_sent = self.disturb

    def fail(self, where: str) -> None:
        if not self.is_reliable and self.dice.random() < FAILS:
            raise UnavailableError(where)

    def settle(self) -> None:
        """Act a few times, then retry requests that found no broker until all have succeeded."""
        for _event in range(self.dice.randrange(3)):
            self.act()
        while self.unsettled:
            self.is_reliable = self.dice.random() < 0.5
            self._sweep(self.unsettled)
        self.is_reliable = False

    def sweep(self) -> None:
        topics = self.world.topics
        latest = {(kind, read.key): read for kind, reads in topics.messages.items() for read in reads}
        requests = []
        for (kind, key), read in latest.items():
            if read.topic == OWNER and not read.is_null and self.dice.random() < 0.8:
                number = int(key.split("-")[1]) if kind is SEGMENT else 0
                requests.append(snapshot_request(kind, number, read.position))
        self.dice.shuffle(requests)
        self._sweep(requests)
        if self.unsettled:
            self.settle()

    def check(self) -> int:
        """Check both promises; return the number of our tombstones."""
        topics = self.world.topics
        latest = {(kind, read.key): read for kind, reads in topics.messages.items() for read in reads}
        if self.is_alive:
            for (kind, key), value in self.wrote.items():
                if kind is SEGMENT and key in self.left:
                    continue
                assert latest[kind, key].data == value, f"{key} of {kind} is gone"
        kept = {(entry.topic.rsplit("/", 1)[1], entry.key) for entry in self.world.journal.entries}
        gone = [(str(kind), key) for kind, key, value in topics.sent if value is None]
        assert set(gone) <= kept
        return len(gone)

    def _sweep(self, requests: list[PendingDelete]) -> None:
        topics, bench = self.world.topics, self.world.bench
        sweeper = SnapshotSweeper(topics, bench.loader(), self.world.journal, bench.clock, bench.rules())
        swept = sweeper.sweep([Job(request, self.since.get(request)) for request in requests], {})
        self._remember(requests, swept)

    def _remember(self, requests: list[PendingDelete], swept: list[Swept]) -> None:
        self.unsettled = []
        for request, result in zip(requests, swept, strict=True):
            if result.verdict.reason is Reason.STORE_UNAVAILABLE:
                self.unsettled.append(request)
                continue  # the retry keeps the time of the first check
            self.completed += "an earlier try" in result.verdict.detail
            if result.absent_since_ms is not None:
                self.since[request] = result.absent_since_ms
            elif result.verdict.outcome is not Outcome.RETRY:
                self.since.pop(request, None)

    def _add(self, kind: SnapshotKind, key: str, value: bytes) -> Position:
        topics = self.world.topics
        topics.publish_ms = self.world.bench.clock.now_ms()
        self.wrote[kind, key] = value
        return topics.add(kind, key, value)

    def _create(self) -> None:
        """Create the topic again: it starts from the index that the deleted topic left."""
        self.is_alive = True
        self.world.revive()
        latest = {(kind, read.key): read for kind, reads in self.world.topics.messages.items() for read in reads}
        self.wrote, self.named, self.left = {}, {}, set()
        self._single()
        index_read = latest.get((INDEX, OWNER))
        self.number = self.number if index_read is not None and not index_read.is_null else 0

    def _delete(self) -> None:
        self.is_alive = False
        self.world.bench.tree.remove(managed_ledger_path(TOPIC))
        self.world.bench.broker.topics.pop(TOPIC)

    def _seal(self) -> None:
        self.count += 1
        value = encode_segment(Segment(OWNER, self.number, (8, self.count), ids_of([(0, self.count)])))
        position = self._add(SEGMENT, str(SegmentKey(self.number, OWNER)), value)
        self.named[self.number] = position
        self.left.discard(str(SegmentKey(self.number, OWNER)))
        self.number += 1
        if self.dice.random() < 0.7:
            self._name()

    def _name(self) -> None:
        if self.named and self.dice.random() < 0.4:
            number = min(self.named)
            del self.named[number]  # trimmed
            self.left.add(str(SegmentKey(number, OWNER)))
        self._add(INDEX, OWNER, index(*self.named.items()))

    def _single(self) -> None:
        self.count += 1
        value = encode_snapshot(Snapshot(OWNER, (8, self.count), aborts_of([(0, self.count, 8, 0)])))
        self._add(SINGLE, OWNER, value)


def test_no_existing_topic_loses_a_snapshot_of_its_broker() -> None:
    removed = completed = 0
    for seed in range(RUNS):
        broker = Broker(seed)
        for _event in range(EVENTS):
            broker.world.bench.age(broker.dice.choice([MINUTE_MS, *[11 * MINUTE_MS] * 4, 26 * 60 * MINUTE_MS]))
            (broker.sweep if broker.dice.random() < 0.7 else broker.act)()
            broker.check()
        removed += broker.check()
        completed += broker.completed
    assert completed > COMPLETED, completed
    assert removed > REMOVED, removed  # otherwise the test would show nothing
