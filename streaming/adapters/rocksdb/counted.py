"""Writes RocksDB's sorted files of rows with consecutive keys, many rows at a time.

RocksDB's own writer (`write_sst`) takes a row per call. Here numpy builds whole blocks from runs: rows whose keys are
one prefix followed by consecutive numbers of 8 bytes, and whose values have the same width. The result is a table of
RocksDB's block-based format, version 5, as its own writer creates it
(https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format), but without the bloom filter:

    data blocks … | properties | metaindex | index | footer

A block contains rows, and after them the offset of every 16th row. This row (a restart point) contains its whole key;
each other row contains the number of bytes that its key shares with the previous key. Each block is followed by the
kind of its compression (1 byte) and its checksum (XXH3, 4 bytes).
"""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import cramjam
import numpy as np
import xxhash
from numpy.typing import NDArray

_ROWS_PER_RESTART = 16
_ROWS_PER_BLOCK = 512
_TURN = 1 << 16  # a turn: consecutive numbers that differ only in their last two bytes
_NUMBER_BYTES = 8
_TRAILER = (1).to_bytes(8, "little")  # after each key: sequence number 0, and the type "value"
_NOT_COMPRESSED, _LZ4 = 0, 4
_XXH3 = 4
_FORMAT_VERSION = 5
_MAGIC = 0x88E241B785F4CFF7
_LAST_BYTE_FACTOR = 0x6B9083D9
_HANDLES_BYTES = 40
_BUFFERED_BYTES = 1 << 20
_SMALL = [bytes([number]) for number in range(128)]  # varints of one byte


class CountedRows(NamedTuple):
    """Rows with the keys prefix + first, prefix + (first + 1), …"""

    prefix: bytes
    first: int
    values: NDArray[np.void]  # of equal width, one for each row


def write_counted(path: Path, runs: Iterable[CountedRows]) -> int:
    """Write runs, which must be in the order of their keys, to a sorted file; return its size in bytes.

    Raises ValueError if keys do not ascend, or if there are no rows.
    """
    with path.open("wb", buffering=_BUFFERED_BYTES) as file:
        table = _Table(file)
        for run in runs:
            table.add(run)
        return table.finish()


class _Shape(NamedTuple):
    """The layout of a block."""

    head: int  # bytes of a row at a restart point
    rest: int  # bytes of each other row
    block: np.dtype[Any]  # with its restart points
    template: NDArray[np.uint8]  # a block without numbers and values

    def rows_end(self, rows: int) -> int:
        """Return the offset at which the first `rows` rows of a block end."""
        groups, others = divmod(rows, _ROWS_PER_RESTART)
        group = self.head + (_ROWS_PER_RESTART - 1) * self.rest
        return groups * group + (self.head + (others - 1) * self.rest if others else 0)


