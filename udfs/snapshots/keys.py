"""Keys of transaction-buffer snapshots in their compacted topics.

| what | key |
|---|---|
| single snapshot, index | full topic name `persistent://tenant/ns/name` |
| segment | `multiple-<sequence>-<full topic name>` |
| part of a snapshot in several parts | `parts-<generation>-<ids>-<bytes>-<number>-<full topic name>` |
| its last part | `parts-<generation>-<ids>-<bytes>-end-<full topic name>` |

apache/pulsar#16042 proposes `<topic>-1`, ..., `<topic>-end`. But part 1 of the topic `orders` would then have the key
of the single snapshot of the topic `orders-1`, and compaction would delete one of them. No topic's name starts with
`parts-`, and the topic comes last, so that no key is ambiguous.
"""

import re
from enum import StrEnum
from typing import NamedTuple

from udfs.paths import topic_of

_SEGMENT = re.compile(r"multiple-(0|-?[1-9][0-9]{0,18})-(persistent://.+)", re.ASCII | re.DOTALL)
_PART = re.compile(
    r"parts-([1-9][0-9]{0,17})-([1-9][0-9]{0,17})-([1-9][0-9]{0,17})-([1-9][0-9]{0,17}|end)-(persistent://.+)",
    re.ASCII | re.DOTALL,
)
# no topic has this name: the service writes it into the live record that follows its tombstones
KEEPER = "__ledger_reaper_keeper"
LEAST_CAPACITY_BYTES = 40  # four numbers of ten bytes: any id fits


class SnapshotKind(StrEnum):
    """The content of a compacted topic; the value is the topic's local name. PARTS is ours, the others are Pulsar's."""

    PARTS = "transaction_buffer_snapshot_parts"
    SINGLE = "__transaction_buffer_snapshot"
    SEGMENT = "__transaction_buffer_snapshot_segments"
    INDEX = "__transaction_buffer_snapshot_indexes"


class Capacity(NamedTuple):
    """The most that one part holds.

    Parts are filled greedily up to both bounds. So if earlier ids are gone when the parts are written again, a part
    ends at the same id as before, or at a later one.
    """

    ids: int
    size_bytes: int  # of the ids alone, without the rest of the value

    def checked(self) -> "Capacity":
        """Return itself. Raises ValueError if some ids would not fit into a part."""
        if self.ids < 1 or self.size_bytes < LEAST_CAPACITY_BYTES:
            raise ValueError(f"a part holds at least one id and {LEAST_CAPACITY_BYTES} bytes, not {tuple(self)}")
        return self


class PartKey(NamedTuple):
    """Key of one part. Parts of one generation have one capacity; a generation counts once its last part is stored."""

    generation: int
    capacity: Capacity
    number: int | None  # None: the last part (`end`), which alone contains the snapshot's maxReadPosition
    topic: str

    def __str__(self) -> str:
        """Return the key's text."""
        number = "end" if self.number is None else self.number
        return f"parts-{self.generation}-{self.capacity.ids}-{self.capacity.size_bytes}-{number}-{self.topic}"


class SegmentKey(NamedTuple):
    """Key of a segment of PIP-196."""

    sequence: int
    topic: str

    def __str__(self) -> str:
        """Return the key's text."""
        return f"multiple-{self.sequence}-{self.topic}"


def keeper_topic(namespace: str) -> str:
    """Return the topic name in the live record that follows our tombstones; no broker ever reads that record."""
    return f"persistent://{namespace}/{KEEPER}"


def is_keeper(topic: str) -> bool:
    """Whether it is a name that keeper_topic returns."""
    return topic.endswith(f"/{KEEPER}")


def part_key_of(key: str) -> PartKey | None:
    """Parse the key of a part; None for any other key."""
    match = _PART.fullmatch(key)
    if match is None or not is_topic(match[5]):
        return None
    capacity = Capacity(int(match[2]), int(match[3]))
    return PartKey(int(match[1]), capacity, None if match[4] == "end" else int(match[4]), match[5])


def segment_key_of(key: str) -> SegmentKey | None:
    """Parse the key of a segment; None for any other key."""
    match = _SEGMENT.fullmatch(key)
    return SegmentKey(int(match[1]), match[2]) if match and is_topic(match[2]) else None


def is_topic(key: str) -> bool:
    """Whether the key is a topic's full name, like the keys of single snapshots and indexes.

    A segment of a scalable topic has no snapshots: its transactions are in the metadata store.
    """
    try:
        return key.startswith("persistent://") and topic_of(key) == key
    except ValueError:
        return False
