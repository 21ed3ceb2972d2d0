"""The calls of Pulsar with which the Spark source plans batches and acknowledges them."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.doorbell.doorbell import Doorbell
from streaming.adapters.pulsar.readers.frames import opened
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError
from udfs.formats.entry import Weight
from udfs.formats.internal_stats import InternalStats, Position


class Scout(Protocol):
    """Reads entries to count them (readers.frames.FrameReader)."""

    last: Position | None  # of the entries that the broker sends to readers; None: the broker does not report it

    def next_weight(self, timeout_seconds: float) -> tuple[Position, Weight]:
        """Return the next entry's position and weight. Raises ReceiveTimeout, UnavailableError."""
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

    def acknowledge(self, partition: str, upto: Position) -> None:
        """Acknowledge every message of the subscription up to this entry, soon; no effect if it is past it.

        It is done later if the partition's broker does not answer, or if another consumer uses the subscription.
        """
        ...

    def listen(self, partition: str, after: Position) -> None:
        """Have a partition ring when a reader gets an entry after this position; it may also ring without one."""
        ...

    def rung(self, timeout_seconds: float) -> Collection[str]:
        """Wait until a partition rings; return those that have rung since the last call. Each needs listen() again."""
        ...

    def not_listening(self) -> Collection[str]:
        """Return the partitions that may get entries without ringing, of those that were given to listen()."""
        ...

    def faults(self, seconds: float) -> Mapping[str, str]:
        """Return by partition why it has neither been acknowledged nor listened to for this long, though asked to."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class PulsarSourceBroker:
    """SourceBroker over the admin API and Pulsar's binary protocol. subscription: "": none."""

    def __init__(self, settings: PulsarSettings, subscription: str) -> None:
        self._settings = settings
        self._doorbell = Doorbell(settings, subscription)
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

    def acknowledge(self, partition: str, upto: Position) -> None:
        """Acknowledge every message of the subscription up to this entry, soon."""
        self._doorbell.acknowledge(partition, upto)

    def listen(self, partition: str, after: Position) -> None:
        """Have a partition ring when a reader gets an entry after this position."""
        self._doorbell.listen(partition, after)

    def rung(self, timeout_seconds: float) -> Collection[str]:
        """Wait until a partition rings; return those that have rung since the last call."""
        return self._doorbell.rung(timeout_seconds)

    def not_listening(self) -> Collection[str]:
        """Return the partitions that may get entries without ringing."""
        return {*self._doorbell.not_listening}

    def faults(self, seconds: float) -> Mapping[str, str]:
        """Return by partition why it has neither been acknowledged nor listened to for this long, though asked to."""
        until_s = time.monotonic() - seconds
        return {partition: fault.why for partition, fault in self._doorbell.faults.items() if fault.since_s <= until_s}

    def close(self) -> None:
        """Close all connections."""
        self._doorbell.close()
        self._admin.close()