class _Table:
    """Writes a file, block by block."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._last_key = b""
        self._index = list[bytes]()
        self._compressed = np.empty(0, dtype=np.uint8)
        self._rows = self._key_bytes = self._value_bytes = 0

    def add(self, run: CountedRows) -> None:
        count, width = len(run.values), run.values.dtype.itemsize
        if not count:
            return
        if run.prefix + _number(run.first) <= self._last_key:
            raise ValueError(f"the key of {run.prefix!r} and {run.first} does not follow {self._last_key!r}")
        start = 0
        while start < count:
            first = run.first + start
            end = min(count, start + _TURN - first % _TURN)
            for rows, block in _blocks(run.prefix, first, run.values[start:end]):
                first += rows
                self._last_key = run.prefix + _number(first - 1)
                self._point_at(self._last_key, self._put(block))
            start = end
        self._rows += count
        self._key_bytes += count * (len(run.prefix) + _NUMBER_BYTES + len(_TRAILER))
        self._value_bytes += count * width

    def finish(self) -> int:
        """Write the blocks that follow the data blocks, and the footer; return the file's size in bytes."""
        if not self._rows:
            raise ValueError("a sorted file needs rows")
        data_bytes = self._at
        index = _block_of(self._index)
        properties = self._put(_properties(self._counts(data_bytes, len(index))), compressed=False)
        metaindex = self._put(_block_of([_entry(b"rocksdb.properties", properties)]), compressed=False)
        handles = metaindex + self._put(index)
        self._file.write(
            bytes([_XXH3]) + handles.ljust(_HANDLES_BYTES, b"\0") + struct.pack("<IQ", _FORMAT_VERSION, _MAGIC)
        )
        return self._file.tell()

    def _counts(self, data_bytes: int, index_bytes: int) -> dict[str, bytes]:
        numbers = {
            "data.size": data_bytes, "index.size": index_bytes, "num.data.blocks": len(self._index),
            "num.entries": self._rows, "raw.key.size": self._key_bytes, "raw.value.size": self._value_bytes,
            "tail.start.offset": data_bytes,
        }  # fmt: skip
        return {name: _varint(number) for name, number in numbers.items()}

    def _point_at(self, last_key: bytes, handle: bytes) -> None:
        """Add a block to the index under its last key."""
        self._index.append(_varint(0) + _varint(len(last_key)) + last_key + handle)

    def _put(self, block: memoryview | bytes, *, compressed: bool = True) -> bytes:
        """Write a block, and return its handle: its offset, and its size without the five bytes after it."""
        kind, data = _NOT_COMPRESSED, memoryview(block)
        if compressed:
            size = _varint(len(block))
            smaller = self._compressed_after(size, block)
            if len(smaller) - len(size) < len(block) * 7 // 8:  # the threshold of RocksDB's own writer
                kind, data = _LZ4, smaller
        self._file.write(data)
        self._file.write(struct.pack("<BI", kind, _checksum(data, kind)))
        handle = _varint(self._at) + _varint(len(data))
        self._at += len(data) + 5
        return handle

    def _compressed_after(self, lead: bytes, block: memoryview | bytes) -> memoryview:
        """Return `lead` and the compressed block, in a buffer that the next block reuses."""
        most = len(lead) + len(block) + len(block) // 255 + 16  # the most that LZ4 needs for a block
        if len(self._compressed) < most:
            self._compressed = np.empty(most, dtype=np.uint8)
        self._compressed[: len(lead)] = np.frombuffer(lead, dtype=np.uint8)
        count = cramjam.lz4.compress_block_into(block, self._compressed.data[len(lead) :], store_size=False)
        return self._compressed.data[: len(lead) + count]


