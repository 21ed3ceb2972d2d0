"""Records of RocketMQ's commitlog (MessageDecoder.java, CommitLog.java), read one by one or many at once.

Fixed part: size (4), magic (4), CRC of the body (4), queue id (4), flag (4), queue offset (8), own physical offset (8),
system flag (4), time of birth (8), its host (8, or 20 if the flag contains IPv6), store time (8), its host, reconsume
times (4), offset of the prepared message (8). Then the body with its length (4), the topic with its length (1 byte in
version 1, 2 in version 2) and the properties with their length (2). All numbers are big-endian and signed.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udfs.rocketmq.queue_units import Ints, Longs

MAGIC_V1 = 0xDAA320A7 - 2**32
MAGIC_V2 = 0xDAA320AB - 2**32
# This magic marks the end of a file's records.
MAGIC_BLANK = 0xCBD43194 - 2**32
BORN_HOST_V6, STORE_HOST_V6 = 0x10, 0x20
TRANSACTION = 0xC
_INDEXED = (0, 8)  # no transaction, or a committed one; prepared (4) and rolled back (12) messages are in no queue
HEADER_BYTES = 76  # enough for the store time of either form
RECORD_BYTES_MIN = 91
_FIXED = struct.Struct(">iiiiiqqiq")
_GATHERED = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"),
                      ("queue_offset", ">i8"), ("phy", ">i8"), ("sys_flag", ">i4"), ("born", ">i8")])  # fmt: skip
_GATHERED_BYTES = np.dtype((np.void, _GATHERED.itemsize))  # numpy copies it whole, and _GATHERED field by field


class BadRecordError(ValueError):
    """No record starts at `position`, a byte of the file; `text` describes the fault."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(position, text)
        self.position, self.text = position, text


class RecordHeaders(NamedTuple):
    """Columns of the fixed parts of records, in native byte order."""

    size: Ints
    magic: Ints
    queue_id: Ints
    queue_offset: Longs
    phy: Longs
    store_time: Longs

    def put(self, where: slice, headers: "RecordHeaders") -> None:
        """Overwrite the rows `where`."""
        columns: Iterator[tuple[NDArray[Any], NDArray[Any]]] = zip(self, headers, strict=True)
        for column, values in columns:
            column[where] = values


class CommitLogRecord(NamedTuple):
    """A message of the commitlog."""

    phy: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_time: int
    topic: bytes
    properties: bytes  # raw; `properties_of` parses them

    @property
    def is_indexed(self) -> bool:
        """Whether the message is in a queue."""
        return self.sys_flag & TRANSACTION in _INDEXED


def no_headers(count: int) -> RecordHeaders:
    """Allocate `count` headers, which `put` fills."""
    size, magic, queue_id = (np.empty(count, np.int32) for _column in range(3))
    queue_offset, phy, store_time = (np.empty(count, np.int64) for _column in range(3))
    return RecordHeaders(
        size=size, magic=magic, queue_id=queue_id, queue_offset=queue_offset, phy=phy, store_time=store_time
    )


def headers_at(log: NDArray[np.uint8], positions: Longs) -> RecordHeaders:
    """Read the fixed parts of the records at these bytes of a commitlog file, without a loop.

    Raises BadRecordError for the first position at which no record starts.
    """
    too_late = positions + HEADER_BYTES > log.shape[0]
    if bool(too_late.any()):
        raise BadRecordError(int(positions[np.argmax(too_late)]), "a record does not fit into the rest of the file")
    raw = _at_any_byte(log, _GATHERED_BYTES)[positions].view(_GATHERED)
    magic = raw["magic"].astype(np.int32)
    is_strange = (magic != MAGIC_V1) & (magic != MAGIC_V2)
    if bool(is_strange.any()):
        row = int(np.argmax(is_strange))
        raise BadRecordError(int(positions[row]), f"wrong magic {int(magic[row]) & 0xFFFFFFFF:#010x}")
    is_v6 = (raw["sys_flag"].astype(np.int32) & BORN_HOST_V6) != 0
    time_at = positions + np.where(is_v6, 68, 56)
    times = _at_any_byte(log, np.dtype(">i8"))[time_at].astype(np.int64)
    return RecordHeaders(
        size=raw["size"].astype(np.int32), magic=magic, queue_id=raw["queue_id"].astype(np.int32),
        queue_offset=raw["queue_offset"].astype(np.int64), phy=raw["phy"].astype(np.int64), store_time=times,
    )  # fmt: skip


