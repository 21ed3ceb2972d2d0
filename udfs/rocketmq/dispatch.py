"""The units that a broker creates for a record of the commitlog.

The rules are those of CommitLog.checkMessageAndReturnSize and ConsumeQueue.java:

1. A message is in the queue that its record names, unless it is prepared or rolled back.
2. Its tags code is the hash of its tag. In the schedule topic, it is the time at which the message is due.
3. A message that names queues in INNER_MULTI_DISPATCH is in each of those too, if the broker supports that
   (enableMultiDispatch). Messages of retry topics and of RocketMQ's own topics never are.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from udfs.rocketmq.commitlog import CommitLogRecord

LMQ_PREFIX = b"%LMQ%"
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
_NOT_MULTI = (b"%RETRY%", b"rmq_sys_", SCHEDULE_TOPIC)
# MessageStoreConfig.messageDelayLevel
DEFAULT_DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
# A broker in RocksDB mode keeps the rows of these, regardless of topics.json (cleanDeletedTopic).
_ALWAYS_KEPT = (LMQ_PREFIX, b"RMQ_SYS_", b"SCHEDULE_TOPIC", b"TRANS_CHECK_MAX_TIME_TOPIC")
_WHOLE = re.compile(rb"[+-]?[0-9]+")
_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Dispatch(NamedTuple):
    """The queue and the queue offset of a unit. Its message size and position are the record's."""

    topic: bytes
    queue_id: int
    offset: int


class DispatchRules(NamedTuple):
    """The settings of the broker that determine its units."""

    delays_ms: tuple[int, ...]  # of levels 1, 2, …
    is_multi: bool
    is_file_mode: bool = False  # the broker skips further queues whose names would be folders within folders


def is_kept(topic: bytes, topics: Collection[bytes]) -> bool:
    """Whether a broker in RocksDB mode keeps the rows of a topic: a known topic, an LMQ queue, or one of its own."""
    return topic in topics or topic.upper().startswith(_ALWAYS_KEPT)


def delays_of(levels: str) -> tuple[int, ...]:
    """Read messageDelayLevel, as in `1s 5s 10m`. Raises ValueError if it can't be read."""
    try:
        return tuple(int(level[:-1]) * _MS[level[-1]] for level in levels.split())
    except (KeyError, ValueError) as error:
        raise ValueError(f"messageDelayLevel can't be read: {levels!r}") from error


def properties_of(raw: bytes) -> dict[bytes, bytes]:
    """Parse a record's properties: `name 0x01 value 0x02` for each."""
    pairs = (pair.split(b"\x01", 1) for pair in raw.split(b"\x02"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def java_hash(text: str) -> int:
    """Return String.hashCode: over UTF-16, as a signed number of 32 bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def tags_code(record: CommitLogRecord, properties: Mapping[bytes, bytes], delays_ms: tuple[int, ...]) -> int:
    """Return the tags code of a record's units."""
    level_text = properties.get(b"DELAY")
    if record.topic == SCHEDULE_TOPIC and level_text is not None:
        level = min(int(level_text), len(delays_ms))
        if level > 0:
            return record.store_time + delays_ms[level - 1]
    tag = properties.get(b"TAGS", b"")
    return java_hash(tag.decode("utf-8", "replace")) if tag else 0


def units_of(record: CommitLogRecord, properties: Mapping[bytes, bytes], rules: DispatchRules) -> Iterator[Dispatch]:
    """Yield the units of a record. If a broker can't parse an entry of a list of further queues, it stops there."""
    if not record.is_indexed:
        return
    yield Dispatch(record.topic, record.queue_id, record.queue_offset)
    if not rules.is_multi or record.topic.startswith(_NOT_MULTI):
        return
    names, offsets = (_listed(properties, name) for name in (b"INNER_MULTI_DISPATCH", b"INNER_MULTI_QUEUE_OFFSET"))
    if len(names) != len(offsets):
        return
    for name, offset in zip(names, offsets, strict=True):
        if rules.is_file_mode and b"/" in name:
            continue
        if not _WHOLE.fullmatch(offset):
            return
        yield Dispatch(name, 0 if name.startswith(LMQ_PREFIX) else record.queue_id, int(offset))


def _listed(properties: Mapping[bytes, bytes], name: bytes) -> list[bytes]:
    """Split at commas as Java's String.split does: without the empty entries at the end."""
    value = properties.get(name, b"").rstrip(b",")
    return value.split(b",") if value else []
