"""Writes Pulsar's messages field by field, with sensible or absurd values in every field before the payload.

The Python and Java clients set or refuse fields that a hostile sender chooses freely: publish time, marker type, flags,
sizes.
"""

import struct
from collections.abc import Mapping, Sequence

Value = int | str | bytes | Sequence["Value"]
Fields = Mapping[str, Value]

# PulsarApi.proto's numbers
_METADATA = {
    "producer_name": 1,
    "sequence_id": 2,
    "publish_time": 3,
    "properties": 4,
    "replicated_from": 5,
    "partition_key": 6,
    "replicate_to": 7,
    "compression": 8,
    "uncompressed_size": 9,
    "num_messages_in_batch": 11,
    "event_time": 12,
    "encryption_keys": 13,
    "encryption_algo": 14,
    "encryption_param": 15,
    "schema_version": 16,
    "partition_key_b64_encoded": 17,
    "ordering_key": 18,
    "deliver_at_time": 19,
    "marker_type": 20,
    "txnid_least_bits": 22,
    "txnid_most_bits": 23,
    "highest_sequence_id": 24,
    "null_value": 25,
    "uuid": 26,
    "num_chunks_from_msg": 27,
    "total_chunk_msg_size": 28,
    "chunk_id": 29,
    "null_partition_key": 30,
}
_SINGLE = {
    "properties": 1,
    "partition_key": 2,
    "payload_size": 3,
    "compacted_out": 4,
    "event_time": 5,
    "partition_key_b64_encoded": 6,
    "ordering_key": 7,
    "sequence_id": 8,
    "null_value": 9,
    "null_partition_key": 10,
}


def metadata(**fields: Value) -> bytes:
    """Return a MessageMetadata with only these fields; repeated fields are lists."""
    return named(_METADATA, fields)


def single(payload: bytes, **fields: Value) -> bytes:
    """Return a message of a producer's batch; payload_size defaults to the payload's size."""
    encoded = named(_SINGLE, {"payload_size": len(payload), **fields})
    return struct.pack(">I", len(encoded)) + encoded + payload


def key_value(key: str | bytes, value: str | bytes) -> bytes:
    """Return a KeyValue, the element of properties; encryption_keys start with the same fields."""
    return field(1, key) + field(2, value)


def entry(payload: bytes, **fields: Value) -> bytes:
    """Return an entry as a bookie stores it; fields default to those that a client sets."""
    defaults: dict[str, Value] = {"producer_name": "p", "sequence_id": 1, "publish_time": 1_700_000_000_000}
    return framed(metadata(**{**defaults, **fields}), payload)


def framed(metadata_bytes: bytes, payload: bytes) -> bytes:
    """Return an entry of arbitrary metadata bytes and the payload."""
    return struct.pack(">I", len(metadata_bytes)) + metadata_bytes + payload


def named(numbers: Mapping[str, int], fields: Fields) -> bytes:
    """Encode fields by their names."""
    return b"".join(field(numbers[name], value) for name, value in fields.items())


def field(number: int, value: Value) -> bytes:
    """Encode a field; a list becomes a field for each value."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % (1 << 64))  # negative numbers take ten bytes
    if isinstance(value, str):
        return field(number, value.encode())
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return b"".join(field(number, element) for element in value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
