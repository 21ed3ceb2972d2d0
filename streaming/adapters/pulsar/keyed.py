"""A producer of single keyed messages for compacted topics, beside the brokers' own producers there.

1. It is `Shared`: another access mode throws the broker's producer out of a system topic, or waits for it for ever.
2. It has no schema, so that it registers none: brokers accept any schema on a system topic, and take it for the latest.
3. It compresses with LZ4: of a tombstone without compression this client does not say that it is empty, so compaction
   keeps it for ever (seen on Pulsar 4.0.8 with pulsar-client 3.13).
4. It sends one message an entry, since an index names a segment by its entry alone.
"""

from contextlib import suppress
from types import TracebackType
from typing import Self

import pulsar

from streaming.adapters.pulsar.publish import new_client
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.formats.internal_stats import Position


class KeyedSender:
    """One topic's producer. A context manager, for one thread."""

    def __init__(self, settings: PulsarSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic

    def __enter__(self) -> Self:
        """Connect. Raises UnavailableError."""
        self._client = new_client(self._settings)
        try:
            self._producer = self._client.create_producer(
                self._topic,
                batching_enabled=False,
                compression_type=pulsar.CompressionType.LZ4,
                send_timeout_millis=self._settings.timeout_seconds * 1000,
            )
        except pulsar.PulsarException as error:
            self._close()
            raise UnavailableError(f"{self._topic} takes no producer: {error}") from error
        return self

    def send(self, key: str, value: bytes | None) -> Position:
        """Send a message, or a tombstone (None), and return its place once the bookies have it.

        Raises UnavailableError: it may be stored or not.
        """
        try:
            stored = self._producer.send(value, partition_key=key)
        except pulsar.PulsarException as error:
            raise UnavailableError(f"{self._topic} did not acknowledge a message: {error}") from error
        return stored.ledger_id(), stored.entry_id()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect."""
        self._close()

    def _close(self) -> None:
        with suppress(pulsar.PulsarException):
            self._client.close()
