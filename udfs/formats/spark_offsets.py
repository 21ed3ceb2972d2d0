"""Spark's files `offsets/N` and `sources/0/0` in a checkpoint: up to which position a batch reads each partition.

Both start with a version line, and `offsets/N` has a line of Spark's own after it. The last line is the offset:
the pulsar-spark connector writes partition -> the bytes of a MessageIdData (Pulsar's message id) as signed numbers, and
"pulsar-frames" what udfs/pulsar_source/offsets.py describes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from google.protobuf.message import DecodeError

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.paths import partition_index
from udfs.proto.message_id_pb2 import MessageIdData
from udfs.pulsar_source.offsets import Offset, PartitionOffset, from_json, to_json

VERSION_LINE = "v1"  # Spark 3.5 and 4.3 write the same
_FRAMES_KEYS = {"version", "partitions"}  # no full name of a partition is one of them


class Writer(StrEnum):
    """The source that plans a query's batches; it decides the form of their offsets."""

    CONNECTOR = "the pulsar-spark connector"
    FRAMES = "pulsar-frames"


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """The contents of a file."""

    writer: Writer
    # partition -> the last position that is read; (ledger, -1): before the ledger's first entry; BEFORE_ALL: nothing is
    positions: Mapping[str, Position]
    frames: Mapping[str, PartitionOffset] = field(default_factory=dict)  # of pulsar-frames: the same in full
    spark_line: str = field(default="", compare=False)  # Spark's own line, if the file has one


def parse_offsets(text: str, *, is_first: bool = False) -> StoredOffsets:
    """Parse a file. Raises FormatError.

    is_first: the file is `sources/0/0`, the position where the connector started.
    """
    version, *lines = text.splitlines() or [""]
    spark_line, sources = ("", lines) if is_first else ("".join(lines[:1]), lines[1:])
    if version != VERSION_LINE:
        raise FormatError(f"its version is {version[:60]!a}")
    if len(sources) != 1:
        raise FormatError(f"it has {len(sources)} offsets, not one; is it cut short?")
    try:
        offset = json.loads(sources[0])
        if offset.keys() >= _FRAMES_KEYS:
            frames = from_json(offset)
            positions = {name: part.at for name, part in frames.items()}
            return StoredOffsets(Writer.FRAMES, positions, frames, spark_line)
        positions = {name: _position(signed) for name, signed in offset.items()}
        return StoredOffsets(Writer.CONNECTOR, positions, spark_line=spark_line)
    except (ValueError, TypeError, AttributeError, DecodeError) as error:
        raise FormatError(f"its offset has an unknown form: {error}") from error


def offsets_file(spark_line: str, offset: str) -> str:
    """Return the contents of `offsets/N`. offset: what connector_offset or frames_offset returned."""
    return f"{VERSION_LINE}\n{spark_line}\n{offset}"


def connector_offset(positions: Mapping[str, Position]) -> str:
    """Return the line of an offset as the connector writes it."""
    return json.dumps({name: _bytes_of(name, at) for name, at in positions.items()}, separators=(",", ":"))


def frames_offset(offset: Offset) -> str:
    """Return the line of an offset as "pulsar-frames" writes it."""
    return json.dumps(to_json(offset))


def _bytes_of(partition: str, position: Position) -> list[int]:
    message_id = MessageIdData(ledgerId=position[0] % (1 << 64), entryId=position[1] % (1 << 64))
    if position[0] >= 0 and (number := partition_index(partition)) >= 0:
        message_id.partition = number
    return [byte - 256 if byte > 127 else byte for byte in message_id.SerializeToString()]


def _position(signed: Any) -> Position:
    """Parse an offset of the connector, which may also be "earliest" (-1, -1), or before a ledger's first entry."""
    message_id = MessageIdData.FromString(bytes(byte & 0xFF for byte in signed))
    if not message_id.IsInitialized():
        raise FormatError(f"{signed} is no message id")
    return _signed(message_id.ledgerId), _signed(message_id.entryId)


def _signed(number: int) -> int:
    # the fields are unsigned, and Java's numbers are signed
    return number - (1 << 64) if number >> 63 else number
