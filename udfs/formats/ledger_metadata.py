"""A ledger's znode as BookKeeper writes it: an ASCII header with a version, then a body.

The body of version 3 (since BookKeeper 4.9) is a length-delimited protobuf message; that of version 2 is the same
message as text; that of version 1 is lines of text. lastEntryId and length are valid only once the ledger is CLOSED. We
never keep the ledger's password.
"""

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from udfs.formats.errors import FormatError
from udfs.proto.bookkeeper_pb2 import LedgerMetadataFormat, LedgerNumbersFormat
from udfs.records import LedgerMetadata, LedgerState

_HEADER = b"BookieMetadataFormatVersion\t"
_HEADER_V3 = _HEADER + b"3\n"
_MAX_VERSION_DIGITS = 10
MOST_BOOKIES = 1_000  # of an ensemble; computations with a larger one would take long
# The most bytes of a ledger, and its largest entry id. 64 TiB in 1,000 copies, and 60 bytes for each copy of an entry,
# fit 63 bits together.
_MOST_BYTES = 2**46
_V1_CLOSED = "CLOSED"
_V1_IN_RECOVERY_ENTRY_ID = -102

_STATE_OF = {
    LedgerMetadataFormat.OPEN: LedgerState.OPEN,
    LedgerMetadataFormat.IN_RECOVERY: LedgerState.IN_RECOVERY,
    LedgerMetadataFormat.CLOSED: LedgerState.CLOSED,
}
_NUMBER_OF = {state: number for number, state in _STATE_OF.items()}


# bytes that a bookie stores for each entry, by the ledger's digest type
_DIGEST_BYTES = {
    LedgerMetadataFormat.CRC32: 8,
    LedgerMetadataFormat.HMAC: 20,
    LedgerMetadataFormat.CRC32C: 4,
    LedgerMetadataFormat.DUMMY: 0,
}


class PlacedLedger(NamedTuple):
    """A ledger's metadata with the bookies that hold its entries."""

    metadata: LedgerMetadata
    write_quorum: int  # copies of each entry
    digest_bytes: int  # of each copy of an entry
    # (first entry, bookies) of each segment; entry i is on the bookies (i + k) mod len(bookies), k < write_quorum
    segments: tuple[tuple[int, tuple[str, ...]], ...]
    ack_quorum: int  # copies of an entry that BookKeeper waits for


class LedgerNumbers(NamedTuple):
    """The numbers of a ledger's metadata. The rest stays serialized, because many ledgers have the same."""

    is_closed: bool
    length_bytes: int
    last_entry_id: int
    ctime_ms: int  # 0: the metadata contains no creation time
    write_quorum: int
    digest_bytes: int
    segments: tuple[bytes, ...] = ()
    custom_metadata: tuple[bytes, ...] = ()


def parse_ledger_metadata(data: bytes) -> LedgerMetadata:
    """Parse a ledger znode of any version. Raises FormatError, also for empty data."""
    if data.startswith(_HEADER_V3):
        return _parse_v3(data)
    version, body = _split_header(data)
    if version == b"2":
        return _parse_v2(body)
    if version == b"1":
        return _parse_v1(body)
    raise FormatError(f"ledger metadata has version {version.decode('latin-1')!a}; known are 1, 2 and 3")


def bookies_of(data: bytes) -> frozenset[str]:
    """Return the ids of all bookies that a ledger znode of any version names. Raises FormatError."""
    return frozenset(bookie for _first, bookies in read_placed(data).segments for bookie in bookies)


def parse_placed(data: bytes) -> PlacedLedger:
    """Parse a ledger znode as read_placed does. Raises FormatError also for numbers that no ledger has."""
    return _bounded(read_placed(data))


def numbers_of(data: bytes) -> LedgerNumbers | None:
    """Parse the numbers of a ledger znode of version 3, as parse_placed does, in a third of the time.

    Return None if parse_placed has to parse the znode. The caller may use the numbers only if parse_placed has parsed a
    ledger with these segments, which have at least `write_quorum` bookies, and a ledger with this custom metadata.
    """
    if not data.startswith(_HEADER_V3):
        return None
    try:
        message = LedgerNumbersFormat.FromString(_v3_body(data))
    except (DecodeError, FormatError):
        return None
    if not message.IsInitialized():
        return None
    is_closed, length_bytes, last_entry_id = message.state == LedgerMetadataFormat.CLOSED, 0, -1
    if is_closed:
        if not message.HasField("lastEntryId"):
            return None
        length_bytes, last_entry_id = message.length, message.lastEntryId
    if length_bytes > _MOST_BYTES or last_entry_id > _MOST_BYTES:
        return None
    digest = message.digestType if message.HasField("digestType") else LedgerMetadataFormat.CRC32
    return LedgerNumbers(  # by position: by name takes twice as long, for each of millions of ledgers
        is_closed,
        length_bytes,
        last_entry_id,
        message.ctime,
        message.quorumSize,
        _DIGEST_BYTES[digest],
        tuple(message.segment),
        tuple(message.customMetadata),
    )


