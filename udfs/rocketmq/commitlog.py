"""Records of RocketMQ's commitlog (MessageDecoder.java, CommitLog.java), read one after the other or many at once.

Fixed at the beginning: size (4), magic (4), CRC of the body (4), queue id (4), flag (4), queue offset (8), own physical
offset (8), system flag (4), time of birth (8), its host (8, or 20 where the flag says IPv6), store time (8), its host,
reconsume times (4), offset of the prepared message (8). Then the body with its length (4), the topic with its length (1
byte in version 1, 2 in version 2) and the properties with theirs (2). All numbers are big-endian and signed.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udfs.rocketmq.units import Ints, Longs

MAGIC_V1 = 0xDAA320A7 - 2**32
MAGIC_V2 = 0xDAA320AB - 2**32
# This magic says that nothing more stands in its file.
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
    """No record begins here. position: the byte in the file. text: what is wrong with it."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(position, text)
        self.position, self.text = position, text


class RecordHeaders(NamedTuple):
    """Columns of what stands at the beginning of records, in native byte order."""

    size: Ints
    magic: Ints
    queue_id: Ints
    queue_offset: Longs
    phy: Longs
    store_time: Longs

    def put(self, where: slice, headers: "RecordHeaders") -> None:
        """Replace those in these places."""
        columns: Iterator[tuple[NDArray[Any], NDArray[Any]]] = zip(self, headers, strict=True)
        for column, values in columns:
            column[where] = values


class CommitLogRecord(NamedTuple):
    """One message of the commitlog. properties: the raw bytes (`properties_of` reads them)."""

    phy: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_time: int
    topic: bytes
    properties: bytes

    @property
    def is_indexed(self) -> bool:
        """Whether the message is in a queue."""
        return self.sys_flag & TRANSACTION in _INDEXED


def no_headers(count: int) -> RecordHeaders:
    """Make room for so many headers, which `put` fills."""
    size, magic, queue_id = (np.empty(count, np.int32) for _column in range(3))
    queue_offset, phy, store_time = (np.empty(count, np.int64) for _column in range(3))
    return RecordHeaders(size, magic, queue_id, queue_offset, phy, store_time)


def headers_at(log: NDArray[np.uint8], positions: Longs) -> RecordHeaders:
    """Read the beginnings of the records at these bytes of a commitlog file, without a loop.

    Raises BadRecordError for the first position at which no record begins.
    """
    too_late = positions + HEADER_BYTES > log.shape[0]
    if bool(too_late.any()):
        raise BadRecordError(int(positions[np.argmax(too_late)]), "a record does not fit into the rest of the file")
    raw = _at_any_byte(log, _GATHERED_BYTES)[positions].view(_GATHERED)
    magic = raw["magic"].astype(np.int32)
    strange = (magic != MAGIC_V1) & (magic != MAGIC_V2)
    if bool(strange.any()):
        place = int(np.argmax(strange))
        raise BadRecordError(int(positions[place]), f"wrong magic {int(magic[place]) & 0xFFFFFFFF:#010x}")
    is_v6 = (raw["sys_flag"].astype(np.int32) & BORN_HOST_V6) != 0
    time_at = positions + np.where(is_v6, 68, 56)
    times = _at_any_byte(log, np.dtype(">i8"))[time_at].astype(np.int64)
    return RecordHeaders(
        raw["size"].astype(np.int32), magic, raw["queue_id"].astype(np.int32),
        raw["queue_offset"].astype(np.int64), raw["phy"].astype(np.int64), times,
    )  # fmt: skip


def _at_any_byte(log: NDArray[np.uint8], what: np.dtype[Any]) -> NDArray[Any]:
    """The same memory as values of this type, one from each byte on."""
    return np.ndarray(shape=(log.shape[0] - what.itemsize + 1,), dtype=what, buffer=log.data, strides=(1,))


def walk(log: memoryview, start: int, position: int = 0) -> Iterator[CommitLogRecord]:
    """Yield the records of a commitlog file that begins at the physical offset start, from this byte of it on.

    It ends at a blank, at zeros, and at the end of the file; `end_of` says where. Raises BadRecordError at bytes that
    are none of these.
    """
    while (record := record_at(log, start, position)) is not None:
        yield record
        position += record.size


def end_of(log: memoryview, start: int, position: int = 0) -> int:
    """Return the byte behind the last record of a commitlog file. Raises BadRecordError as `walk` does.

    Only sizes, magics and offsets are looked at.
    """
    return end_before(log, start, position, len(log))


def end_before(log: memoryview, start: int, position: int, stop: int) -> int:
    """Return the byte behind the last record that begins before the byte stop. Raises BadRecordError as `walk` does."""
    while position < stop and position + 8 <= len(log):
        size, magic = struct.unpack_from(">ii", log, position)
        if not _begins_record(log, start, position, size, magic):
            break
        position += size
    return position


class Confirmed(NamedTuple):
    """How far the records of a file that a broker still writes are known to be whole.

    position: the byte behind the last such record. last: where that record begins, -1 if there is none. is_over: the
    file has no more records. bad: what is wrong with the bytes at position; "" if they may just not be written yet.
    """

    position: int
    last: int
    is_over: bool
    bad: str = ""


def confirmed(log: memoryview, start: int, position: int, most_bytes: int) -> Confirmed:
    """Walk a file that a broker writes, from this byte on, and for at most so many bytes.

    A broker writes one record after the other. So a record counts as whole once another one, or the blank, has begun
    behind it; before that some of its bytes may be missing. The last record therefore waits for the next one.
    """
    begin, last = position, -1
    while position - begin < most_bytes and position + 8 <= len(log):
        size, magic = struct.unpack_from(">ii", log, position)
        if magic == MAGIC_BLANK:
            return Confirmed(position, last, is_over=True)
        try:
            if not _begins_record(log, start, position, size, magic):
                return Confirmed(position, last, is_over=False)
        except BadRecordError as error:
            return Confirmed(position, last, is_over=False, bad=error.text)
        if not _has_begun(log, position + size):
            return Confirmed(position, last, is_over=False)
        position, last = position + size, position
    return Confirmed(position, last, is_over=position + 8 > len(log))


def _has_begun(log: memoryview, position: int) -> bool:
    """Whether anything that can stand behind a record is there; a file has no room for it where it is full."""
    if position + 8 > len(log):
        return True
    size, magic = struct.unpack_from(">ii", log, position)
    return size > 0 and magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)


def record_at(log: memoryview, start: int, position: int) -> CommitLogRecord | None:
    """Return the record at this byte; None at a blank, at zeros or at the end. Raises BadRecordError at other bytes."""
    if position + 8 > len(log):
        return None
    size, magic = struct.unpack_from(">ii", log, position)
    if not _begins_record(log, start, position, size, magic):
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
        phy, size, queue_id, queue_offset, sys_flag, store_time, topic, bytes(log[at : at + property_bytes])
    )  # fmt: skip


def _begins_record(log: memoryview, start: int, position: int, size: int, magic: int) -> bool:
    """Whether a record begins here; False where the file has no more. Raises BadRecordError for anything else."""
    if magic == MAGIC_BLANK or (size == 0 and magic == 0):
        return False
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadRecordError(position, f"wrong magic {magic & 0xFFFFFFFF:#010x}")
    if not RECORD_BYTES_MIN <= size <= len(log) - position:
        raise BadRecordError(position, f"a record can't have {size} bytes here")
    (phy,) = struct.unpack_from(">q", log, position + 28)
    if phy != start + position:
        raise BadRecordError(position, f"a record says that it begins at {phy} instead of {start + position}")
    return True