def _blocks(prefix: bytes, first: int, values: NDArray[np.void]) -> Iterator[tuple[int, memoryview | bytes]]:
    """Yield (number of rows, block) for values whose numbers are all in the same turn (see _TURN)."""
    shape = _shape(prefix, first // _TURN, values.dtype.itemsize)
    whole, left = divmod(len(values), _ROWS_PER_BLOCK)
    blocks = _filled(shape, first, values[: whole * _ROWS_PER_BLOCK].reshape(whole, _ROWS_PER_BLOCK))
    for block in blocks:
        yield _ROWS_PER_BLOCK, block.data
    if left:
        padded = np.zeros((1, _ROWS_PER_BLOCK), dtype=values.dtype)
        padded[0, :left] = values[whole * _ROWS_PER_BLOCK :]
        (block,) = _filled(shape, first + whole * _ROWS_PER_BLOCK, padded)
        restarts = [shape.rows_end(row) for row in range(0, left, _ROWS_PER_RESTART)]
        yield left, block[: shape.rows_end(left)].tobytes() + _restarts(restarts)


def _filled(shape: _Shape, first: int, values: NDArray[np.void]) -> NDArray[np.uint8]:
    """Create full blocks; the numbers of their rows start at `first`. Returns an array of bytes for each block."""
    raw = np.empty((len(values), shape.block.itemsize), dtype=np.uint8)
    raw[:] = shape.template
    groups = raw.view(shape.block)["groups"][:, 0]
    ends = (first % _TURN + np.arange(values.size)).reshape((*groups.shape, _ROWS_PER_RESTART))
    shaped = values.view(f"V{values.dtype.itemsize}").reshape(ends.shape)
    groups["head"]["number"], groups["head"]["value"] = ends[..., 0], shaped[..., 0]
    groups["rest"]["number"], groups["rest"]["value"] = ends[..., 1:], shaped[..., 1:]
    return raw


@lru_cache(maxsize=4)
def _shape(prefix: bytes, turn: int, value_bytes: int) -> _Shape:
    shared = prefix + turn.to_bytes(_NUMBER_BYTES - 2, "big")
    whole = _varint(0) + _varint(len(shared) + 2 + len(_TRAILER)) + _varint(value_bytes) + shared
    ending = _varint(len(shared)) + _varint(2 + len(_TRAILER)) + _varint(value_bytes)
    head, rest = _row(len(whole), value_bytes), _row(len(ending), value_bytes)
    group = np.dtype([("head", head), ("rest", rest, (_ROWS_PER_RESTART - 1,))])
    groups = _ROWS_PER_BLOCK // _ROWS_PER_RESTART
    starts = _restarts([number * group.itemsize for number in range(groups)])
    block = np.dtype([("groups", group, (groups,)), ("restarts", f"V{len(starts)}")])
    blank_row = bytes(2) + _TRAILER + bytes(value_bytes)
    template = (whole + blank_row + (ending + blank_row) * (_ROWS_PER_RESTART - 1)) * groups + starts
    return _Shape(head.itemsize, rest.itemsize, block, np.frombuffer(template, dtype=np.uint8))


def _row(begin: int, value_bytes: int) -> np.dtype[Any]:
    return np.dtype([
        ("begin", f"V{begin}"), ("number", ">u2"), ("trailer", f"V{len(_TRAILER)}"), ("value", f"V{value_bytes}"),
    ])  # fmt: skip


def _properties(counts: dict[str, bytes]) -> bytes:
    """Create the block of properties, which readers need and RocksDB's tools show."""
    # The session that created the file, and the file's number, are omitted: a reader derives the keys of its block
    # cache from these two, and would confuse the blocks of two files in which both are equal.
    fixed = {
        "block.based.table.index.type": struct.pack("<I", 0),
        "block.based.table.prefix.filtering": b"0",
        "block.based.table.whole.key.filtering": b"1",
        "column.family.id": _varint(2**31 - 1),  # no column family
        "comparator": b"leveldb.BytewiseComparator",
        "compression": b"LZ4",
        "deleted.keys": _varint(0),
        "external_sst_file.global_seqno": bytes(8),
        "external_sst_file.version": struct.pack("<I", 2),
        "filter.size": _varint(0),
        "fixed.key.length": _varint(0),
        "format.version": _varint(_FORMAT_VERSION),
        "index.key.is.user.key": _varint(1),
        "index.value.is.delta.encoded": _varint(1),
        "merge.operands": _varint(0),
        "merge.operator": b"nullptr",
        "num.range-deletions": _varint(0),
        "prefix.extractor.name": b"nullptr",
        "property.collectors": b"[]",
    }
    properties = sorted((fixed | counts).items())
    return b"".join(_entry(b"rocksdb." + name.encode(), value) for name, value in properties) + _restarts([0])


def _entry(key: bytes, value: bytes) -> bytes:
    return _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value


def _block_of(entries: list[bytes]) -> bytes:
    """Create a block in which each entry is a restart point."""
    starts = np.cumsum([0, *map(len, entries[:-1])])
    return b"".join(entries) + _restarts(starts.tolist())


def _restarts(offsets: list[int]) -> bytes:
    return struct.pack(f"<{len(offsets) + 1}I", *offsets, len(offsets))


def _checksum(data: memoryview | bytes, last: int) -> int:
    """Return the XXH3 checksum of the data, combined with `last`, the byte after the data, as RocksDB does it."""
    return (xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF) ^ (last * _LAST_BYTE_FACTOR & 0xFFFFFFFF)


def _number(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")


def _varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