def read_placed(data: bytes) -> PlacedLedger:
    """Parse a ledger znode of any version, with the bookies of its entries. Raises FormatError."""
    if data.startswith(_HEADER_V3):
        return _placed(_message(_v3_body(data)))
    version, body = _split_header(data)
    if version == b"2":
        return _placed(_text_message(body))
    metadata = parse_ledger_metadata(data)
    quorum, _ensemble, _length, *lines = body.decode("utf-8").split("\n")
    segments = [(int(first), tuple(bookies)) for first, *bookies in (line.split("\t") for line in lines if line)]
    if metadata.state is not LedgerState.OPEN:
        segments.pop()
    digest_bytes = _DIGEST_BYTES[LedgerMetadataFormat.CRC32]
    return PlacedLedger(metadata, int(quorum), digest_bytes, tuple(segments), int(quorum))


def parse_message(data: bytes) -> LedgerMetadata:
    """Parse a bare LedgerMetadataFormat message, as an offload index embeds it. Raises FormatError."""
    return _to_record(_message(data))


def serialize_v3(metadata: LedgerMetadata, *, bookies: Sequence[str] = ("127.0.0.1:3181",)) -> bytes:
    """Write a ledger znode as BookKeeper 4.9 and later do, for tests and synthetic ledgers.

    The ledger has one ensemble of `bookies` from entry 0 on, and an empty password, as Pulsar's ledgers have.
    """
    return serialize_message(to_message(metadata, bookies=bookies))


def serialize_message(message: bytes) -> bytes:
    """Write a ledger znode of version 3 that contains this LedgerMetadataFormat message."""
    return _HEADER_V3 + _varint32(len(message)) + message


def to_message(metadata: LedgerMetadata, *, bookies: Sequence[str] = ("127.0.0.1:3181",)) -> bytes:
    """Write the bare LedgerMetadataFormat message."""
    message = LedgerMetadataFormat(
        quorumSize=len(bookies),
        ensembleSize=len(bookies),
        ackQuorumSize=len(bookies),
        length=metadata.length_bytes,
        lastEntryId=metadata.last_entry_id,
        state=_NUMBER_OF[metadata.state],
        segment=[LedgerMetadataFormat.Segment(ensembleMember=bookies, firstEntryId=0)],
        digestType=LedgerMetadataFormat.CRC32C,
        password=b"",
    )
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    return message.SerializeToString()


def _bounded(placed: PlacedLedger) -> PlacedLedger:
    """Refuse numbers that no ledger has, because sums of them would not fit 64 bits or take long."""
    metadata = placed.metadata
    members = max((len(bookies) for _first, bookies in placed.segments), default=0)
    if not (placed.write_quorum <= MOST_BOOKIES and members <= MOST_BOOKIES):
        raise FormatError(f"ledger metadata has a write quorum of {placed.write_quorum} of {members} bookies")
    if max(metadata.length_bytes, metadata.last_entry_id) > _MOST_BYTES:
        raise FormatError(f"a ledger of {metadata.length_bytes} bytes, with last entry {metadata.last_entry_id}")
    return placed


def _split_header(data: bytes) -> tuple[bytes, bytes]:
    if not data.startswith(_HEADER):
        raise FormatError("ledger metadata does not start with BookieMetadataFormatVersion" if data else "empty")
    version, newline, body = data[len(_HEADER) :].partition(b"\n")
    if not newline or len(version) > _MAX_VERSION_DIGITS:
        raise FormatError("ledger metadata has no end of its version number")
    return version, body


def _parse_v3(data: bytes) -> LedgerMetadata:
    return parse_message(_v3_body(data))


def _v3_body(data: bytes) -> bytes:
    size, start = _read_varint32(data, len(_HEADER_V3))
    if start + size != len(data):
        raise FormatError(f"ledger metadata claims that {size} bytes follow, {len(data) - start} do")
    return data[start:]


def _parse_v2(body: bytes) -> LedgerMetadata:
    return _to_record(_text_message(body))