def _at_any_byte(log: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """View the same memory as values of this type that start at every byte."""
    return np.ndarray(shape=(log.shape[0] - dtype.itemsize + 1,), dtype=dtype, buffer=log.data, strides=(1,))


def walk(log: memoryview, start: int, position: int = 0) -> Iterator[CommitLogRecord]:
    """Yield the records of a commitlog file from a byte of it on. The file starts at the physical offset `start`.

    The walk ends at a blank, at zeros, and at the end of the file; `end_of` returns that byte. Raises BadRecordError at
    other bytes.
    """
    while (record := record_at(log, start, position)) is not None:
        yield record
        position += record.size


def end_of(log: memoryview, start: int, position: int = 0) -> int:
    """Return the byte after the last record of a commitlog file. Raises BadRecordError as `walk` does.

    It reads only sizes, magics and offsets.
    """
    return end_before(log, start, position, len(log))


def end_before(log: memoryview, start: int, position: int, stop: int) -> int:
    """Return the byte after the last record that starts before the byte `stop`. Raises BadRecordError like `walk`."""
    while position < stop and position + 8 <= len(log):
        size, magic = struct.unpack_from(">ii", log, position)
        if not _is_record(log, start, position, size, magic):
            break
        position += size
    return position


class Confirmed(NamedTuple):
    """The records of a growing file that are known to be complete."""

    position: int  # the byte after the last complete record
    last: int  # start of that record; -1 without one
    is_over: bool  # the file gets no more records
    bad: str = ""  # the fault of the bytes at position; "" if they may just not be written yet


def confirmed(log: memoryview, start: int, position: int, most_bytes: int) -> Confirmed:
    """Walk a file that a broker writes, from this byte on, for at most `most_bytes`.

    A broker writes one record after another. A record counts as complete once the next record, or the blank, has
    started after it; before that, some of its bytes may be missing. So the last record always waits for the next one.
    """
    start_position, last = position, -1
    while position - start_position < most_bytes and position + 8 <= len(log):
        size, magic = struct.unpack_from(">ii", log, position)
        if magic == MAGIC_BLANK:
            return Confirmed(position, last, is_over=True)
        try:
            if not _is_record(log, start, position, size, magic):
                return Confirmed(position, last, is_over=False)
        except BadRecordError as error:
            return Confirmed(position, last, is_over=False, bad=error.text)
        if not _is_followed(log, position + size):
            return Confirmed(position, last, is_over=False)
        position, last = position + size, position
    return Confirmed(position, last, is_over=position + 8 > len(log))


def _is_followed(log: memoryview, position: int) -> bool:
    """Whether the next record or the blank has started here, or the file has no bytes left for either."""
    if position + 8 > len(log):
        return True
    size, magic = struct.unpack_from(">ii", log, position)
    return size > 0 and magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)


def record_at(log: memoryview, start: int, position: int) -> CommitLogRecord | None:
    """Return the record at this byte; None at a blank, at zeros or at the end. Raises BadRecordError at other bytes."""
    if position + 8 > len(log):
        return None
    size, magic = struct.unpack_from(">ii", log, position)
    if not _is_record(log, start, position, size, magic):
        return None
    _size, _magic, _crc, queue_id, _flag, queue_offset, phy, sys_flag, _born = _FIXED.unpack_from(log, position)
    at = position + (68 if sys_flag & BORN_HOST_V6 else 56)
    (store_time,) = struct.unpack_from(">q", log, at)
    at += 8 + (20 if sys_flag & STORE_HOST_V6 else 8) + 12
    end = position + size
    try:
        (body,) = struct.unpack_from(">i", log, at)
        at += 4 + max(body, 0)
        (topic_bytes,) = struct.unpack_from(">B" if magic == MAGIC_V1 else ">h", log, at)
        at += 1 if magic == MAGIC_V1 else 2
        topic = bytes(log[at : at + topic_bytes])
        (property_bytes,) = struct.unpack_from(">h", log, at + topic_bytes)
    except struct.error as error:
        raise BadRecordError(position, "a record ends before its parts do") from error
    at += topic_bytes + 2
    if body < 0 or topic_bytes < 0 or property_bytes < 0 or at + property_bytes > end:
        raise BadRecordError(position, f"the parts of a record of {size} bytes do not fit into it")
    return CommitLogRecord(
        phy=phy, size=size, queue_id=queue_id, queue_offset=queue_offset, sys_flag=sys_flag, store_time=store_time,
        topic=topic, properties=bytes(log[at : at + property_bytes]),
    )  # fmt: skip


def _is_record(log: memoryview, start: int, position: int, size: int, magic: int) -> bool:
    """Whether a record starts here; False after the last record of the file. Raises BadRecordError for other bytes."""
    if magic == MAGIC_BLANK or (size == 0 and magic == 0):
        return False
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadRecordError(position, f"wrong magic {magic & 0xFFFFFFFF:#010x}")
    if not RECORD_BYTES_MIN <= size <= len(log) - position:
        raise BadRecordError(position, f"a record can't have {size} bytes here")
    (phy,) = struct.unpack_from(">q", log, position + 28)
    if phy != start + position:
        raise BadRecordError(position, f"a record names {phy} as its own position instead of {start + position}")
    return True
