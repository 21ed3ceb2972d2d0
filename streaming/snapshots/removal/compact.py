"""`ledger-reaper snapshots compact`: take away the tombstones that can be read in a namespace's segments topic.

While one can be read, brokers answer 500 to whoever deletes a loaded topic of the namespace. A deletion that failed so
leaves some itself. A compaction alone brings them back at the next one, as nothing new stands behind them; so a live
record of ours is sent first. A guard comes before that: what is compacted, brokers trim.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from streaming.errors import SafetyError, UnavailableError
from udfs.formats.internal_stats import Position
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.segments import keeper_of
from udfs.snapshots.values import ReadValue


class SegmentsTopics(Protocol):
    """The segments topics of namespaces. Every method raises UnavailableError, RefusedError."""

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        """Return which of the snapshot topics the namespace has."""
        ...

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        """Yield what a compacted reader gets."""
        ...

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Send a value, and return its place once it is stored."""
        ...

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        """Have the topic compacted; False where it did not end in time."""
        ...


def compact(namespace: str, topics: SegmentsTopics, guard: Callable[[str], object]) -> int:
    """Take the tombstones away, and return how many there were; where there are none, nothing is done.

    guard: makes one in the namespace.
    Raises SafetyError where the namespace has no segments topic, UnavailableError, RefusedError.
    """
    if SnapshotKind.SEGMENT not in topics.kinds(namespace):
        raise SafetyError(f"{namespace} has no segments topic")
    nulls = _nulls(namespace, topics)
    if not nulls:
        return 0
    guard(namespace)
    topics.send(namespace, SnapshotKind.SEGMENT, *keeper_of(namespace))
    if not topics.compact(namespace, SnapshotKind.SEGMENT):
        raise UnavailableError(f"the compaction of the segments of {namespace} has not ended yet: ask again in a while")
    if left := _nulls(namespace, topics):
        raise UnavailableError(
            f"{namespace}: {left} tombstones can still be read. If it stays so, somebody sent them without "
            "compression, and no compaction takes those away"
        )
    return nulls


def _nulls(namespace: str, topics: SegmentsTopics) -> int:
    return sum(read.is_null for read in topics.compacted(namespace, SnapshotKind.SEGMENT))
