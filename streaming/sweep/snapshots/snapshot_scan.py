"""Reads the snapshot topics of a namespace: a scan before a sweep sends tombstones, and the changes since then."""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from streaming.errors import RefusedError, UnavailableError
from streaming.sweep.snapshots.snapshot_jobs import SnapshotJob, Snapshots
from udfs.formats.internal_stats import Position
from udfs.records import Outcome, Reason, Verdict
from udfs.snapshots.codec import Index
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.sealed_segments import keeper_of, named_segments
from udfs.snapshots.topic_findings import IndexState
from udfs.snapshots.values import ReadValue
from udfs.verdicts.judge_snapshot import IndexFacts

log = logging.getLogger("ledger-reaper")

_READ_WITH = {
    SnapshotKind.SINGLE: (SnapshotKind.SINGLE,),
    SnapshotKind.SEGMENT: (SnapshotKind.SEGMENT, SnapshotKind.INDEX),
    SnapshotKind.INDEX: (SnapshotKind.SEGMENT, SnapshotKind.INDEX),
}


class TopicsFailedError(Exception):
    """The brokers failed for a namespace; carries the verdict for its requests."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


@dataclass(slots=True, kw_only=True)
class Scan:
    """The result of a scan: what a verdict on messages of one kind rests on."""

    last: dict[SnapshotKind, Position] = field(default_factory=dict)  # the last entry of each topic before the scan
    latest: dict[tuple[SnapshotKind, str], ReadValue] = field(default_factory=dict)  # the requested keys
    segments: dict[str, set[str]] = field(default_factory=dict)  # owner -> keys
    indexes: dict[str, IndexFacts] = field(default_factory=dict)  # by owner
    is_guarded: bool = False
    segment_tombstones: int = 0

    def is_missing(self, kind: SnapshotKind, key: str) -> bool:
        """Whether the topic exists, but has a tombstone or nothing for this key."""
        latest = self.latest.get((kind, key))
        return kind in self.last and (latest is None or latest.is_null)

    def take(self, read: ReadValue, keys: Collection[str], owners: Collection[str]) -> None:
        """Take the next message of a topic; the last message of a key counts."""
        self.segment_tombstones += read.kind is SnapshotKind.SEGMENT and read.is_null
        if read.key in keys:
            self.latest[read.kind, read.key] = read
        if read.topic not in owners:
            return
        if read.kind is SnapshotKind.INDEX:
            self.indexes[read.topic] = _index(read)
        elif read.kind is SnapshotKind.SEGMENT:
            segments = self.segments.setdefault(read.topic, set())
            is_value = not read.is_null and read.fault is None
            (segments.add if is_value else segments.discard)(read.key)


@dataclass(frozen=True, slots=True)
class Namespace:
    """The snapshot topics of a namespace; every failure of the brokers becomes a TopicsFailedError."""

    topics: Snapshots
    name: str
    with_tombstones: set[SnapshotKind] = field(default_factory=set)  # topics in which a scan found tombstones

    def scan(self, kind: SnapshotKind, jobs: Sequence[SnapshotJob]) -> Scan:
        """Read the facts for these jobs, all of one kind."""
        with _broker_failures():
            scan = Scan()
            keys = {job.context.key for job in jobs}
            owners = {job.topic for job in jobs}
            present = self.topics.kinds(self.name)
            for read_kind in _READ_WITH[kind]:
                if read_kind in present:
                    keys_to_read = keys if read_kind is kind else ()
                    scan.last[read_kind] = self.topics.last(self.name, read_kind)
                    for read in self.topics.compacted(self.name, read_kind, keys_to_read):
                        scan.take(read, keys_to_read, owners)
            if kind is SnapshotKind.SEGMENT and scan.segment_tombstones:
                self.with_tombstones.add(kind)
            scan.is_guarded = kind is SnapshotKind.SEGMENT and kind in present and self.topics.is_guarded(self.name)
            return scan

    def send(self, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Send a value, or a tombstone (None)."""
        with _broker_failures():
            return self.topics.send(self.name, kind, key, value)

    def written_since(self, kind: SnapshotKind, scan: Scan, keys: Collection[str]) -> list[ReadValue]:
        """Return the messages with these keys that were written since the scan."""
        return self.written_after(kind, scan.last[kind], keys)

    def written_after(self, kind: SnapshotKind, position: Position, keys: Collection[str]) -> list[ReadValue]:
        """Return the messages with these keys after a position, as far as the topic still has them."""
        with _broker_failures():
            return [read for read in self.topics.stored(self.name, kind, position, keys) if read.key in keys]

    def named_since(self, scan: Scan, owners: Collection[str]) -> set[tuple[str, object]]:
        """Return the segments that indexes written since the scan name: as (owner, number) and (owner, position)."""
        with _broker_failures():
            if SnapshotKind.INDEX not in scan.last:
                return set()
            named: set[tuple[str, object]] = set()
            for read in self.topics.stored(self.name, SnapshotKind.INDEX, scan.last[SnapshotKind.INDEX]):
                if read.topic in owners and isinstance(read.value, Index):
                    for number, position, _marker in named_segments(read.value):
                        named |= {(read.topic, number), (read.topic, position)}
            return named

    def compact_tombstones(self, kind: SnapshotKind) -> None:
        """Have the topic compacted, so that its tombstones can no longer be read."""
        with _broker_failures():
            if kind is SnapshotKind.SEGMENT and not self.topics.is_guarded(self.name):
                log.error("%s: its guard is gone or misses a segment; its tombstones are not compacted away", self.name)
                return
            if kind is SnapshotKind.SEGMENT:
                # A compaction that finds no new message after the tombstones makes them readable again, so a live
                # record is written first.
                self.topics.send(self.name, kind, *keeper_of(self.name))
            has_ended = self.topics.compact(self.name, kind)
            if kind is SnapshotKind.SEGMENT and has_ended and self._has_readable_tombstones():
                has_ended = self.topics.compact(self.name, kind)  # the first had started before our record was stored
            if not has_ended:
                log.warning("%s: compaction of %s has not ended; until then tombstones can be read", self.name, kind)

    def _has_readable_tombstones(self) -> bool:
        return any(read.is_null for read in self.topics.compacted(self.name, SnapshotKind.SEGMENT))


@contextmanager
def _broker_failures() -> Iterator[None]:
    """Wrap calls to brokers only: if ZooKeeper fails, all requests have to wait, not just those of one namespace."""
    try:
        yield
    except UnavailableError as error:
        raise TopicsFailedError(Verdict(Outcome.RETRY, Reason.STORE_UNAVAILABLE, str(error))) from error
    except RefusedError as error:
        raise TopicsFailedError(Verdict(Outcome.RETRY, Reason.STORE_REFUSED, str(error))) from error


def _index(read: ReadValue) -> IndexFacts:
    if read.is_null:
        return IndexFacts()
    if not isinstance(read.value, Index):
        return IndexFacts(IndexState.FAULTY)
    rows = list(named_segments(read.value))
    numbers = frozenset(number for number, _position, _marker in rows)
    return IndexFacts(IndexState.READABLE, numbers, frozenset(position for _number, position, _marker in rows))
