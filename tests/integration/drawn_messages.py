"""Random messages of each client, over all fields that a producer can set; the same seed draws the same messages.

One call publishes a drawn message; it raises one of REFUSED if the client or the broker refuses the message. A drawn
message is either of a kind of odd_messages.py or drawn field by field.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pulsar

from tests.integration.java_producer import JavaError, message
from tests.integration.odd_messages import MIB, NEEDS_TRANSACTIONS, NO_MESSAGE, ODD, Senders
from tests.integration.raw_producer import RefusedByBrokerError
from tests.pulsar_fields import Value, key_value, metadata, single
from udfs.owners.sightings import OWNER_ABSENT_SINCE
from udfs.requests.retry import (
    COPY_ID,
    DELAY_TIME,
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    REASON,
    RECONSUMETIMES,
    RETRY_TOPIC,
)

REFUSED = (RefusedByBrokerError, JavaError, pulsar.PulsarException, OSError, ValueError, TypeError, OverflowError)

LONGS = (0, 1, -1, 2, 7, 127, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 53, 1 << 62, (1 << 63) - 1, -(1 << 63))
# within the range of the Python client's unsigned fields
UNSIGNED = tuple(number for number in LONGS if number >= 0)
TEXTS = (
    "",
    "k",
    "key with blanks",
    "no base64!",
    "a" * 5000,
    "\u00e4\u20ac\U0001f600",
    "\x00\x1b[2J",
    "[blink]x[/]",
    "../..",
)
COMPRESSIONS = ("LZ4", "ZLIB", "ZSTD", "SNAPPY")
SCHEMAS = ("STRING", "JSON", "AVRO", "KEY_VALUE_INLINE", "KEY_VALUE_SEPARATED")
# properties of our own copies; the delays are short, because the test waits until all is done
OURS: Mapping[str, tuple[str, ...]] = {
    RECONSUMETIMES: ("0", "1", "2", "3", "1000000", "-1", "x", "9" * 400),
    DELAY_TIME: ("0", "1", "1500", "-600000", "1e9", "\u0665", ""),
    REAL_TOPIC: ("persistent://nobody/reaper/other", "no topic", "", "x" * 5000),
    ORIGIN_MESSAGE_ID: ("9:9:9", "9:9:9:9:9", "nonsense", ""),
    RETRY_TOPIC: ("persistent://nobody/reaper/other-RETRY",),
    OWNER_ABSENT_SINCE: (f"1:{'0' * 64}", "1", ":", "9" * 99),
    REASON: ("NOT_JSON", "[red]x[/red]", "\x1b[31m"),
    COPY_ID: ("another-table/1", f"another-table/{1 << 62}", "/", "x"),
}

_NUMBERS = (
    "sequence_id",
    "publish_time",
    "compression",
    "uncompressed_size",
    "num_messages_in_batch",
    "event_time",
    "partition_key_b64_encoded",
    "deliver_at_time",
    "marker_type",
    "txnid_least_bits",
    "txnid_most_bits",
    "highest_sequence_id",
    "null_value",
    "num_chunks_from_msg",
    "total_chunk_msg_size",
    "chunk_id",
    "null_partition_key",
)
_BYTES = (
    "producer_name",
    "replicated_from",
    "partition_key",
    "encryption_algo",
    "encryption_param",
    "schema_version",
    "ordering_key",
    "uuid",
)
_SINGLE_NUMBERS = (
    "payload_size",
    "compacted_out",
    "event_time",
    "partition_key_b64_encoded",
    "sequence_id",
    "null_value",
)


@dataclass(frozen=True)
class Drawn:
    """A message to be published."""

    kind: str  # of odd_messages.py, or the client that publishes it
    description: str
    publish: Callable[[Senders, str], None]
    may_wait: bool = False  # its publish time may be in the future, and a retry is not due before
    may_be_none: bool = False  # its entry may hold no message, and then has no receipt


class Drawer:
    """Draws messages.

    Args:
        chance: the source of all random choices.
        transactions: the broker supports transactions.
        only: the kinds to draw from; empty for all.
    """

    def __init__(self, chance: random.Random, *, transactions: bool, only: Sequence[str] = ()) -> None:
        self._chance = chance
        self._transactions = transactions
        self._clients: dict[str, Callable[[bytes], Drawn]] = {
            "python": self._python,
            "java": self._java,
            "raw": self._raw,
            "raw batch": self._raw_batch,
            "raw bytes": self._raw_bytes,
        }
        odd = [kind for kind in ODD if transactions or kind not in NEEDS_TRANSACTIONS]
        self.kinds = [kind for kind in (*odd, *self._clients) if not only or kind in only]
        if not self.kinds:
            raise ValueError(f"{only}: none of these kinds can be drawn")

    def kind(self) -> str:
        """Draw a kind; half of the messages are drawn field by field."""
        fieldwise = [kind for kind in self.kinds if kind in self._clients]
        named = [kind for kind in self.kinds if kind not in self._clients]
        return self._chance.choice(fieldwise if fieldwise and (not named or self._is(0.5)) else named)

    def draw(self, kind: str, request: bytes) -> Drawn:
        """Draw a message that contains the request, or the kind's own payload."""
        if kind in self._clients:
            return self._clients[kind](request)
        may_wait, is_none = "publish_time" in kind, kind in NO_MESSAGE
        return Drawn(kind, "", lambda send, topic: ODD[kind](send, topic, request), may_wait, is_none)

    def _is(self, share: float) -> bool:
        return self._chance.random() < share

    def _payload(self, request: bytes) -> bytes:
        """Return mostly the request; else an empty payload, odd JSON or random bytes."""
        if self._is(0.6):
            return request
        return self._chance.choice(
            (
                b"",
                b"null",
                b"[" * 5000,
                b'{"ledgerId":1,"ledgerId":2}',
                b'{"topicName":"' + b"t" * 100_000 + b'"}',
                request[: len(request) // 2],
                request + b"\x00",
                self._chance.randbytes(self._chance.choice((1, 100, 70_000))),
                self._chance.randbytes(MIB) * (4 if self._is(0.2) else 1),
            )
        )

    def _properties(self) -> dict[str, str]:
        properties = {self._chance.choice(TEXTS): self._chance.choice(TEXTS) for _ in range(self._chance.randrange(3))}
        for name in self._chance.sample(sorted(OURS), self._chance.randrange(4)):
            properties[name] = self._chance.choice(OURS[name])
        return properties

    def _some(self, options: Mapping[str, tuple[float, Callable[[], Any]]]) -> dict[str, Any]:
        """Draw each option with its probability."""
        return {name: draw() for name, (share, draw) in options.items() if self._is(share)}

    def _python(self, request: bytes) -> Drawn:
        choice = self._chance.choice
        producer = self._some(
            {
                "compression_type": (
                    0.4,
                    lambda: getattr(pulsar.CompressionType, choice(("LZ4", "ZLib", "ZSTD", "SNAPPY"))),
                )
            }
        )
        options = self._some(
            {
                "properties": (0.5, self._properties),
                "partition_key": (0.3, lambda: choice(TEXTS)),
                "ordering_key": (0.2, lambda: choice(TEXTS)),
                "event_timestamp": (0.2, lambda: choice(UNSIGNED)),
                "sequence_id": (0.2, lambda: choice(UNSIGNED)),
                "deliver_after": (0.2, lambda: timedelta(milliseconds=choice((0, 1, 1000, 10**12)))),
            }
        )
        count, payload = 1, self._payload(request)
        if self._is(0.4):
            count = self._chance.randrange(1, 6)
            producer |= {
                "batching_enabled": True,
                "batching_max_messages": count,
                "batching_max_publish_delay_ms": 1000,
            }
        elif self._is(0.1):
            producer["chunking_enabled"] = True
            payload = self._chance.randbytes(MIB) * 6

        def publish(send: Senders, topic: str) -> None:
            send.by_python(topic, [payload] * count, producer, **options)

        return Drawn("python", _description(payload, count, producer | options), publish)

    def _java(self, request: bytes) -> Drawn:
        choice, randbytes = self._chance.choice, self._chance.randbytes
        payload: bytes | None = self._payload(request)
        producer = self._some(
            {
                "compression": (0.4, lambda: choice(COMPRESSIONS)),
                "encryption": (0.2, lambda: True),
                "schema": (0.15, lambda: choice(SCHEMAS)),
            }
        )
        options = self._some(
            {
                "properties": (0.4, self._properties),
                "orderingKey": (0.2, lambda: randbytes(5)),
                "eventTime": (0.2, lambda: choice(LONGS)),
                "sequenceId": (0.2, lambda: choice(LONGS)),
                "deliverAfterMs": (0.2, lambda: choice((0, 1000, 10**12))),
            }
        )
        options |= choice(({}, {}, {"key": "a key"}, {"keyBytes": randbytes(9)}))
        transaction = self._transaction()
        count = 1
        if self._is(0.4):
            producer["batching"] = count = self._chance.randrange(2, 6)
        elif self._is(0.2):
            producer["chunkBytes"] = max(1, len(payload or b"") // 3)
        if "schema" in producer:
            payload = request
        elif self._is(0.1):
            payload = None

        def publish(send: Senders, topic: str) -> None:
            messages = [message(payload, **options) for _ in range(count)]
            send.java.send(topic, *messages, producer=producer, transaction=transaction)

        return Drawn("java", _description(payload, count, producer | options | {"transaction": transaction}), publish)

    def _transaction(self) -> dict[str, Any] | None:
        if not (self._transactions and self._is(0.3)):
            return None
        return {"end": self._chance.choice(("commit", "abort", "open")), "timeoutMs": 20_000}

    def _fields(self, most: int) -> dict[str, Value]:
        fields: dict[str, Value] = {}
        for name in self._chance.sample(
            (*_NUMBERS, *_BYTES, "properties", "encryption_keys"), self._chance.randrange(most)
        ):
            if name in _NUMBERS:
                fields[name] = self._chance.choice(LONGS)
            elif name in _BYTES:
                fields[name] = self._chance.choice(
                    (*(text.encode() for text in TEXTS), b"\xff\xfe", self._chance.randbytes(12))
                )
            else:
                pairs = [(self._chance.choice((*TEXTS, *OURS)), self._chance.choice(TEXTS)) for _ in range(2)]
                fields[name] = [key_value(*pair) for pair in pairs]
        return fields

    def _command(self) -> dict[str, Value]:
        """Fields of CommandSend, which the broker itself reads."""
        if self._is(0.85):
            return {}
        names = ("num_messages", "highest_sequence_id", "is_chunk", "marker")
        return {name: self._chance.choice((0, 1, 5)) for name in self._chance.sample(names, 2)}

    def _raw(self, request: bytes) -> Drawn:
        fields: dict[str, Any] = self._fields(5)
        command, payload = self._command(), self._payload(request)

        def publish(send: Senders, topic: str) -> None:
            send.raw.send(topic, payload, command, **fields)

        description = _description(payload, 1, fields | {"command": str(command)})
        return Drawn("raw", description, publish, "publish_time" in fields, "marker_type" in fields)

    def _raw_batch(self, request: bytes) -> Drawn:
        count = self._chance.randrange(1, 5)
        batch = b""
        singles: list[Mapping[str, Value]] = []
        for _ in range(count):
            names = self._chance.sample(_SINGLE_NUMBERS, self._chance.randrange(3))
            single_fields: dict[str, Value] = {name: self._chance.choice(LONGS) for name in names}
            if self._is(0.3):
                single_fields["properties"] = [key_value(*pair) for pair in self._properties().items()]
            batch += single(self._payload(request) if self._is(0.3) else request, **single_fields)
            singles.append(single_fields)
        if self._is(0.2):
            batch = batch[: self._chance.randrange(len(batch))]
        fields: dict[str, Any] = self._fields(3)
        fields["num_messages_in_batch"] = (
            count if self._is(0.6) else self._chance.choice((count + 1, count - 1, *LONGS))
        )

        def publish(send: Senders, topic: str) -> None:
            send.raw.send(topic, batch, None, **fields)

        description = _description(batch, count, fields | {"singles": str(singles)})
        is_none = "marker_type" in fields or any("compacted_out" in single_fields for single_fields in singles)
        return Drawn("raw batch", description, publish, "publish_time" in fields, is_none)

    def _raw_bytes(self, request: bytes) -> Drawn:
        """Draw valid metadata, and change, remove or insert some of its bytes."""
        fields = {"producer_name": "raw", "sequence_id": 1, "publish_time": 1_700_000_000_000, **self._fields(4)}
        written = bytearray(metadata(**fields))
        for _ in range(self._chance.randrange(1, 4)):
            at = self._chance.randrange(len(written) or 1)
            match self._chance.randrange(3):
                case 0 if written:
                    written[at % len(written)] ^= 1 << self._chance.randrange(8)
                case 1:
                    del written[at : at + self._chance.randrange(5)]
                case _:
                    written[at:at] = self._chance.randbytes(self._chance.randrange(5))
        changed = bytes(written)

        def publish(send: Senders, topic: str) -> None:
            send.raw.send_bytes(topic, changed, request)

        return Drawn("raw bytes", changed.hex()[:400], publish, may_wait=True, may_be_none=True)


def _description(payload: bytes | None, count: int, options: Mapping[str, Any]) -> str:
    size = "null" if payload is None else f"{len(payload)} bytes"
    return f"{count} x {size}, { ({name: _short(value) for name, value in options.items() if value}) }"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}\u2026"
