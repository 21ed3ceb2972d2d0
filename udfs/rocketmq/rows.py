"""Keys and values of RocketMQ's RocksDB consume queues (RocksDBConsumeQueueTable, RocksDBConsumeQueueOffsetTable).

Column family `default`: one row for each message of each queue. Its key is the length of the topic's name (4 bytes),
0x01, the name, 0x01, the queue id (4), 0x01 and the queue offset (8). So rows are sorted by name length, name, queue
and offset. Its value is the message's position in the commitlog (8), its size (4), its tags code (8) and its store time
in milliseconds (8).

Column family `offset`: a row `max` for each queue (start of the last message, its queue offset), a row `min` (the same
of the first message that the commitlog still has), and one CHECKPOINT for all queues. All numbers are big-endian and
signed.
"""

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udfs.rocketmq.queue_units import Longs, Units

SEPARATOR = b"\x01"
OFFSET_FAMILY = "offset"
CHECKPOINT_TOPIC = b"CHECKPOINT_TOPIC"
VALUE_BYTES = 28
# RocksDBConsumeQueueStore has a key buffer of 300 bytes; a key takes 19 bytes besides the topic's name.
TOPIC_BYTES_MAX = 281

_VALUE = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags", ">i8"), ("time", ">i8")])


class RowKey(NamedTuple):
    """The parts of a key of the column family `default`."""

    topic: bytes
    queue_id: int
    offset: int


def queue_prefix(topic: bytes, queue_id: int) -> bytes:
    """Return the prefix of all keys of a queue: a key without its offset. Queues are sorted by it."""
    return struct.pack(">i", len(topic)) + SEPARATOR + topic + SEPARATOR + struct.pack(">i", queue_id) + SEPARATOR


def unit_key(topic: bytes, queue_id: int, offset: int) -> bytes:
    """Return the key of one unit."""
    return queue_prefix(topic, queue_id) + struct.pack(">q", offset)


def unit_keys(prefix: bytes, first: int, count: int) -> list[bytes]:
    """Return the keys of `count` units from the queue offset `first` on, in order."""
    width = len(prefix) + 8
    keys = np.empty((count, width), dtype=np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    offsets = np.arange(first, first + count, dtype=np.int64).astype(">i8")
    keys[:, len(prefix) :] = offsets.view(np.uint8).reshape(count, 8)
    result: list[bytes] = keys.view(f"V{width}").ravel().tolist()
    return result


def unit_values(units: Units, store_times: Longs) -> list[bytes]:
    """Return the values of units. `store_times` are in milliseconds, in the same order."""
    return listed(packed_values(units, store_times))


def packed_values(units: Units, store_times: Longs) -> NDArray[np.void]:
    """Return the values of units as an array of bytes."""
    raw = np.empty(units.rows, dtype=_VALUE)
    raw["phy"], raw["size"], raw["tags"], raw["time"] = units.phy, units.size, units.tags, store_times
    return raw.view(f"V{VALUE_BYTES}")


def listed(values: NDArray[np.void]) -> list[bytes]:
    """Convert an array of values into a list."""
    result: list[bytes] = values.tolist()
    return result


def decode_key(key: bytes) -> RowKey:
    """Parse a key of the column family `default`. Raises ValueError for an invalid key."""
    if len(key) < 19:
        raise ValueError(f"a key of {len(key)} bytes is too short")
    (length,) = struct.unpack_from(">i", key)
    if length != len(key) - 19:
        raise ValueError(f"a key of {len(key)} bytes can't name a topic of {length} bytes")
    queue_id, offset = struct.unpack(">i1xq", key[length + 6 :])
    if (key[4:5], key[length + 5 : length + 6], key[length + 10 : length + 11]) != (SEPARATOR,) * 3:
        raise ValueError("a key's parts are not separated by 0x01")
    return RowKey(key[5 : length + 5], queue_id, offset)


def key_offsets(keys: list[bytes], prefix: bytes) -> Longs:
    """Return the queue offsets of keys that start with the prefix. Raises ValueError if a key has another length."""
    width = len(prefix) + 8
    data = b"".join(keys)
    if any(len(key) != width for key in keys):
        raise ValueError(f"a key of the queue does not have {width} bytes")
    raw: NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8).reshape(len(keys), width)[:, len(prefix) :]
    return np.ascontiguousarray(raw).view(">i8").ravel().astype(np.int64)


def decode_values(values: list[bytes]) -> tuple[Units, Longs]:
    """Parse values into units and store times. Raises ValueError if a value does not have 28 bytes."""
    if any(len(value) != VALUE_BYTES for value in values):
        raise ValueError(f"a value does not have {VALUE_BYTES} bytes")
    raw = np.frombuffer(b"".join(values), dtype=_VALUE)
    units = Units(raw["phy"].astype(np.int64), raw["size"].astype(np.int32), raw["tags"].astype(np.int64))
    return units, raw["time"].astype(np.int64)


def max_key(topic: bytes, queue_id: int) -> bytes:
    """Return the key of a queue's last unit in the column family `offset`."""
    return _bound_key(topic, b"max", queue_id)


def min_key(topic: bytes, queue_id: int) -> bytes:
    """Return the key of a queue's first live unit in the column family `offset`."""
    return _bound_key(topic, b"min", queue_id)


def bound_value(phy: int, offset: int) -> bytes:
    """Return the value of a `max` or `min` row: the *start* of the unit's message, and the unit's own queue offset."""
    return struct.pack(">qq", phy, offset)


def decode_bound(value: bytes) -> tuple[int, int]:
    """Parse a `max` or `min` value: start of the message, queue offset. Raises ValueError for an invalid value."""
    if len(value) != 16:
        raise ValueError(f"a max or min value has {len(value)} bytes instead of 16")
    phy, offset = struct.unpack(">qq", value)
    return phy, offset


def checkpoint_key() -> bytes:
    """Return the key of the row CHECKPOINT, which records how far the commitlog is indexed."""
    return max_key(CHECKPOINT_TOPIC, 0)


def checkpoint_value(phy: int) -> bytes:
    """Return the value of CHECKPOINT.

    phy is the *start* of the last indexed message. A broker resumes with the messages that start after CHECKPOINT. So
    with the end of that message as CHECKPOINT, which brokers themselves write, it would skip the next message.
    """
    return struct.pack(">q", phy)


def decode_checkpoint(value: bytes) -> int:
    """Parse CHECKPOINT. Raises ValueError if it does not have 8 bytes."""
    if len(value) != 8:
        raise ValueError(f"CHECKPOINT has {len(value)} bytes instead of 8")
    (phy,) = struct.unpack(">q", value)
    return int(phy)


def decode_bound_key(key: bytes) -> tuple[bytes, str, int]:
    """Parse a key of the column family `offset`: topic, `max` or `min`, queue id. Raises ValueError for another key."""
    if len(key) < 14:
        raise ValueError(f"a key of {len(key)} bytes is too short")
    (length,) = struct.unpack_from(">i", key)
    bound = key[length + 6 : length + 9] if 0 <= length == len(key) - 14 else b""
    if bound not in (b"max", b"min"):
        raise ValueError("a key of the column family `offset` names neither max nor min")
    (queue_id,) = struct.unpack(">i", key[-4:])
    return key[5 : length + 5], bound.decode("ascii"), queue_id


def _bound_key(topic: bytes, bound: bytes, queue_id: int) -> bytes:
    length = struct.pack(">i", len(topic))
    return length + SEPARATOR + topic + SEPARATOR + bound + SEPARATOR + struct.pack(">i", queue_id)
