"""Reads the batch that a query has started but not committed, and commits it without Spark.

Spark writes `offsets/N` before it reads batch N, and `commits/N` once the batch is done; a query that starts repeats a
batch that has only the first file. The query must not run at the same time.
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
    """A batch of a query, as its checkpoint describes it."""

    number: int
    ranges: Mapping[str, Range]  # by full name of the partition; without partitions that the batch does not read


def unfinished(checkpoint: str) -> Batch | None:
    """Return the batch that was started but not committed, or None. Raises UnavailableError."""
    folder = folder_of(checkpoint)
    number = _newest(folder, "offsets")
    if number <= _newest(folder, "commits"):
        return None
    starts, ends = _positions(folder, number - 1) if number else {}, _positions(folder, number)
    # a partition that the previous batch does not name is read from its first entry
    ranges = {partition: Range(starts.get(partition, BEFORE_ALL), end) for partition, end in ends.items()}
    return Batch(number, {partition: entries for partition, entries in ranges.items() if not entries.is_empty})


def next_number(checkpoint: str) -> int:
    """Return the number that the next batch will have. Raises UnavailableError."""
    folder = folder_of(checkpoint)
    return max(_newest(folder, "offsets"), _newest(folder, "commits")) + 1


def commit(checkpoint: str, number: int) -> None:
    """Record that a batch is done. A second call changes nothing.

    Raises SafetyError if it is not the batch that was started last, UnavailableError.
    """
    folder = folder_of(checkpoint)
    started, committed = _newest(folder, "offsets"), _newest(folder, "commits")
    # only the last started batch after the last committed batch: another commit would skip messages (decision 15)
    if number != started or committed not in (number - 1, number):
        raise SafetyError(
            f"{shown(checkpoint)}: batch {number} is not the one to commit: {started} was started last, and "
            f"{committed} committed last"
        )
    if committed < number:
        folder.delete(f"commits/.{number}.crc")  # Spark's checksum of a file that it did not complete would not match
        # as Spark does, so that the restarted query continues with the next batch
        folder.write(f"commits/{number}", _COMMIT)


def _positions(folder: Folder, number: int) -> dict[str, Position]:
    """Return, by partition, the last position that a batch reads."""
    path = f"{shown(folder.location)}/offsets/{number}"
    content = folder.read(f"offsets/{number}")
    if content is None:
        raise UnavailableError(f"{path} does not exist; checkpoints/README.md, `Damaged?`")
    try:
        version, _spark, *sources = content.decode().splitlines()
        offsets = {partition: signed for line in sources for partition, signed in json.loads(line).items()}
        if version != _VERSION:
            raise ValueError(f"its version is {version!r}")
        return {partition: _position(bytes(byte & 0xFF for byte in signed)) for partition, signed in offsets.items()}
    except (ValueError, TypeError, AttributeError, DecodeError) as error:
        raise UnavailableError(f"{path} can't be read: {error}; checkpoints/README.md, `Damaged?`") from error


def _position(offset: bytes) -> Position:
    """Parse an offset, which may also be "earliest" (before all), or the position before a ledger's first entry."""
    message_id = MessageIdData.FromString(offset)
    if not message_id.IsInitialized():
        raise ValueError(f"offset {offset.hex()} is no message id")
    return _signed(message_id.ledgerId), _signed(message_id.entryId)


def _signed(number: int) -> int:
    # "earliest" and the position before a first entry are negative, and the fields are unsigned
    return number - (1 << 64) if number >> 63 else number


def _newest(folder: Folder, kind: str) -> int:
    return max((int(name) for name in folder.names(kind) if name.isdigit()), default=-1)
