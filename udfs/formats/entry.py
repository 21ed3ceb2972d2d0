"""One entry of a partition, as brokers store it and send it: what stands before the payload, and the messages in it.

A sender chooses every byte of it, and brokers check none of them. So:
1. Whatever stands there, reading ends with messages or with FormatError, in memory bounded by MAX_UNCOMPRESSED_BYTES.
   (Pulsar's C++ client ends the process for some batches; docs/findings-odd-messages.md has them.)
2. What two clients read differently is read as Java does, for the connector is Java: of a property that stands there
   twice the last value counts, and a compression that nobody knows is none.
3. Times outside of 1970 to 9999 become the nearest that is inside, so that nobody's sum overflows.
"""

import base64
import binascii
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import DecodeError

from udfs.formats.compression import Compression, decompress
from udfs.formats.errors import FormatError
from udfs.proto.pulsar_api_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

# Brokers store 5 MiB unless they are told otherwise, and clients fill a batch up to that before they compress it.
# Above it stand only messages that are no requests, and bombs.
MAX_UNCOMPRESSED_BYTES = 8 * 1024 * 1024
LATEST_MS = 253_402_300_799_999  # the last millisecond of the year 9999

_BROKER_METADATA = b"\x0e\x02"
_CHECKSUM = b"\x0e\x01"
_CHECKSUM_BYTES = 4
_SIZE = struct.Struct(">I")
# CompressionType of PulsarApi.proto; any other number is read as none
_COMPRESSIONS = {1: Compression.LZ4, 2: Compression.ZLIB, 3: Compression.ZSTD, 4: Compression.SNAPPY}

_Parsed = TypeVar("_Parsed", MessageMetadata, SingleMessageMetadata)


class EntryState(StrEnum):
    """How the broker holds an entry. DELIVERED: whoever reads the topic gets it."""

    DELIVERED = "DELIVERED"
    ABORTED = "ABORTED"
    OPEN = "OPEN"


@dataclass(frozen=True, slots=True)
class Content:
    """A message as its sender gave it. key None: it has none. payload is empty where its value is null.

    schema_version: as brokers number them (eight bytes for the most part); empty where it was sent without a schema.
    is_plain: the payload lies in the entry as it is here, neither compressed nor in a batch.
    """

    key: bytes | None
    payload: bytes
    properties: Mapping[str, str]
    is_null: bool = False
    schema_version: bytes = b""
    is_plain: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Which part of a larger message an entry is: the first is number 0. All parts carry the same uuid."""

    uuid: bytes
    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry whose metadata could be read; payload is as it lies there, perhaps compressed, encrypted or a batch.

    batch_size None: one message that was sent alone. transaction: (most, least significant bits) of its id.
    """

    publish_ms: int
    key: bytes | None
    properties: Mapping[str, str]
    payload: bytes
    compression: Compression
    uncompressed_size: int
    batch_size: int | None
    is_encrypted: bool
    marker_type: int | None
    chunk: ChunkPart | None
    transaction: tuple[int, int] | None
    is_null: bool = False
    schema_version: bytes = b""


def parse_entry(data: bytes) -> Entry:
    """Read what stands before the payload. Raises FormatError."""
    metadata, end = _metadata(data)
    return _entry(metadata, data[end:])


def messages_in(data: bytes) -> int:
    """Return how many messages an entry says that it has, as brokers count them; 1 where nobody can tell."""
    try:
        return max(_metadata(data)[0].num_messages_in_batch, 1)
    except FormatError:
        return 1


def _metadata(data: bytes) -> tuple[MessageMetadata, int]:
    """Return an entry's metadata, and where its payload begins."""
    begin = 0
    if data[:2] == _BROKER_METADATA:  # a broker's own addition, where it was told to make one
        begin = 2 + _SIZE.size + _size_at(data, 2)
    if data[begin : begin + 2] == _CHECKSUM:  # the broker has checked it, and so does whoever sends the entry on
        begin += 2 + _CHECKSUM_BYTES
    first = begin + _SIZE.size
    end = first + _size_at(data, begin)
    if end > len(data):
        raise FormatError(f"entry of {len(data)} bytes says that its metadata ends at byte {end}")
    return _parsed(MessageMetadata, data[first:end], "metadata"), end


