"""Reads topics up to a given position, without a durable subscription: nothing is acknowledged."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.readers.entries import fallback_entries
from streaming.adapters.pulsar.readers.frames import Connection, opened
from streaming.config.sections import PulsarSettings
from streaming.ports import StoredMessage
from udfs.entry_ranges import EntrySpan, Range, spans_of, without
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.undelivered import UndeliveredMessage

_CHECK_SECONDS = 10
_LONGEST_NUMBER = 19  # digits of a 63-bit number; int() raises an error for thousands of them
_AFTER_ALL: Position = ((1 << 63) - 1, (1 << 63) - 1)


class PulsarReader:
    """MessageReader over Pulsar's binary protocol. Each call opens its own connections."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings

    def read(
        self, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
    ) -> Iterator[StoredMessage]:
        """Read each partition in `last` up to its position there. Raises UnavailableError, RefusedError."""
        return read(self._settings, last, after=after)

    def read_entries(self, partition: str, spans: Sequence[EntrySpan]) -> Iterator[StoredMessage]:
        """Read the entries that are still stored. Raises UnavailableError, RefusedError."""
        with PulsarAdmin(PulsarAdminSettings.of(self._settings)) as admin:
            whole = [EntrySpan(ledger, 0, entries - 1) for ledger, entries in admin.internal_stats(partition).ledgers]
            stored = list(without(spans, without(spans, whole)))
            if stored:
                yield from _read(self._settings, admin, partition, stored)


def read(
    settings: PulsarSettings, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
) -> Iterator[StoredMessage]:
    """Read each partition in `last` up to and including its position there. Raises UnavailableError, RefusedError.

    Trimmed entries are skipped, and so are markers. A message that the connector would not deliver is yielded with the
    bytes that are available.

    Args:
        after: partition -> position to start after; default: the first entry.
    """
    with PulsarAdmin(PulsarAdminSettings.of(settings)) as admin:
        for partition, end in last.items():
            positions = Range((after or {}).get(partition, BEFORE_ALL), end)
            if end[1] >= 0 and not positions.is_empty:
                spans = list(spans_of(admin.internal_stats(partition).ledgers, positions))
                yield from _read(settings, admin, partition, spans)


def numbered(messages: Iterable[StoredMessage], name: str, of: str) -> Iterator[tuple[int, StoredMessage]]:
    """Yield (number, message) for the messages whose property `name` has the value `<of>/<number>`."""
    for message in messages:
        prefix, _, number = message.properties.get(name, "").rpartition("/")
        if prefix == of and number.isdecimal() and len(number) <= _LONGEST_NUMBER:
            yield int(number), message


def check_service(settings: PulsarSettings, partition: str) -> None:
    """Check that a reader can be opened on the partition. Raises UnavailableError, RefusedError."""
    with opened(_for_check(settings), partition, _AFTER_ALL):
        pass


def check_connection(settings: PulsarSettings) -> None:
    """Check that a host of service_url accepts a connection and our credentials; no topic is needed or created.

    Raises UnavailableError, RefusedError.
    """
    with Connection(_for_check(settings), settings.service_url):
        pass


def _for_check(settings: PulsarSettings) -> PulsarSettings:
    return settings.model_copy(update={"timeout_seconds": min(settings.timeout_seconds, _CHECK_SECONDS)})


def _read(
    settings: PulsarSettings, admin: PulsarAdmin, partition: str, spans: Sequence[EntrySpan]
) -> Iterator[StoredMessage]:
    # without pulsar-client: a hostile message can end a process that reads it with pulsar-client, or make the process
    # allocate gigabytes, as docs/findings.md shows
    for position, message in fallback_entries(settings, admin, partition, spans):
        yield _stored(partition, position, message)


def _stored(partition: str, position: Position, message: UndeliveredMessage) -> StoredMessage:
    content = message.content
    key = (content.key or b"").decode("utf-8", "replace")
    ledger_id, entry_id = position
    return StoredMessage(
        partition=partition,
        ledger_id=ledger_id,
        entry_id=entry_id,
        batch_index=message.batch_index,
        publish_ms=message.publish_ms,
        key=key,
        payload=content.payload,
        properties=content.properties,
    )