def _message(data: bytes) -> LedgerMetadataFormat:
    try:
        return LedgerMetadataFormat.FromString(data)
    except DecodeError as error:
        raise FormatError(f"ledger metadata is no LedgerMetadataFormat: {error}") from None


def _text_message(body: bytes) -> LedgerMetadataFormat:
    try:
        return text_format.Parse(body.decode("utf-8"), LedgerMetadataFormat())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise FormatError(f"ledger metadata of version 2 is not text format: {str(error)!a}") from None


def _parse_v1(body: bytes) -> LedgerMetadata:
    try:
        quorum, ensemble, length, *lines = body.decode("utf-8").split("\n")
        _quorum_size, _ensemble_size, length_bytes = int(quorum), int(ensemble), int(length)
        return _v1_record(length_bytes, [line.split("\t") for line in lines if line])
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"ledger metadata of version 1 is damaged: {str(error)!a}") from None


def _v1_record(length_bytes: int, lines: list[list[str]]) -> LedgerMetadata:
    closing = lines.pop() if lines and lines[-1][1:] == [_V1_CLOSED] else None
    if not lines:
        raise FormatError("ledger metadata of version 1 has no ensemble")
    for number, *bookies in lines:
        first_entry_id = int(number)
        if not bookies or bookies == [_V1_CLOSED]:
            raise FormatError(f"ensemble from {first_entry_id} on of ledger metadata of version 1 has no bookies")
    if closing is None:
        return LedgerMetadata(
            state=LedgerState.OPEN, length_bytes=0, last_entry_id=-1, ctime_ms=None, custom_metadata={}
        )
    last_entry_id = int(closing[0])
    if last_entry_id == _V1_IN_RECOVERY_ENTRY_ID:
        return LedgerMetadata(
            state=LedgerState.IN_RECOVERY, length_bytes=0, last_entry_id=-1, ctime_ms=None, custom_metadata={}
        )
    return LedgerMetadata(
        state=LedgerState.CLOSED,
        length_bytes=length_bytes,
        last_entry_id=last_entry_id,
        ctime_ms=None,
        custom_metadata={},
    )


def _to_record(message: LedgerMetadataFormat) -> LedgerMetadata:
    # FromString does not check that required fields are present, and treats an unknown state as absent.
    if not message.IsInitialized():
        raise FormatError("ledger metadata has no value for a required field, or a state unknown to this version")
    state = _STATE_OF[message.state]
    ctime_ms = message.ctime if message.HasField("ctime") and message.ctime > 0 else None
    custom = _custom_metadata(message)
    if state is not LedgerState.CLOSED:
        return LedgerMetadata(state=state, length_bytes=0, last_entry_id=-1, ctime_ms=ctime_ms, custom_metadata=custom)
    if not message.HasField("lastEntryId"):
        raise FormatError("ledger is CLOSED but its metadata names no last entry")
    return LedgerMetadata(
        state=state,
        length_bytes=message.length,
        last_entry_id=message.lastEntryId,
        ctime_ms=ctime_ms,
        custom_metadata=custom,
    )


def _placed(message: LedgerMetadataFormat) -> PlacedLedger:
    metadata = _to_record(message)
    segments = tuple([(segment.firstEntryId, tuple(segment.ensembleMember)) for segment in message.segment])
    # metadata of version 2 need not name the type, and an unknown type reads as absent
    digest = message.digestType if message.HasField("digestType") else LedgerMetadataFormat.CRC32
    # BookKeeper before 4.2 had only one quorum
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
    return PlacedLedger(metadata, message.quorumSize, _DIGEST_BYTES[digest], segments, ack)


def _custom_metadata(message: LedgerMetadataFormat) -> dict[str, bytes]:
    custom = {entry.key: entry.value for entry in message.customMetadata}
    # The parser returns a string field that is not UTF-8 as bytes.
    if not all(isinstance(key, str) for key in custom):
        raise FormatError("a custom metadata key is not UTF-8")
    # If two entries named two owners, the ledger's owner would be ambiguous.
    if len(custom) != len(message.customMetadata):
        raise FormatError("a custom metadata key appears twice")
    return custom


def _read_varint32(data: bytes, start: int) -> tuple[int, int]:
    """Return (value, index after it)."""
    value = 0
    for index in range(start, min(start + 5, len(data))):
        value |= (data[index] & 0x7F) << (7 * (index - start))
        if data[index] < 0x80:
            return value, index + 1
    raise FormatError("ledger metadata has no length")


def _varint32(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
