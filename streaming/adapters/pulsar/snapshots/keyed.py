"""Produces keyed messages to compacted topics to which brokers produce as well."""

from contextlib import suppress
from types import TracebackType
from typing import Self

import pulsar

from streaming.adapters.pulsar.publish import new_client
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.formats.internal_stats import Position


class KeyedSender:
    """Produces to a topic. A context manager, for one thread."""

    def __init__(self, settings: PulsarSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._tombstones: pulsar.Producer | None = None

    def __enter__(self) -> Self:
        """Connect. Raises UnavailableError."""
        self._client = new_client(self._settings)
        try:
            # uncompressed: a broker uses the bytes at a segment's position as the value, without decompressing them
            # (seen on Pulsar 4.0.8: the topic did not load)
            self._values = self._producer(pulsar.CompressionType.NONE)
        except UnavailableError:
            self._close()
            raise
        return self

    def send(self, key: str, value: bytes | None) -> Position:
        """Send a message, or a tombstone (None), and return its position once the bookies have stored it.

        Raises UnavailableError; then the message may be stored or not.
        """
        producer = self._values if value is not None else self._tombstone_producer()
        try:
            stored = producer.send(value, partition_key=key)
        except pulsar.PulsarException as error:
            raise UnavailableError(f"{self._topic} did not acknowledge a message: {error}") from error
        return stored.ledger_id(), stored.entry_id()

    def _tombstone_producer(self) -> pulsar.Producer:
        if self._tombstones is None:
            # this client does not mark an uncompressed tombstone as empty, so compaction would keep it forever (seen on
            # Pulsar 4.0.8 with pulsar-client 3.13)
            self._tombstones = self._producer(pulsar.CompressionType.LZ4)
        return self._tombstones

    def _producer(self, compression: pulsar.CompressionType) -> pulsar.Producer:
        try:
            # Access mode Shared (the default): other modes disconnect the broker's producer from a system topic, or
            # wait for it forever. No schema: brokers accept any schema on a system topic, and treat it as the latest.
            return self._client.create_producer(
                self._topic,
                # an index names a segment only by its entry, so each entry has one message
                batching_enabled=False,
                compression_type=compression,
                send_timeout_millis=self._settings.timeout_seconds * 1000,
            )
        except pulsar.PulsarException as error:
            raise UnavailableError(f"{self._topic} accepts no producer: {error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect."""
        self._close()

    def _close(self) -> None:
        with suppress(pulsar.PulsarException):
            self._client.close()
