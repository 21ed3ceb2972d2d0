"""Writes RocksDB's sorted files of rows whose keys count up, many rows at a time.

RocksDB's own writer (`write_sst`) takes one row in each call. Here numpy makes whole blocks at once, for in a run of
rows all keys are one prefix and a number of 8 bytes, each a unit higher than the one before, and all values have one
width. What comes out is a table of RocksDB's block-based format, version 5, as its own writer makes it
(https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format), but for the bloom filter, which is left out:

    data blocks … | properties | metaindex | index | footer

A block is rows and, behind them, where every 16th begins (a restart point), for that one has its whole key; the others
say how many bytes they have in common with the row before. Behind each block stand how it is compressed (1 byte) and
its checksum (XXH3, 4 bytes).

The properties do not say which session made the file, nor its number, and that is on purpose: a reader that finds them
makes the keys of its block cache of them, and would take blocks of two files that say the same for each other.
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
_TURN = 1 << 16  # numbers of one turn have all of their bytes but the last two in common
_NUMBER_BYTES = 8
_TRAILER = (1).to_bytes(8, "little")  # behind each key: sequence number 0, and that the row is a value
_NOT_COMPRESSED, _LZ4 = 0, 4
_XXH3 = 4
_FORMAT_VERSION = 5
_MAGIC = 0x88E241B785F4CFF7
_LAST_BYTE_FACTOR = 0x6B9083D9
_HANDLES_BYTES = 40
_BUFFERED_BYTES = 1 << 20
_SMALL = [bytes([number]) for number in range(128)]  # numbers that are one byte each


class CountedRows(NamedTuple):
    """Rows of the keys prefix + first, prefix + (first + 1), … values: one of a fixed width for each."""

    prefix: bytes
    first: int
    values: NDArray[np.void]


def write_counted(path: Path, runs: Iterable[CountedRows]) -> int:
    """Write a sorted file of runs, which come in the order of their keys, and return its bytes.

    Raises ValueError where keys do not ascend, or where there are no rows.
    """
    with path.open("wb", buffering=_BUFFERED_BYTES) as file:
        table = _Table(file)
        for run in runs:
            table.add(run)
        return table.finish()


class _Shape(NamedTuple):
    """How the bytes of a block lie. block: with its restart points. template: a block without numbers and values."""

    head: int  # bytes of a row at a restart point
    rest: int  # bytes of one of the other rows
    block: np.dtype[Any]
    template: NDArray[np.uint8]

    def rows_end(self, rows: int) -> int:
        """Where the first so many rows of a block end."""
        groups, others = divmod(rows, _ROWS_PER_RESTART)
        group = self.head + (_ROWS_PER_RESTART - 1) * self.rest
        return groups * group + (self.head + (others - 1) * self.rest if others else 0)


class _Table:
    """A file under way."""

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
        """Write what stands behind the rows, and return the bytes of the file."""
        if not self._rows:
            raise ValueError("a sorted file needs rows")
        data_bytes = self._at
        index = _block_of(self._index)
        properties = self._put(_properties(self._of_this(data_bytes, len(index))), compressed=False)
        metaindex = self._put(_block_of([_entry(b"rocksdb.properties", properties)]), compressed=False)
        handles = metaindex + self._put(index)
        self._file.write(
            bytes([_XXH3]) + handles.ljust(_HANDLES_BYTES, b"\0") + struct.pack("<IQ", _FORMAT_VERSION, _MAGIC)
        )
        return self._file.tell()

    def _of_this(self, data_bytes: int, index_bytes: int) -> dict[str, bytes]:
        numbers = {
            "data.size": data_bytes, "index.size": index_bytes, "num.data.blocks": len(self._index),
            "num.entries": self._rows, "raw.key.size": self._key_bytes, "raw.value.size": self._value_bytes,
            "tail.start.offset": data_bytes,
        }  # fmt: skip
        return {name: _varint(number) for name, number in numbers.items()}

    def _point_at(self, last_key: bytes, handle: bytes) -> None:
        """Say in the index which block has the keys up to this one."""
        self._index.append(_varint(0) + _varint(len(last_key)) + last_key + handle)

    def _put(self, block: memoryview | bytes, *, compressed: bool = True) -> bytes:
        """Write a block, and return its handle: where it begins, and its bytes without the five behind it."""
        kind, data = _NOT_COMPRESSED, memoryview(block)
        if compressed:
            size = _varint(len(block))
            smaller = self._compressed_behind(size, block)
            if len(smaller) - len(size) < len(block) * 7 // 8:  # as RocksDB's own writer does
                kind, data = _LZ4, smaller
        self._file.write(data)
        self._file.write(struct.pack("<BI", kind, _checksum(data, kind)))
        handle = _varint(self._at) + _varint(len(data))
        self._at += len(data) + 5
        return handle

    def _compressed_behind(self, begin: bytes, block: memoryview | bytes) -> memoryview:
        """Return these bytes and behind them the compressed block, in memory that the next block will get."""
        most = len(begin) + len(block) + len(block) // 255 + 16  # LZ4 needs no more for any block
        if len(self._compressed) < most:
            self._compressed = np.empty(most, dtype=np.uint8)
        self._compressed[: len(begin)] = np.frombuffer(begin, dtype=np.uint8)
        count = cramjam.lz4.compress_block_into(block, self._compressed.data[len(begin) :], store_size=False)
        return self._compressed.data[: len(begin) + count]


def _blocks(prefix: bytes, first: int, values: NDArray[np.void]) -> Iterator[tuple[int, memoryview | bytes]]:
    """Yield the blocks of one turn, and how many rows each has."""
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
    """Make blocks of rows whose numbers begin with first: an array of bytes for each."""
    raw = np.empty((len(values), shape.block.itemsize), dtype=np.uint8)
    raw[:] = shape.template
    groups = raw.view(shape.block)["groups"][:, 0]
    ends = (first % _TURN + np.arange(values.size)).reshape((*groups.shape, _ROWS_PER_RESTART))
    some = values.view(f"V{values.dtype.itemsize}").reshape(ends.shape)
    groups["head"]["number"], groups["head"]["value"] = ends[..., 0], some[..., 0]
    groups["rest"]["number"], groups["rest"]["value"] = ends[..., 1:], some[..., 1:]
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
    nothing = bytes(2) + _TRAILER + bytes(value_bytes)
    template = (whole + nothing + (ending + nothing) * (_ROWS_PER_RESTART - 1)) * groups + starts
    return _Shape(head.itemsize, rest.itemsize, block, np.frombuffer(template, dtype=np.uint8))


def _row(begin: int, value_bytes: int) -> np.dtype[Any]:
    return np.dtype([
        ("begin", f"V{begin}"), ("number", ">u2"), ("trailer", f"V{len(_TRAILER)}"), ("value", f"V{value_bytes}"),
    ])  # fmt: skip


def _properties(of_this: dict[str, bytes]) -> bytes:
    """Make the block of properties: what a reader needs to know of the table, and what RocksDB's tools show."""
    known = {
        "block.based.table.index.type": struct.pack("<I", 0),
        "block.based.table.prefix.filtering": b"0",
        "block.based.table.whole.key.filtering": b"1",
        "column.family.id": _varint(2**31 - 1),  # of no family yet
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
    both = sorted((known | of_this).items())
    return b"".join(_entry(b"rocksdb." + name.encode(), value) for name, value in both) + _restarts([0])


def _entry(key: bytes, value: bytes) -> bytes:
    return _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value


def _block_of(entries: list[bytes]) -> bytes:
    """Make a block of entries with a restart point each."""
    starts = np.cumsum([0, *map(len, entries[:-1])])
    return b"".join(entries) + _restarts(starts.tolist())


def _restarts(places: list[int]) -> bytes:
    return struct.pack(f"<{len(places) + 1}I", *places, len(places))


def _checksum(data: memoryview | bytes, last: int) -> int:
    """XXH3 as RocksDB takes it, for which the byte behind the data is only mixed in."""
    return (xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF) ^ (last * _LAST_BYTE_FACTOR & 0xFFFFFFFF)


def _number(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")


def _varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
