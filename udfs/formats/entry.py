"""An entry of a partition, as brokers store and send it: the metadata before the payload, and the messages in it.

The sender chooses every byte, and brokers check none of them. So:
1. Whatever the bytes are, reading ends with messages or with FormatError, in memory bounded by MAX_UNCOMPRESSED_BYTES.
   (Pulsar's C++ client ends the process for some batches, which docs/findings.md lists.)
2. If clients read the same bytes differently, we read them as Java does, since the connector is Java: the last value of
   a repeated property counts, and an unknown compression counts as none.
3. Times outside of 1970 to 9999 become the nearest time inside, so that no sum overflows.
"""

import base64
import binascii
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from udfs.formats.compression import Compression, decompress
from udfs.formats.errors import FormatError
from udfs.proto.pulsar_api_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

# Brokers store messages of up to 5 MiB unless configured otherwise, and clients fill a batch up to that size before
# they compress it. Only messages that are no requests, and compression bombs, are larger.
MAX_UNCOMPRESSED_BYTES = 8 * 1024 * 1024
LATEST_MS = 253_402_300_799_999  # the last millisecond of the year 9999

_BROKER_METADATA = b"\x0e\x02"
_CHECKSUM = b"\x0e\x01"
_CHECKSUM_BYTES = 4
_LEAST_MESSAGE_BYTES = 6  # in a batch: the size of the metadata, and a metadata with only payload_size
_SIZE = struct.Struct(">I")
# CompressionType of PulsarApi.proto; any other number is read as none
_COMPRESSIONS = {1: Compression.LZ4, 2: Compression.ZLIB, 3: Compression.ZSTD, 4: Compression.SNAPPY}

_Parsed = TypeVar("_Parsed", MessageMetadata, SingleMessageMetadata)


class EntryState(StrEnum):
    """Whether the broker delivers an entry."""

    DELIVERED = "DELIVERED"  # every reader of the topic gets it
    ABORTED = "ABORTED"  # its transaction was aborted
    OPEN = "OPEN"  # its transaction is not committed yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A message as its sender published it."""

    key: bytes | None  # None: it has none
    payload: bytes  # empty if the value is null
    properties: Mapping[str, str]
    is_null: bool = False
    schema_version: bytes = b""  # the broker's number (mostly eight bytes); empty: sent without a schema
    is_plain: bool = field(default=True, compare=False)  # stored in the entry neither compressed nor in a batch
    event_ms: int = field(default=0, compare=False)  # set by the sender; 0: not set
    sequence_id: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Identifies an entry that is a chunk of a larger message."""

    uuid: bytes  # the same for all parts
    number: int  # from 0
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry whose metadata could be read."""

    publish_ms: int
    key: bytes | None
    properties: Mapping[str, str]
    payload: bytes  # as stored: possibly compressed, encrypted or a batch
    compression: Compression
    uncompressed_size: int
    batch_size: int | None  # None: a message that was sent alone
    is_encrypted: bool
    marker_type: int | None
    chunk: ChunkPart | None
    transaction: tuple[int, int] | None  # (most, least significant bits) of its id
    is_null: bool = False
    schema_version: bytes = b""
    event_ms: int = field(default=0, compare=False)
    sequence_id: int = field(default=0, compare=False)
    producer: str = field(default="", compare=False)


class Weight(NamedTuple):
    """How much work an entry is, as its sender states it, within what is possible."""

    messages: int
    size: int  # bytes; of a compressed entry, once it is decompressed

    def plus(self, other: "Weight") -> "Weight":
        """Return the sum."""
        return Weight(self.messages + other.messages, self.size + other.size)


class Head(NamedTuple):
    """The parsed start of an entry."""

    metadata: MessageMetadata
    end: int  # the offset of the payload


def parse_entry(data: bytes) -> Entry:
    """Parse an entry's metadata, and split off its payload. Raises FormatError."""
    metadata, end = _head_of(data)
    return _entry(metadata, data[end:])


def messages_in(head: Head | None) -> int:
    """Return how many messages an entry claims to have, as brokers count them; 1 if it can't be read (None)."""
    return 1 if head is None else max(head.metadata.num_messages_in_batch, 1)


