"""Avro's long numbers as whole columns: one call encodes or decodes millions of them.

Avro maps a long to a number without a sign (0, -1, 1, -2, ... become 0, 1, 2, 3, ...: "zigzag"), and writes seven bits
of it into each byte, the lowest first; every byte except a number's last has its top bit set (Apache Avro
specification, "Binary encoding"). A record of longs is the sequence of its fields, so a table becomes its numbers, row
by row.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from udfs.formats.errors import FormatError

Longs = NDArray[np.int64]

MOST_BYTES = 10  # of one number
_BLOCK = 1 << 15  # numbers at once, so that they fit into the processor's cache
_LONGEST_PLUS_ONE = np.array([1 << (7 * count) for count in range(1, MOST_BYTES)], dtype=np.uint64)


def encode(columns: Sequence[Longs]) -> bytes:
    """Return rows of columns of the same length as Avro's bytes: the first row's numbers, then the second's, ..."""
    return b"".join(_encoded(block) for block in _blocks(columns))


def row_bytes(columns: Sequence[Longs]) -> Longs:
    """How many bytes each row takes."""
    sizes = np.full(len(columns[0]), len(columns), dtype=np.int64)
    for column in columns:
        sizes += np.searchsorted(_LONGEST_PLUS_ONE, _zigzag(column), side="right")
    return sizes


def decode(data: bytes, at: int, rows: int, width: int) -> tuple[tuple[Longs, ...], int]:
    """Read rows of `width` numbers from the byte `at` on; returns the columns and the offset after the last number.

    Memory is bounded by the length of the data, whatever `rows` is. Raises FormatError if the data end too early or a
    number has more than ten bytes.
    """
    count = rows * width
    if not 0 <= count <= len(data) - at:
        raise FormatError(f"{rows} rows of {width} numbers don't fit into {len(data) - at} bytes")
    most = min(len(data) - at, count * MOST_BYTES)
    raw = np.frombuffer(data, dtype=np.uint8, offset=at, count=most) if count else np.empty(0, dtype=np.uint8)
    ends = np.flatnonzero(raw < 0x80)[:count]
    if len(ends) < count:
        raise FormatError(f"{rows} rows of {width} numbers are announced, and the bytes end earlier")
    values = np.empty(count, dtype=np.int64)
    begin = 0
    for first in range(0, count, _BLOCK):
        last = ends[first : first + _BLOCK]
        values[first : first + _BLOCK] = _decoded(raw, begin, last)
        begin = int(last[-1]) + 1
    table = values.reshape(rows, width)
    return tuple(np.ascontiguousarray(table[:, column]) for column in range(width)), at + begin


def _blocks(columns: Sequence[Longs]) -> Iterator[Longs]:
    rows = max(1, _BLOCK // len(columns))
    for begin in range(0, len(columns[0]), rows):
        yield np.stack([column[begin : begin + rows] for column in columns], axis=1).ravel()


def _zigzag(values: Longs) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _encoded(values: Longs) -> bytes:
    rest = _zigzag(values)
    width = max(1, -(-int(rest.max()).bit_length() // 7))
    table = np.empty((len(values), width), dtype=np.uint8)
    is_used = np.ones((len(values), width), dtype=np.bool_)
    for byte in range(width):
        table[:, byte] = rest & np.uint64(0x7F)
        rest = rest >> np.uint64(7)
        if byte + 1 < width:
            is_used[:, byte + 1] = goes_on = rest != 0
            table[:, byte] |= goes_on.view(np.uint8) << 7
    return table[is_used].tobytes()


def _decoded(raw: NDArray[np.uint8], begin: int, ends: NDArray[np.intp]) -> Longs:
    """Decode numbers: the first starts at byte `begin`, and each ends at its byte of `ends`."""
    starts = np.empty_like(ends)
    starts[0], starts[1:] = begin, ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > MOST_BYTES:
        raise FormatError(f"a number of {longest} bytes")
    zigzag = (raw[starts] & 0x7F).astype(np.uint64)
    for byte in range(1, longest):
        longer = np.flatnonzero(lengths > byte)
        bits = (raw[starts[longer] + byte] & 0x7F).astype(np.uint64)
        zigzag[longer] |= bits << np.uint64(7 * byte)
    values: Longs = ((zigzag >> np.uint64(1)) ^ np.negative(zigzag & np.uint64(1))).view(np.int64)
    return values
