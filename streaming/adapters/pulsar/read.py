"""Reading a topic from a position to what was its end, without a subscription of ours: nothing is acknowledged.

We read Pulsar's frames ourselves (frames.py, entries.py): a message that somebody wrote to do so can end a process that
reads it with pulsar-client, or take gigabytes there (docs/findings.md).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from streaming.adapters.pulsar.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.entries import fallback_entries
from streaming.adapters.pulsar.frames import Connection, opened
from streaming.config.sections import PulsarSettings
from streaming.ports import StoredMessage
from udfs.entry_ranges import EntrySpan, Range, spans_of, without
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.undelivered import UndeliveredMessage

_CHECK_SECONDS = 10
_LONGEST_NUMBER = 19  # digits of a 63-bit number; int() raises an error for thousands of them
_BEHIND_ALL: Position = ((1 << 63) - 1, (1 << 63) - 1)


class PulsarReader:
    """MessageReader over Pulsar's binary protocol; each call connects for itself."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings

    def read(
        self, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
    ) -> Iterator[StoredMessage]:
        """Read each partition in `last` up to that position, as the port says. Raises UnavailableError."""
        return read(self._settings, last, after=after)

    def read_entries(self, partition: str, spans: Sequence[EntrySpan]) -> Iterator[StoredMessage]:
        """Read these entries, as the port says. Raises UnavailableError, RefusedError."""
        with PulsarAdmin(PulsarAdminSettings.of(self._settings)) as admin:
            whole = [EntrySpan(ledger, 0, entries - 1) for ledger, entries in admin.internal_stats(partition).ledgers]
            stored = list(without(spans, without(spans, whole)))
            if stored:
                yield from _read(self._settings, admin, partition, stored)


def read(
    settings: PulsarSettings, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
) -> Iterator[StoredMessage]:
    """Read each partition in `last` up to that position, inclusive; `after`: begin behind it, else at the earliest.

    What was trimmed is passed over. What is no message of a client's (a marker) is not told; a message that the
    connector would not deliver is, with the bytes that there are. Raises UnavailableError, RefusedError.
    """
    with PulsarAdmin(PulsarAdminSettings.of(settings)) as admin:
        for partition, end in last.items():
            wanted = Range((after or {}).get(partition, BEFORE_ALL), end)
            if end[1] >= 0 and not wanted.is_empty:
                spans = list(spans_of(admin.internal_stats(partition).ledgers, wanted))
                yield from _read(settings, admin, partition, spans)


def numbered(messages: Iterable[StoredMessage], name: str, of: str) -> Iterator[tuple[int, StoredMessage]]:
    """Of messages that carry `<of>/<number>` in the property of that name, the number and the message."""
    for message in messages:
        what, _, number = message.properties.get(name, "").rpartition("/")
        if what == of and number.isdecimal() and len(number) <= _LONGEST_NUMBER:
            yield int(number), message


def check_service(settings: PulsarSettings, partition: str) -> None:
    """Return when a reader can be opened on the partition. Raises UnavailableError, RefusedError."""
    patient = settings.model_copy(update={"timeout_seconds": min(settings.timeout_seconds, _CHECK_SECONDS)})
    with opened(patient, partition, _BEHIND_ALL):
        pass


def check_connection(settings: PulsarSettings) -> None:
    """Return when a host of service_url takes a connection and our credentials; no topic is needed or created.

    Raises UnavailableError, RefusedError.
    """
    patient = settings.model_copy(update={"timeout_seconds": min(settings.timeout_seconds, _CHECK_SECONDS)})
    with Connection(patient, settings.service_url):
        pass


def _read(
    settings: PulsarSettings, admin: PulsarAdmin, partition: str, spans: Sequence[EntrySpan]
) -> Iterator[StoredMessage]:
    for position, found in fallback_entries(settings, admin, partition, spans):
        yield _stored(partition, position, found)


def _stored(partition: str, position: Position, found: UndeliveredMessage) -> StoredMessage:
    content = found.content
    key = (content.key or b"").decode("utf-8", "replace")
    ledger_id, entry_id = position
    return StoredMessage(
        partition=partition,
        ledger_id=ledger_id,
        entry_id=entry_id,
        batch_index=found.batch_index,
        publish_ms=found.publish_ms,
        key=key,
        payload=content.payload,
        properties=content.properties,
    )
