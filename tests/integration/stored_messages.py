"""Every message that lies in a partition, read once and without Pulsar's client, which some of them would end."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.span_reader import SpanEntry, read_spans
from streaming.clients import admin_for
from streaming.config.settings import Settings
from udfs.entry_ranges import EntrySpan, MessageAddress, Range, spans_of
from udfs.formats.entry import MAX_UNCOMPRESSED_BYTES
from udfs.formats.entry_answer import entry_of
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.retry import COPY_ID
from udfs.undelivered import UndeliveredMessage, found_in, found_in_bytes

_EVERYTHING = (1 << 62, 1 << 62)
_PATIENCE_S = 4.0
_AT_ONCE = 8

Entry = tuple[str, int, int]
"""A partition, and where in it the entry lies: ledger, entry."""


@dataclass
class StoredMessages:
    """What was read so far: of each message its place, and of which effect it is a copy (None: of none).

    Each entry is read once, by the service's own decoder but without the patience that the service has for many entries
    together: each that the broker sends to nobody is asked for by its position. untold: the broker gave no answer.
    """

    settings: Settings
    found: dict[MessageAddress, str | None] = field(default_factory=dict)
    untold: set[Entry] = field(default_factory=set)
    _upto: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, partitions: list[str]) -> dict[MessageAddress, str | None]:
        """Return the messages of these partitions, with those that came since they were read last."""
        with admin_for(self.settings) as admin:
            for partition in partitions:
                self._read_on(admin, partition)
        wanted = set(partitions)
        return {place: copy for place, copy in self.found.items() if place[0] in wanted}

    def ask_again(self, entries: set[Entry]) -> None:
        """Ask once more for those of the entries of which the broker told nothing."""
        with admin_for(self.settings) as admin:
            for partition, *position in sorted(entries & self.untold):
                self._keep(admin, partition, SpanEntry((position[0], position[1]), None))

    def told_of(self, place: MessageAddress) -> str:
        """Say what is known of a place's entry: the messages that we found in it, and what the broker tells of it."""
        entry = place[:3]
        found = sorted(each[3] for each in self.found if each[:3] == entry)
        with admin_for(self.settings) as admin:
            answer = admin.entry(place[0], (place[1], place[2]), MAX_UNCOMPRESSED_BYTES, _PATIENCE_S)
        return f"\n{place}: read as {found}, read up to {self._upto.get(place[0])}; the broker says {answer!r:.4000}"

    def _read_on(self, admin: PulsarAdmin, partition: str) -> None:
        ledgers = admin.internal_stats(partition).ledgers
        spans = list(spans_of(ledgers, Range(self._upto.get(partition, BEFORE_ALL), _EVERYTHING)))
        if not spans:
            return
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            read = [threads.submit(self._keep, admin, partition, sent) for sent in self._sent(partition, spans)]
        for each in read:
            each.result()
        self._upto[partition] = (spans[-1].ledger, spans[-1].last)

    def _sent(self, partition: str, spans: list[EntrySpan]) -> Iterator[SpanEntry]:
        return read_spans(self.settings.pulsar, partition, spans)

    def _keep(self, admin: PulsarAdmin, partition: str, sent: SpanEntry) -> None:
        entry = (partition, *sent.position)
        messages = self._messages(admin, partition, sent)
        if messages is None:
            self.untold.add(entry)
            return
        self.untold.discard(entry)
        self.found |= {(*entry, each.batch_index): _copy_id(each) for each in messages}

    def _messages(self, admin: PulsarAdmin, partition: str, sent: SpanEntry) -> list[UndeliveredMessage] | None:
        if sent.data is not None:
            return list(found_in_bytes(sent.data))
        answer = admin.entry(partition, sent.position, MAX_UNCOMPRESSED_BYTES, _PATIENCE_S)
        if answer is None or answer.status != HTTPStatus.OK or not answer.is_whole:
            return None
        entry, standing = entry_of(answer.headers, answer.data)
        return list(found_in(entry, standing))


def _copy_id(found: UndeliveredMessage) -> str | None:
    written = found.content.properties.get(COPY_ID, "")
    return written if re.fullmatch(r"[0-9a-f-]{36}/\d+", written) else None
