"""The two objects of an offloaded ledger as brokers write them: their names, and the format of the index object (V1).

The index embeds the ledger's BookKeeper metadata with its custom metadata. So it proves the ledger's owner even when
BookKeeper has no metadata of it any more. All numbers are big-endian.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from udfs.formats.errors import FormatError
from udfs.formats.java_uuid import uuid_halves
from udfs.formats.ledger_metadata import parse_message, to_message
from udfs.paths import MAX_LEDGER_ID
from udfs.records import LedgerMetadata

_MAGIC_V1 = 0xDE47DE47
_MAGIC_V2 = 0x3D1FB0BC
_HEADER = struct.Struct(">IiqqIi")  # magic, index length, data length, data header length, entry count, metadata length
_ENTRY = struct.Struct(">qiq")
_INDEX_SUFFIX = "-index"
_NAME = re.compile(r"([0-9a-f-]{36})-ledger-(0|[1-9][0-9]{0,18})(-index)?")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The start of a block of the data object."""

    first_entry_id: int
    part_id: int  # from 1
    offset: int  # in bytes


@dataclass(frozen=True, slots=True)
class OffloadIndex:
    """The content of an index object."""

    metadata: LedgerMetadata
    data_bytes: int  # length of the data object
    data_header_bytes: int  # length of the headers of the data object's blocks
    entries: tuple[IndexEntry, ...]


@dataclass(frozen=True, slots=True)
class ObjectName:
    """The parts of an object's key."""

    uuid: str
    ledger_id: int
    is_index: bool


def object_name(uuid: str, ledger_id: int) -> str:
    """Return the key of the data object. Raises ValueError if `uuid` or `ledger_id` is invalid."""
    uuid_halves(uuid)
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise ValueError(f"{ledger_id} is no ledger id")
    return f"{uuid}-ledger-{ledger_id}"


def index_name(uuid: str, ledger_id: int) -> str:
    """Return the key of the index object. Raises as object_name does."""
    return object_name(uuid, ledger_id) + _INDEX_SUFFIX


def parse_object_name(key: str) -> ObjectName | None:
    """Take a key apart; None for another application's key, or a streaming offload's."""
    match = _NAME.fullmatch(key)
    if match is None:
        return None
    uuid, digits, suffix = match.groups()
    try:
        object_name(uuid, int(digits))
    except ValueError:
        return None
    return ObjectName(uuid, int(digits), suffix is not None)


def parse_offload_index(data: bytes) -> OffloadIndex:
    """Parse an index object. Raises FormatError if a length or count in it does not add up."""
    if len(data) >= 4 and int.from_bytes(data[:4], "big") == _MAGIC_V2:
        raise FormatError("index of a streaming offload (V2), which does not name the ledger's owner")
    if len(data) < _HEADER.size:
        raise FormatError(f"offload index ends after {len(data)} bytes, within its header")
    magic, length, data_bytes, header_bytes, count, metadata_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC_V1:
        raise FormatError(f"offload index starts with {magic:#x} instead of {_MAGIC_V1:#x}")
    entries_at = _HEADER.size + metadata_bytes
    if length != len(data) or entries_at + count * _ENTRY.size != length:
        raise FormatError(
            f"offload index of {len(data)} bytes claims to be {length}, "
            f"with {metadata_bytes} of metadata and {count} entries"
        )
    if data_bytes < 0 or header_bytes < 0:
        raise FormatError(f"offload index claims a data object of {data_bytes} bytes, headers of {header_bytes}")
    entries = tuple(IndexEntry(*entry) for entry in _ENTRY.iter_unpack(data[entries_at:]))
    return OffloadIndex(parse_message(data[_HEADER.size : entries_at]), data_bytes, header_bytes, entries)


def serialize_offload_index(
    metadata: LedgerMetadata, data_bytes: int, entries: Sequence[IndexEntry] = (), *, data_header_bytes: int = 128
) -> bytes:
    """Write an index object."""
    message = to_message(metadata)
    length = _HEADER.size + len(message) + len(entries) * _ENTRY.size
    header = _HEADER.pack(_MAGIC_V1, length, data_bytes, data_header_bytes, len(entries), len(message))
    return header + message + b"".join(_ENTRY.pack(e.first_entry_id, e.part_id, e.offset) for e in entries)
