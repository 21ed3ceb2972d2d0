"""A sweep's access to a cluster's snapshot topics: reads them, sends tombstones, and requests compactions."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from streaming.adapters.pulsar.snapshots.keyed import KeyedSender
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.guard_rules import Holds, lowest_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue

GUARD = "ledger-reaper-guard"  # the durable subscription that prevents segments from being trimmed
NO_LIMIT = (-1, -1)  # retention of everything
_POLLS, _POLL_SECONDS = 60, 0.5


class SnapshotStore:
    """The snapshot topics of a cluster. Every method raises UnavailableError, RefusedError."""

    def __init__(
        self, settings: PulsarSettings, topics: SnapshotTopics, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._sleep = sleep
        self._senders: dict[str, KeyedSender] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Return itself; the block's end closes its producers."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the producers."""
        self._stack.close()

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        """Return the kinds of snapshot topics that exist in the namespace."""
        present = self._topics.present(namespace)
        return {kind for kind in SnapshotKind if system_topic(namespace, kind) in present}

    def last(self, namespace: str, kind: SnapshotKind) -> Position:
        """Return the position of the topic's newest entry."""
        return self._topics.admin.internal_stats(system_topic(namespace, kind)).last

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        """Yield the messages that a compacted reader gets; the last message of a key counts."""
        return self._topics.compacted(namespace, kind, with_bytes_of)

    def stored(
        self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL, with_bytes_of: Collection[str] = ()
    ) -> Iterator[ReadValue]:
        """Yield the messages after a position in the topic's own ledgers."""
        return self._topics.stored(namespace, kind, after, with_bytes_of)

    def is_guarded(self, namespace: str) -> bool:
        """Whether the segments that indexes name are protected by unlimited retention, or by a guard before them all.

        A guard after a segment protects only later segments. Segments whose ledger is gone are ignored.
        """
        return is_guarded(self._topics, namespace)

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Send a value, or a tombstone (None), and return its position once it is stored."""
        topic = system_topic(namespace, kind)
        if topic not in self._senders:
            if topic not in self._topics.present(namespace):
                raise RefusedError(f"{topic} does not exist, and only brokers create it")
            # kept until the store is closed: a namespace has at most three of them
            self._senders[topic] = self._stack.enter_context(KeyedSender(self._settings, topic))
        return self._senders[topic].send(key, value)

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        """Request a compaction, and return whether it created a new compacted ledger within 30 s."""
        topic = system_topic(namespace, kind)
        before = self._topics.admin.internal_stats(topic).compacted[0]
        self._topics.more.ask_for_compaction(topic)
        for _poll in range(_POLLS):
            self._sleep(_POLL_SECONDS)
            if self._topics.admin.internal_stats(topic).compacted[0] != before:
                return True
        return False


def is_guarded(topics: SnapshotTopics, namespace: str) -> bool:
    """Do the same as SnapshotStore.is_guarded. Raises UnavailableError, RefusedError."""
    topic = system_topic(namespace, SnapshotKind.SEGMENT)
    if topics.admin.retention(topic) == NO_LIMIT:
        return True
    stats = topics.admin.internal_stats(topic)
    if not stats.has_subscription(GUARD):
        return False
    # nothing can protect segments whose ledger is gone
    holds = Holds(frozenset(ledger for ledger, _entries in stats.ledgers))
    if system_topic(namespace, SnapshotKind.INDEX) in topics.present(namespace):
        for read in topics.compacted(namespace, SnapshotKind.INDEX):
            holds.take(read)
    lowest = lowest_of(holds.by_topic)
    return lowest is None or stats.mark_deleted(GUARD) < lowest
