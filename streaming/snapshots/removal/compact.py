"""`ledger-reaper snapshots compact`: remove the visible tombstones in a namespace's segments topic.

While a reader gets a tombstone, brokers answer 500 when a client deletes a loaded topic of the namespace. Such a failed
deletion leaves further tombstones.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from streaming.errors import SafetyError, UnavailableError
from udfs.formats.internal_stats import Position
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.sealed_segments import keeper_of
from udfs.snapshots.values import ReadValue


class SegmentsTopics(Protocol):
    """The segments topics of namespaces. Every method raises UnavailableError, RefusedError."""

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        """Return which of the snapshot topics the namespace has."""
        ...

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        """Yield the messages that a compacted reader gets."""
        ...

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Send a value, and return its position once it is stored."""
        ...

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        """Compact the topic; False if the compaction did not end in time."""
        ...


def compact(namespace: str, topics: SegmentsTopics, guard: Callable[[str], object]) -> int:
    """Remove the tombstones, and return how many there were; without tombstones, do nothing.

    guard: guards the namespace. Raises SafetyError if the namespace has no segments topic, UnavailableError,
    RefusedError.
    """
    if SnapshotKind.SEGMENT not in topics.kinds(namespace):
        raise SafetyError(f"{namespace} has no segments topic")
    nulls = _nulls(namespace, topics)
    if not nulls:
        return 0
    # brokers trim the ledgers that are compacted, even if indexes name segments in them
    guard(namespace)
    # a live record: without a new message after the tombstones, the next compaction would show them again
    topics.send(namespace, SnapshotKind.SEGMENT, *keeper_of(namespace))
    if not topics.compact(namespace, SnapshotKind.SEGMENT):
        raise UnavailableError(f"the compaction of the segments of {namespace} has not ended yet: try again later")
    if left := _nulls(namespace, topics):
        raise UnavailableError(
            f"{namespace}: {left} tombstones are still visible. If they stay, a client sent them without compression, "
            "and no compaction removes those"
        )
    return nulls


def _nulls(namespace: str, topics: SegmentsTopics) -> int:
    return sum(read.is_null for read in topics.compacted(namespace, SnapshotKind.SEGMENT))