def contents_of(entry: Entry) -> Iterator[tuple[int, Content]]:
    """Yield the messages of an entry that is neither encrypted nor a marker nor a chunk: (index in the batch, message).

    The index is -1 where the message was sent alone. Messages that were compacted away are left out. Raises FormatError
    behind the last message that can be read.
    """
    payload = uncompressed(entry)
    if entry.batch_size is None:
        is_plain = entry.compression is Compression.NONE
        yield -1, Content(entry.key, payload, entry.properties, entry.is_null, entry.schema_version, is_plain)
        return
    yield from _batch(payload, entry.batch_size, entry.schema_version)


def uncompressed(entry: Entry) -> bytes:
    """Return the payload as it was before it was compressed. Raises FormatError."""
    if entry.compression is Compression.NONE:
        return entry.payload
    if entry.uncompressed_size > MAX_UNCOMPRESSED_BYTES:
        raise FormatError(
            f"payload says that it decompresses to {entry.uncompressed_size} bytes; at most {MAX_UNCOMPRESSED_BYTES} "
            "are read"
        )
    return decompress(entry.payload, entry.compression, entry.uncompressed_size, "payload")


def _entry(metadata: MessageMetadata, payload: bytes) -> Entry:
    if not (metadata.HasField("producer_name") and metadata.HasField("publish_time")):
        raise FormatError("metadata lacks the producer's name or the publish time")  # brokers pass such entries over
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
    )


def _batch(payload: bytes, size: int, schema_version: bytes) -> Iterator[tuple[int, Content]]:
    at = index = 0
    while index < size:
        if at >= len(payload):
            raise FormatError(f"batch says that it has {size} messages, and ends behind {index}")
        single, at = _single(payload, at, index)
        if not 0 <= single.payload_size <= len(payload) - at:
            raise FormatError(f"message {index} of a batch says that it has {single.payload_size} bytes")
        if not single.compacted_out:
            body = payload[at : at + single.payload_size]
            properties = _texts(single.properties)
            yield index, Content(_key(single), body, properties, single.null_value != 0, schema_version, is_plain=False)
        at += single.payload_size
        index += 1
    if size < 1 and payload:
        raise FormatError(f"batch of {len(payload)} bytes says that it has {size} messages")


def _single(payload: bytes, at: int, index: int) -> tuple[SingleMessageMetadata, int]:
    begin = at + _SIZE.size
    end = begin + _size_at(payload, at)
    if end > len(payload):
        raise FormatError(f"message {index} of a batch says that its metadata ends at byte {end} of {len(payload)}")
    single = _parsed(SingleMessageMetadata, payload[begin:end], f"metadata of message {index} of a batch")
    if not single.HasField("payload_size"):
        raise FormatError(f"message {index} of a batch does not say how long it is")
    return single, end


def _parsed(kind: type[_Parsed], data: bytes, what: str) -> _Parsed:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise FormatError(f"{what} can't be parsed: {error}") from None


def _size_at(data: bytes, at: int) -> int:
    try:
        return int(_SIZE.unpack_from(data, at)[0])
    except struct.error:
        raise FormatError(f"{len(data)} bytes end before the size at byte {at}") from None


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
    return {each.key.decode("utf-8", "replace"): each.value.decode("utf-8", "replace") for each in properties}


def _chunk(metadata: MessageMetadata) -> ChunkPart | None:
    if not metadata.HasField("chunk_id") or metadata.num_chunks_from_msg == 1:
        return None
    return ChunkPart(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)


def _within_years(unsigned_ms: int) -> int:
    signed_ms = unsigned_ms - (1 << 64) if unsigned_ms >> 63 else unsigned_ms
    return min(max(signed_ms, 0), LATEST_MS)
