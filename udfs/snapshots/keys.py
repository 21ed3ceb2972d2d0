"""Keys of transaction-buffer snapshots in their compacted topics.

| what | key |
|---|---|
| single snapshot, index | full topic name `persistent://tenant/ns/name` |
| segment | `multiple-<sequence>-<full topic name>` |
| part of a snapshot in several parts | `parts-<generation>-<ids>-<bytes>-<number>-<full topic name>` |
| its last part | `parts-<generation>-<ids>-<bytes>-end-<full topic name>` |

apache/pulsar#16042 proposes `<topic>-1`, ..., `<topic>-end`. But part 1 of the topic `orders` would then have the key
of the single snapshot of the topic `orders-1`, and compaction would keep one of the two. A key that begins with
`parts-` is no topic's name, and the topic stands last, so that every key can be taken apart in one way only.
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
KEEPER = "__ledger_reaper_keeper"  # no topic: the name under which we write a live record behind tombstones of ours
LEAST_CAPACITY_BYTES = 40  # four numbers of ten bytes: any one id fits


class SnapshotKind(StrEnum):
    """What a compacted topic holds; the value is the topic's local name. PARTS is ours, the others are Pulsar's."""

    PARTS = "transaction_buffer_snapshot_parts"
    SINGLE = "__transaction_buffer_snapshot"
    SEGMENT = "__transaction_buffer_snapshot_segments"
    INDEX = "__transaction_buffer_snapshot_indexes"


class Capacity(NamedTuple):
    """How much one part holds: so many ids, and so many bytes of ids (what surrounds them comes on top).

    Both bounds fill parts greedily, so a part never ends earlier when ids before it have gone.
    """

    ids: int
    size_bytes: int

    def checked(self) -> "Capacity":
        """Return itself. Raises ValueError for one that not every id fits into."""
        if self.ids < 1 or self.size_bytes < LEAST_CAPACITY_BYTES:
            raise ValueError(f"a part holds at least one id and {LEAST_CAPACITY_BYTES} bytes, not {tuple(self)}")
        return self


class PartKey(NamedTuple):
    """Key of one part. number None: the last one (`end`), which alone knows up to where the snapshot is complete.

    Parts of one generation have one capacity; a generation counts once its last part is there.
    """

    generation: int
    capacity: Capacity
    number: int | None
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
    """Return the name that our live record behind tombstones has for a topic's; no broker ever reads it."""
    return f"persistent://{namespace}/{KEEPER}"


def is_keeper(topic: str) -> bool:
    """Whether it is such a name."""
    return topic.endswith(f"/{KEEPER}")


def part_key_of(key: str) -> PartKey | None:
    """Read the key of a part; None where it is none."""
    found = _PART.fullmatch(key)
    if found is None or not is_topic(found[5]):
        return None
    capacity = Capacity(int(found[2]), int(found[3]))
    return PartKey(int(found[1]), capacity, None if found[4] == "end" else int(found[4]), found[5])


def segment_key_of(key: str) -> SegmentKey | None:
    """Read the key of a segment; None where it is none."""
    found = _SEGMENT.fullmatch(key)
    return SegmentKey(int(found[1]), found[2]) if found and is_topic(found[2]) else None


def is_topic(key: str) -> bool:
    """Whether the key is a topic's full name, as single snapshots and indexes have it."""
    try:
        return topic_of(key) == key
    except ValueError:
        return False
