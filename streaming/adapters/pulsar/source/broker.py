"""The calls of Pulsar with which the Spark source plans batches and acknowledges them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.readers.frames import (
    ACK,
    SUBSCRIBE,
    SUCCESS,
    Connection,
    last_of,
    message_id,
    opened,
    owner_of,
)
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError
from udfs.formats.internal_stats import InternalStats, Position
from udfs.proto import pulsar_api_pb2 as api

_CONSUMER = 1
_EXCLUSIVE, _CUMULATIVE, _EARLIEST = 0, 1, 1


class Scout(Protocol):
    """Reads entries to count them (readers.frames.FrameReader)."""

    last: Position | None  # of the entries that the broker sends to readers; None: the broker does not report it

    def next(self, timeout_seconds: float) -> tuple[Position, bytes]:
        """Return the next entry. Raises ReceiveTimeout, UnavailableError."""
        ...


class SourceBroker(Protocol):
    """The calls to Pulsar that the source needs. Thread-safe; every method raises UnavailableError, RefusedError."""

    def partitions(self, topic: str) -> list[str]:
        """Return the full names of a topic's partitions, or the name of a topic without partitions; [] if none."""
        ...

    def stats(self, partition: str) -> InternalStats | None:
        """Return the partition's ledgers and cursors; None if it does not exist."""
        ...

    def ensure_subscription(self, partition: str, subscription: str) -> None:
        """Create the durable subscription at the earliest entry, unless it exists."""
        ...

    def scout(self, partition: str, after: Position) -> AbstractContextManager[Scout]:
        """Open a reader of the entries after a position; it holds back no ledger.

        Brokers send the entry at the position first.
        """
        ...

    def acknowledge(self, partition: str, subscription: str, upto: Position) -> None:
        """Acknowledge every message up to this entry; no effect if the subscription is past it.

        Raises UnavailableError also if another consumer uses the subscription.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class PulsarSourceBroker:
    """SourceBroker over the admin API and Pulsar's binary protocol."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings
        self._admin = PulsarAdmin(PulsarAdminSettings.of(settings))

    def partitions(self, topic: str) -> list[str]:
        """Return the full names of a topic's partitions, or the name of a topic without partitions; [] if none."""
        count = self._admin.partitions(topic)
        if count is None:
            return []
        return [f"{topic}-partition-{number}" for number in range(count)] or [topic]

    def stats(self, partition: str) -> InternalStats | None:
        """Return the partition's ledgers and cursors; None if it does not exist."""
        try:
            return self._admin.internal_stats(partition)
        except RefusedError:
            if self._admin.partitions(partition) is None:
                return None
            raise

    def ensure_subscription(self, partition: str, subscription: str) -> None:
        """Create the durable subscription at the earliest entry, unless it exists."""
        self._admin.ensure_subscription(partition, subscription)

    @contextmanager
    def scout(self, partition: str, after: Position) -> Iterator[Scout]:
        """Open a reader of the entries after a position; it holds back no ledger."""
        with opened(self._settings, partition, after, creates=False) as reader:
            yield reader

    def acknowledge(self, partition: str, subscription: str, upto: Position) -> None:
        """Acknowledge every message up to this entry; no effect if the subscription is past it."""
        url, proxied_to = owner_of(self._settings, partition)
        with Connection(self._settings, url, proxied_to) as connection:
            subscribe = api.CommandSubscribe(
                topic=partition,
                subscription=subscription,
                sub_type=_EXCLUSIVE,
                consumer_id=_CONSUMER,
                request_id=connection.next_request(),
                durable=True,
                # if the subscription was deleted, what is left of the topic is kept for it
                initial_position=_EARLIEST,
                force_topic_creation=False,
            )
            connection.ask(api.BaseCommand(type=SUBSCRIBE, subscribe=subscribe), SUCCESS)
            ack = api.CommandAck(consumer_id=_CONSUMER, ack_type=_CUMULATIVE, message_id=[message_id(upto)])
            connection.send(api.BaseCommand(type=ACK, ack=ack))
            # brokers process a connection's commands in order, so the acknowledgement was received before this answer
            last_of(connection)

    def close(self) -> None:
        """Close all connections."""
        self._admin.close()
