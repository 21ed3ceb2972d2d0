"""Odd messages of every kind that a producer can publish: a function for each kind, in ODD by its name.

Args of each function:
    send: the clients.
    topic: a partition or a topic without partitions.
    request: the bytes of a valid request.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

import pulsar

from tests.integration.java_producer import JavaProducer, message, messages
from tests.integration.raw_producer import RawProducer
from tests.pulsar_fields import key_value, metadata, single
from udfs.entry_ranges import MessageAddress

LARGEST_LONG = (1 << 63) - 1
MIB = 1 << 20


@dataclass(frozen=True)
class Senders:
    """The three clients."""

    python: Any
    raw: RawProducer
    java: JavaProducer  # None if the test uses no kind that needs this client
    _by_python: list[MessageAddress] = field(default_factory=list)

    @property
    def acknowledged(self) -> set[MessageAddress]:
        """Addresses of all messages that brokers acknowledged; index -1 for a single message or an unread entry.

        A broker also acknowledges a message that it dropped as a duplicate, without a position.
        """
        addresses = (*self._by_python, *self.raw.acknowledged, *self.java.acknowledged)
        return {address for address in addresses if address[1] >= 0}

    def by_python(
        self, topic: str, payloads: list[bytes], producer_options: Mapping[str, Any], **message_options: Any
    ) -> None:
        """Publish with pulsar-client."""

        def stored(result: Any, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                position = (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
                self._by_python.append((topic, *position))

        producer = self.python.create_producer(topic, **producer_options)
        try:
            for payload in payloads:
                producer.send_async(payload, stored, **message_options)
            producer.flush()
        finally:
            producer.close()


@contextmanager
def senders(service_url: str, *, transactions: bool = False) -> Iterator[Senders]:
    """Open the three clients."""
    with senders_without_java(service_url) as opened, JavaProducer(service_url, transactions=transactions) as java:
        yield replace(opened, java=java)


@contextmanager
def senders_without_java(service_url: str) -> Iterator[Senders]:
    """Open the two clients that start quickly."""
    opened = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        with RawProducer(service_url) as raw:
            yield Senders(opened, raw, cast("JavaProducer", None))
    finally:
        opened.close()


Publish = Callable[[Senders, str, bytes], None]
ODD: dict[str, Publish] = {}
NEEDS_TRANSACTIONS: set[str] = set()
# the entries of these kinds hold no message
NO_MESSAGE = {
    "batch_all_compacted_out",
    "marker_of_a_replicated_subscription",
    "marker_with_a_request",
    "unknown_marker",
    "marker_of_an_unknown_commit",
}


def _odd(publish: Publish) -> Publish:
    ODD[publish.__name__] = publish
    return publish


def _in_transactions(publish: Publish) -> Publish:
    NEEDS_TRANSACTIONS.add(publish.__name__)
    return _odd(publish)


def _python(
    send: Senders, topic: str, payloads: list[bytes], producer_options: dict[str, Any], **message_options: Any
) -> None:
    send.by_python(topic, payloads, producer_options, **message_options)


# --- times -----------------------------------------------------------------------------------------------------------


@_odd
def event_time_2_to_62(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [request], {}, event_timestamp=1 << 62)


@_odd
def event_time_0(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, event_time=0)


@_odd
def event_time_negative(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, event_time=-1)


@_odd
def event_time_smallest(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, event_time=-(1 << 63))


@_odd
def event_time_of_one_message_of_a_batch(send: Senders, topic: str, request: bytes) -> None:
    batch = single(request) + single(request, event_time=1 << 62) + single(request)
    send.raw.send(topic, batch, num_messages_in_batch=3)


@_odd
def publish_time_0(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, publish_time=0)


@_odd
def publish_time_2_to_62(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, publish_time=1 << 62)


@_odd
def publish_time_negative(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, publish_time=-1)


@_odd
def publish_time_smallest(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, publish_time=-(1 << 63))


@_odd
def publish_time_of_the_year_9999(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, publish_time=253_402_300_799_999)


@_odd
def delivery_far_away(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [request], {}, deliver_after=timedelta(days=3650))


@_odd
def delivery_at_the_largest_long(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, deliver_at_time=LARGEST_LONG)


@_odd
def delivery_at_the_smallest_long(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, deliver_at_time=-(1 << 63))


# --- nothing to read -------------------------------------------------------------------------------------------------


@_odd
def empty_payload(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [b""], {})


@_odd
def null_value(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, message(None))


@_odd
def tombstone(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, message(None, key="a-key"))


@_odd
def batch_with_nulls(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, *messages([request, None, request], key="a-key"), producer={"batching": 3})


@_odd
def batch_of_nulls(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, *messages([None, None], key="a-key"), producer={"batching": 2})


@_odd
def null_value_with_bytes(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, null_value=1)


@_odd
def compacted_out(send: Senders, topic: str, request: bytes) -> None:
    batch = single(request) + single(request, compacted_out=1) + single(request)
    send.raw.send(topic, batch, num_messages_in_batch=3)


@_odd
def batch_all_compacted_out(send: Senders, topic: str, request: bytes) -> None:
    batch = single(request, compacted_out=1) + single(request, compacted_out=1)
    send.raw.send(topic, batch, num_messages_in_batch=2)


# --- keys, properties, numbers ---------------------------------------------------------------------------------------


@_odd
def key_flagged_as_base64(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, partition_key="no base64!", partition_key_b64_encoded=1)


@_odd
def key_flagged_as_base64_in_a_batch(send: Senders, topic: str, request: bytes) -> None:
    batch = single(request) + single(request, partition_key="no base64!", partition_key_b64_encoded=1)
    send.raw.send(topic, batch, num_messages_in_batch=2)


@_odd
def key_bytes(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, message(request, keyBytes=b"\x00\xff"))


@_odd
def key_flagged_null(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, partition_key="a-key", null_partition_key=1)


@_odd
def ordering_key(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [request], {}, ordering_key="o", partition_key="k")


@_odd
def huge_property(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [request], {}, properties={"large": "x" * MIB})


@_odd
def many_properties(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [request], {}, properties={f"p{n}": "v" for n in range(20_000)})


@_odd
def property_twice(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, properties=[key_value("twice", "a"), key_value("twice", "b"), key_value("", "")])


@_odd
def property_not_utf_8(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, properties=[key_value(b"\xff\xfe", b"\xc3\x28")])


@_odd
def key_not_utf_8(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, partition_key=b"\xff\xfe")


@_odd
def producer_name_not_utf_8(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, producer_name=b"\xff\xfe")


@_odd
def sequence_id_largest(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [request], {}, sequence_id=LARGEST_LONG)


@_odd
def flagged_as_replicated(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, replicated_from="elsewhere", replicate_to=["__local__"])


# --- sizes, compression, batches -------------------------------------------------------------------------------------


@_odd
def batch(send: Senders, topic: str, request: bytes) -> None:
    options = {"batching_enabled": True, "batching_max_publish_delay_ms": 1000, "batching_max_messages": 10}
    _python(send, topic, [request] * 10, options)


@_odd
def compressed(send: Senders, topic: str, request: bytes) -> None:
    for compression in ("LZ4", "ZLib", "ZSTD", "SNAPPY"):
        _python(send, topic, [request], {"compression_type": getattr(pulsar.CompressionType, compression)})


@_odd
def compressed_batches(send: Senders, topic: str, request: bytes) -> None:
    for compression in ("LZ4", "ZLIB", "ZSTD", "SNAPPY"):
        send.java.send(topic, *messages([request] * 3), producer={"batching": 3, "compression": compression})


@_odd
def largest_message(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [os.urandom(5 * MIB - 200)], {})


@_odd
def larger_once_decompressed(send: Senders, topic: str, request: bytes) -> None:
    _python(send, topic, [b" " * (20 * MIB)], {"compression_type": pulsar.CompressionType.ZSTD})


@_odd
def flagged_as_compressed(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, compression=1, uncompressed_size=len(request))


@_odd
def unknown_compression(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, compression=9, uncompressed_size=len(request))


@_odd
def uncompressed_size_too_small(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, zlib.compress(request), compression=2, uncompressed_size=1)


@_odd
def uncompressed_size_1_gib(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, zlib.compress(request), compression=2, uncompressed_size=1 << 30)


@_odd
def uncompressed_size_4_gib(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, zlib.compress(request), compression=2, uncompressed_size=(1 << 32) - 1)


@_odd
def batch_of_fewer_than_declared(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, single(request), num_messages_in_batch=1000)


@_odd
def batch_of_more_than_declared(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, single(request) * 3, num_messages_in_batch=2)


@_odd
def no_batch_flagged_as_batch(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, num_messages_in_batch=2)


@_odd
def batch_of_zero(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, num_messages_in_batch=0)


@_odd
def batch_of_zero_that_claims_to_be_compressed(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, single(request), num_messages_in_batch=0, compression=1)


@_odd
def batch_of_minus_one(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, num_messages_in_batch=-1)


@_odd
def batch_of_two_thousand_million(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, single(request), num_messages_in_batch=(1 << 31) - 1)


@_odd
def negative_size_in_a_batch(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, single(request) + single(request, payload_size=-5), num_messages_in_batch=2)


# --- unreadable messages ---------------------------------------------------------------------------------------------


@_odd
def encrypted(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, message(request, key="k", properties={"p": "v"}), producer={"encryption": True})


@_odd
def encrypted_batch(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, *messages([request] * 3), producer={"encryption": True, "batching": 3})


@_odd
def encrypted_and_compressed(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, message(request), producer={"encryption": True, "compression": "ZLIB"})


@_odd
def flagged_as_encrypted(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(
        topic, request, encryption_keys=[key_value("k", b"v")], encryption_algo="x", encryption_param=b"0" * 12
    )


@_odd
def metadata_is_garbage(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send_bytes(topic, b"\xff" * 40, request)


@_odd
def metadata_without_required_fields(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send_bytes(topic, metadata(partition_key="k"), request)


@_odd
def metadata_that_brokers_do_not_answer_for(send: Senders, topic: str, request: bytes) -> None:
    """Found by the fuzzer: a broker does not return the last message while this is the last entry."""
    send.raw.send_bytes(topic, bytes.fromhex("0a03726177108195e01880d095ffbc31"), request)


@_odd
def metadata_is_empty(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send_bytes(topic, b"", request)


@_odd
def unknown_schema_version(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, schema_version=b"\x00" * 7 + b"\x63")


# --- chunks ----------------------------------------------------------------------------------------------------------


@_odd
def chunked(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, message(request), producer={"chunkBytes": len(request) // 4 + 1})


def _chunk(send: Senders, topic: str, payload: bytes, uuid: str, which: tuple[int, int]) -> None:
    number, of = which
    sizes = {"num_chunks_from_msg": of, "total_chunk_msg_size": len(payload) * of, "chunk_id": number}
    send.raw.send(topic, payload, {"is_chunk": 1}, uuid=uuid, **sizes)


@_odd
def chunks_without_an_end(send: Senders, topic: str, request: bytes) -> None:
    uuid = os.urandom(4).hex()
    for number in range(2):
        _chunk(send, topic, request, uuid, (number, 3))


@_odd
def first_chunk_without_an_end(send: Senders, topic: str, request: bytes) -> None:
    _chunk(send, topic, request, os.urandom(4).hex(), (0, 3))


@_odd
def last_chunk_alone(send: Senders, topic: str, request: bytes) -> None:
    _chunk(send, topic, request, os.urandom(4).hex(), (2, 3))


@_odd
def chunk_of_two_thousand_million(send: Senders, topic: str, request: bytes) -> None:
    largest = (1 << 31) - 1
    sizes = {"num_chunks_from_msg": largest, "total_chunk_msg_size": largest, "chunk_id": 0}
    send.raw.send(topic, request, {"is_chunk": 1}, uuid=os.urandom(4).hex(), **sizes)


# --- markers and transactions ----------------------------------------------------------------------------------------


@_odd
def marker_of_a_replicated_subscription(send: Senders, topic: str, request: bytes) -> None:
    for kind in (10, 11, 12, 13):
        send.raw.send(topic, b"", marker_type=kind)


@_odd
def marker_with_a_request(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, marker_type=10)


@_odd
def unknown_marker(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, marker_type=99)


@_odd
def marker_of_an_unknown_commit(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, marker_type=21, txnid_most_bits=7, txnid_least_bits=7)


@_odd
def flagged_as_in_a_transaction(send: Senders, topic: str, request: bytes) -> None:
    send.raw.send(topic, request, txnid_most_bits=7, txnid_least_bits=7)


@_in_transactions
def committed(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, *messages([request, request]), transaction={"end": "commit"})


@_in_transactions
def aborted(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, *messages([request, request]), transaction={"end": "abort"})


@_in_transactions
def open_transaction(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, message(request), transaction={"end": "open"})


@_in_transactions
def open_for_seconds(send: Senders, topic: str, request: bytes) -> None:
    send.java.send(topic, message(request), transaction={"end": "open", "timeoutMs": 15_000})


@_in_transactions
def open_unknown_to_the_coordinator(send: Senders, topic: str, request: bytes) -> None:
    ids = {"txnid_most_bits": 0, "txnid_least_bits": int.from_bytes(os.urandom(4))}
    send.raw.send(topic, request, ids, **ids)


# --- schemas ---------------------------------------------------------------------------------------------------------


def _with_schema(send: Senders, topic: str, schema: str) -> None:
    request = {"topicName": "public/default/persistent/nowhere", "ledgerComponent": "MANAGED_LEDGER"}
    fields = json.dumps(request | {"ledgerType": "LEDGER", "ledgerId": LARGEST_LONG})
    send.java.send(topic, message(fields.encode(), key="k"), producer={"schema": schema})


@_odd
def schema_string(send: Senders, topic: str, request: bytes) -> None:
    _with_schema(send, topic, "STRING")


@_odd
def schema_json(send: Senders, topic: str, request: bytes) -> None:
    _with_schema(send, topic, "JSON")


@_odd
def schema_avro(send: Senders, topic: str, request: bytes) -> None:
    _with_schema(send, topic, "AVRO")


@_odd
def schema_key_value_inline(send: Senders, topic: str, request: bytes) -> None:
    _with_schema(send, topic, "KEY_VALUE_INLINE")


@_odd
def schema_key_value_separated(send: Senders, topic: str, request: bytes) -> None:
    _with_schema(send, topic, "KEY_VALUE_SEPARATED")
