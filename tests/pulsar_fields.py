"""Pulsar's messages written field by field: every field of what stands before a payload, sensible or not.

Both clients fill in or refuse what a hostile sender would choose freely: publish time, marker type, flags, sizes.
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
    """A MessageMetadata with these fields and no others; repeated fields are lists."""
    return named(_METADATA, fields)


def single(payload: bytes, **fields: Value) -> bytes:
    """One message of a producer's batch; payload_size is the payload's own unless it is given."""
    written = named(_SINGLE, {"payload_size": len(payload), **fields})
    return struct.pack(">I", len(written)) + written + payload


def key_value(key: str | bytes, value: str | bytes) -> bytes:
    """A KeyValue, as properties are lists of; also what encryption_keys begin with."""
    return field(1, key) + field(2, value)


def entry(payload: bytes, **fields: Value) -> bytes:
    """An entry as a bookie stores it; what a client would set is set unless it is given."""
    usual: dict[str, Value] = {"producer_name": "p", "sequence_id": 1, "publish_time": 1_700_000_000_000}
    return framed(metadata(**{**usual, **fields}), payload)


def framed(written: bytes, payload: bytes) -> bytes:
    """Metadata that is any bytes at all, and the payload behind it."""
    return struct.pack(">I", len(written)) + written + payload


def named(numbers: Mapping[str, int], fields: Fields) -> bytes:
    """Fields by their names."""
    return b"".join(field(numbers[name], value) for name, value in fields.items())


def field(number: int, value: Value) -> bytes:
    """A field, or one for each value of a list."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % (1 << 64))  # negative numbers take ten bytes
    if isinstance(value, str):
        return field(number, value.encode())
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return b"".join(field(number, each) for each in value)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
