"""The batch that a query has begun and not committed: what it was to read, and how to commit it without Spark.

Spark writes `offsets/N` before it reads batch N, and `commits/N` once the batch is done. A query that starts runs the
batch again that has the first and not the second. So whoever has worked batch N off by another way writes `commits/N`
as Spark does, and starts the query again, which then goes on with N + 1. The query must not run meanwhile.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from streaming.errors import SafetyError, UnavailableError
from streaming.state.filesystem import Folder, folder_of, shown
from udfs.entry_ranges import Range
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.proto.message_id_pb2 import MessageIdData

# As Spark 3.5 writes it where no query has a watermark, and ours have none.
_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch's number, and what it was to read of each partition (full name); of the others it was nothing."""

    number: int
    ranges: Mapping[str, Range]


def unfinished(checkpoint: str) -> Batch | None:
    """Return the batch that was begun and not committed; None where there is none. Raises UnavailableError."""
    folder = folder_of(checkpoint)
    number = _newest(folder, "offsets")
    if number <= _newest(folder, "commits"):
        return None
    before, upto = _positions(folder, number - 1) if number else {}, _positions(folder, number)
    # a partition that the batch before did not know is read from its beginning
    ranges = {partition: Range(before.get(partition, BEFORE_ALL), end) for partition, end in upto.items()}
    return Batch(number, {partition: each for partition, each in ranges.items() if not each.is_empty})


def next_number(checkpoint: str) -> int:
    """Return the number that the next batch will have. Raises UnavailableError."""
    folder = folder_of(checkpoint)
    return max(_newest(folder, "offsets"), _newest(folder, "commits")) + 1


def commit(checkpoint: str, number: int) -> None:
    """Write down that a batch is done. Writing it again changes nothing.

    Raises SafetyError where it is not the batch that was begun last, UnavailableError.
    """
    folder = folder_of(checkpoint)
    begun, done = _newest(folder, "offsets"), _newest(folder, "commits")
    if number != begun or done not in (number - 1, number):
        raise SafetyError(
            f"{shown(checkpoint)}: batch {number} is not the one to commit: {begun} was begun last, and {done} "
            "committed last"
        )
    if done < number:
        folder.delete(f"commits/.{number}.crc")  # a checksum of what Spark had begun to write would not be ours
        folder.write(f"commits/{number}", _COMMIT)


def _positions(folder: Folder, number: int) -> dict[str, Position]:
    """Partition -> up to where a batch reads."""
    path = f"{shown(folder.location)}/offsets/{number}"
    written = folder.read(f"offsets/{number}")
    if written is None:
        raise UnavailableError(f"{path} is not there; checkpoints/README.md, `Damaged?`")
    try:
        version, _spark, *sources = written.decode().splitlines()
        named = {partition: signed for line in sources for partition, signed in json.loads(line).items()}
        if version != _VERSION:
            raise ValueError(f"its version is {version!r}")
        return {partition: _position(bytes(byte & 0xFF for byte in signed)) for partition, signed in named.items()}
    except (ValueError, TypeError, AttributeError, DecodeError) as error:
        raise UnavailableError(f"{path} can't be read: {error}; checkpoints/README.md, `Damaged?`") from error


def _position(written: bytes) -> Position:
    """Read an offset, which may also be "earliest" (before all), or stand before the first entry of a ledger."""
    message_id = MessageIdData.FromString(written)
    if not message_id.IsInitialized():
        raise ValueError(f"offset {written.hex()} is no message id")
    return _signed(message_id.ledgerId), _signed(message_id.entryId)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _newest(folder: Folder, kind: str) -> int:
    return max((int(name) for name in folder.names(kind) if name.isdigit()), default=-1)
