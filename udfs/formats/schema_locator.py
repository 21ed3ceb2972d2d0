"""A schema's locator znode: it names a BookKeeper ledger for each schema version, and old messages need all of them.

A broker that needs a version below the lowest in the list searches for it in the ledger of the lowest. No Pulsar that
we know removes versions from the list; but a list that does not start at version 0 does not name all ledgers in use.
"""

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from udfs.formats.errors import FormatError
from udfs.proto.schema_storage_pb2 import IndexEntry, PositionInfo, SchemaLocator


def ledger_ids(data: bytes) -> frozenset[int]:
    """Return the ledgers of all versions, and the one `info` names. Raises FormatError, also for empty data."""
    try:
        locator = SchemaLocator.FromString(data)
    except DecodeError as error:
        raise FormatError(f"znode is no SchemaLocator: {error}") from None
    # FromString does not check that required fields are present, and ignores a field of the wrong type.
    if not locator.IsInitialized():
        raise FormatError("SchemaLocator has no value for a required field")
    entries = (locator.info, *locator.index)
    ids = frozenset(entry.position.ledgerId for entry in entries)
    first_version = min(entry.version for entry in entries)
    if _size_without_unknown_fields(locator) != len(data):
        raise FormatError("SchemaLocator has fields unknown to this version, which may refer to unknown ledgers")
    if min(ids) < 0:
        raise FormatError(f"SchemaLocator names ledger {min(ids)}")
    if first_version != 0:
        raise FormatError("SchemaLocator does not list version 0: only ledgers name the older versions")
    return ids


def newest_ledger_id(data: bytes) -> int:
    """Return the ledger of the newest version. Raises FormatError as ledger_ids does."""
    ledger_ids(data)
    return int(SchemaLocator.FromString(data).info.position.ledgerId)


def serialize_schema_locator(versions: Iterable[tuple[int, int]]) -> bytes:
    """Write the locator of a schema, given (ledger id, entry id) of each version, oldest first; at least one."""
    index = [
        IndexEntry(version=version, position=PositionInfo(ledgerId=ledger_id, entryId=entry_id), hash=b"\x00" * 32)
        for version, (ledger_id, entry_id) in enumerate(versions)
    ]
    return SchemaLocator(info=index[-1], index=index).SerializeToString()


def _size_without_unknown_fields(locator: SchemaLocator) -> int:
    locator.DiscardUnknownFields()
    return locator.ByteSize()
