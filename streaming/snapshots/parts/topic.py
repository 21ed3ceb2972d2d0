"""Snapshots in parts (apache/pulsar#16042) on a real compacted topic: written message by message, and recovered.

The topic is ours, beside Pulsar's three: `transaction_buffer_snapshot_parts` of the user topic's namespace. The rules
of writing and recovering are in udfs/snapshots/snapshot_parts.py.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from streaming.errors import RefusedError, UnavailableError
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import InternalStats, Position
from udfs.owners.references import COMPACTION_CURSOR
from udfs.snapshots import snapshot_parts
from udfs.snapshots.aborts import Aborts
from udfs.snapshots.keys import Capacity, SnapshotKind
from udfs.snapshots.snapshot_parts import Recovered
from udfs.snapshots.values import ReadValue

COMPACT_ABOVE_BYTES = 64 * 1024 * 1024
MOST_BYTES = 1024 * 1024 * 1024  # of one topic's parts; ten million ids take a tenth of it
MOST_KEYS = 100_000  # of one topic
_TRIES, _WAIT_SECONDS = 40, 0.25  # a broker creates the cursor when it learns of the threshold


class Sender(Protocol):
    """A producer that waits for each acknowledgement before it sends the next message."""

    def send(self, key: str, value: bytes | None) -> Position:
        """Send a message, or a tombstone (None). Raises UnavailableError: the message may be stored or not."""
        ...


class PartsAdmin(Protocol):
    """The calls of the admin API."""

    def create_topic(self, topic: str) -> bool:
        """Create a topic that is not partitioned; False if the topic exists."""
        ...

    def internal_stats(self, topic: str) -> InternalStats:
        """Return the broker's internalStats."""
        ...

    def set_compaction_threshold(self, topic: str, *, size_bytes: int) -> None:
        """Let the broker compact the topic whenever this many bytes were written after the last compaction."""
        ...


@dataclass(frozen=True, slots=True)
class PartsTopic:
    """One namespace's topic of parts."""

    topic: str
    read: Callable[[], Iterator[ReadValue]]  # yields the messages that a compacted reader gets

    def write(self, sender: Sender, owner: str, aborts: Aborts, max_read: Position, capacity: Capacity) -> None:
        """Store a snapshot of the topic `owner`. After an interruption, write it again from the start.

        An owner's parts may have only one writer at a time. aborts: in the order of their markers. Raises
        UnavailableError.
        """
        for step in snapshot_parts.write(owner, aborts, max_read, capacity, self._present(owner)):
            sender.send(step.key, step.value)

    def retire(self, sender: Sender, owner: str) -> None:
        """Tombstone all parts of an owner, once another form has replaced them. Raises UnavailableError."""
        for step in snapshot_parts.retire(owner, self._present(owner)):
            sender.send(step.key, step.value)

    def recover(self, owner: str, ledgers: Collection[int]) -> Recovered:
        """Return the snapshot in the parts of an owner. ledgers: its list of ledgers.

        Raises FormatError if a part can't be read, or the parts exceed the limits of one topic: then replay the whole
        topic. Raises UnavailableError.
        """
        latest = _Latest()
        for read in self.read():
            if read.topic == owner:
                latest.take(read)
        return snapshot_parts.recover(latest.values, owner, ledgers)

    def _present(self, owner: str) -> set[str]:
        keys: set[str] = set()
        for read in self.read():
            if read.topic != owner:
                continue
            (keys.discard if read.is_null else keys.add)(read.key)
            if len(keys) > MOST_KEYS:
                raise RefusedError(
                    f"{self.topic} has more than {MOST_KEYS} keys of {owner}: find out who publishes there"
                )
        return keys


class _Latest:
    """The latest value of each key of one owner, as bytes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._size = 0

    def take(self, read: ReadValue) -> None:
        self._size -= len(self.values.pop(read.key, b""))
        if read.is_null:
            return
        self.values[read.key] = read.data
        self._size += len(read.data)
        if self._size > MOST_BYTES or len(self.values) > MOST_KEYS:
            raise FormatError(f"the parts of {read.topic} take more than {MOST_BYTES} bytes or {MOST_KEYS} keys")


def ensure(admin: PartsAdmin, namespace: str, sleep: Callable[[float], None] = time.sleep) -> str:
    """Create a namespace's topic of parts if it is missing, and make brokers keep its messages until compaction.

    Returns the topic's name. Raises UnavailableError, RefusedError.
    """
    topic = f"persistent://{namespace}/{SnapshotKind.PARTS}"
    admin.create_topic(topic)
    # The threshold makes the broker create the cursor of compaction. Nothing else keeps the topic's ledgers, so the
    # cursor must exist before the first message
    admin.set_compaction_threshold(topic, size_bytes=COMPACT_ABOVE_BYTES)
    for _try in range(_TRIES):
        if COMPACTION_CURSOR in admin.internal_stats(topic).cursors:
            return topic
        sleep(_WAIT_SECONDS)
    raise UnavailableError(f"{topic} has no cursor of compaction yet, so its ledgers could be trimmed: try again")