def weight_of(data: bytes, head: Head | None) -> Weight:
    """Return an entry's weight. head: of the entry; None: it can't be read, so the weight is that of one message."""
    if head is None:
        return Weight(1, len(data))
    metadata = head.metadata
    size = max(len(data), min(metadata.uncompressed_size, MAX_UNCOMPRESSED_BYTES))
    # without compression the batch can't be longer than the entry, whatever the sender states
    batch_bytes = size if metadata.compression in _COMPRESSIONS else len(data) - head.end
    return Weight(max(1, min(metadata.num_messages_in_batch, batch_bytes // _LEAST_MESSAGE_BYTES)), size)


def head_in(data: bytes) -> Head | None:
    """Parse the start of an entry; None: it can't be read."""
    try:
        return _head_of(data)
    except FormatError:
        return None


def _head_of(data: bytes) -> Head:
    """Parse the start of an entry. Raises FormatError."""
    start = 0
    if data[:2] == _BROKER_METADATA:  # brokers add it if configured to
        start = 2 + _SIZE.size + _size_at(data, 2)
    if data[start : start + 2] == _CHECKSUM:  # not checked here: the broker has checked it
        start += 2 + _CHECKSUM_BYTES
    first = start + _SIZE.size
    end = first + _size_at(data, start)
    if end > len(data):
        raise FormatError(f"entry of {len(data)} bytes claims that its metadata ends at byte {end}")
    return Head(_parsed(MessageMetadata, data[first:end], "metadata"), end)


def contents_of(entry: Entry) -> Iterator[tuple[int, Content]]:
    """Yield the messages of an entry that is neither encrypted nor a marker nor a chunk: (index in the batch, message).

    The index is -1 if the message was sent alone. Messages that were compacted away are left out. Raises FormatError
    after the last message that can be read.
    """
    payload = uncompressed(entry)
    if entry.batch_size is None:
        is_plain = entry.compression is Compression.NONE
        yield (
            -1,
            Content(
                key=entry.key,
                payload=payload,
                properties=entry.properties,
                is_null=entry.is_null,
                schema_version=entry.schema_version,
                is_plain=is_plain,
                event_ms=entry.event_ms,
                sequence_id=entry.sequence_id,
            ),
        )
        return
    yield from _batch(payload, entry.batch_size, entry.schema_version)


def uncompressed(entry: Entry) -> bytes:
    """Return the decompressed payload. Raises FormatError."""
    if entry.compression is Compression.NONE:
        return entry.payload
    if entry.uncompressed_size > MAX_UNCOMPRESSED_BYTES:
        raise FormatError(
            f"payload claims to decompress to {entry.uncompressed_size} bytes; at most {MAX_UNCOMPRESSED_BYTES} are "
            "read"
        )
    return decompress(entry.payload, entry.compression, entry.uncompressed_size, "payload")


def _entry(metadata: MessageMetadata, payload: bytes) -> Entry:
    if not (metadata.HasField("producer_name") and metadata.HasField("publish_time")):
        raise FormatError("metadata has no producer name or no publish time")  # brokers skip such entries
    has_transaction = metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")
    return Entry(
        publish_ms=_within_years(metadata.publish_time),
        key=_key(metadata),
        properties=_texts(metadata.properties),
        payload=payload,
        compression=_COMPRESSIONS.get(metadata.compression, Compression.NONE),
        uncompressed_size=metadata.uncompressed_size,
        batch_size=metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None,
        is_encrypted=bool(metadata.encryption_keys),
        marker_type=metadata.marker_type if metadata.HasField("marker_type") else None,
        chunk=_chunk(metadata),
        transaction=(metadata.txnid_most_bits, metadata.txnid_least_bits) if has_transaction else None,
        is_null=metadata.null_value != 0,
        schema_version=metadata.schema_version,
        event_ms=_within_years(metadata.event_time),
        sequence_id=_signed(metadata.sequence_id),
        producer=_text(metadata.producer_name),
    )


def _batch(payload: bytes, size: int, schema_version: bytes) -> Iterator[tuple[int, Content]]:
    offset = index = 0
    while index < size:
        if offset >= len(payload):
            raise FormatError(f"batch claims to have {size} messages, and ends after {index}")
        single, offset = _single(payload, offset, index)
        if not 0 <= single.payload_size <= len(payload) - offset:
            raise FormatError(f"message {index} of a batch claims to have {single.payload_size} bytes")
        if not single.compacted_out:
            body = payload[offset : offset + single.payload_size]
            properties = _texts(single.properties)
            yield (
                index,
                Content(
                    key=_key(single),
                    payload=body,
                    properties=properties,
                    is_null=single.null_value != 0,
                    schema_version=schema_version,
                    is_plain=False,
                    event_ms=_within_years(single.event_time),
                    sequence_id=_signed(single.sequence_id),
                ),
            )
        offset += single.payload_size
        index += 1
    if size < 1:  # also without bytes: the admin API returns none if a compressed batch claims to decompress to none
        raise FormatError(f"batch of {len(payload)} bytes claims to have {size} messages")


def _single(payload: bytes, offset: int, index: int) -> tuple[SingleMessageMetadata, int]:
    start = offset + _SIZE.size
    end = start + _size_at(payload, offset)
    if end > len(payload):
        raise FormatError(f"message {index} of a batch claims that its metadata ends at byte {end} of {len(payload)}")
    single = _parsed(SingleMessageMetadata, payload[start:end], f"metadata of message {index} of a batch")
    if not single.HasField("payload_size"):
        raise FormatError(f"message {index} of a batch has no length")
    return single, end


def _parsed(kind: type[_Parsed], data: bytes, what: str) -> _Parsed:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise FormatError(f"{what} can't be parsed: {error}") from None


def _size_at(data: bytes, offset: int) -> int:
    try:
        return int(_SIZE.unpack_from(data, offset)[0])
    except struct.error:
        raise FormatError(f"{len(data)} bytes end before the size at byte {offset}") from None


def _key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    if metadata.null_partition_key or not metadata.HasField("partition_key"):
        return None
    if not metadata.partition_key_b64_encoded:
        return metadata.partition_key
    try:
        return base64.b64decode(metadata.partition_key, validate=True)
    except binascii.Error:
        return metadata.partition_key


def _texts(properties: Iterable[KeyValue]) -> dict[str, str]:
    return {_text(pair.key): _text(pair.value) for pair in properties}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _chunk(metadata: MessageMetadata) -> ChunkPart | None:
    if not metadata.HasField("chunk_id") or metadata.num_chunks_from_msg == 1:
        return None
    return ChunkPart(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)


def _within_years(unsigned_ms: int) -> int:
    return min(max(_signed(unsigned_ms), 0), LATEST_MS)


def _signed(unsigned: int) -> int:
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned
