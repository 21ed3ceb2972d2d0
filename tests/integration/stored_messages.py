"""Reads every message of a partition once, without Pulsar's client: some messages would crash that client."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.readers.span_reader import SpanEntry, read_spans
from streaming.clients import admin_for
from streaming.config.settings import Settings
from udfs.entry_ranges import EntrySpan, MessageAddress, Range, spans_of
from udfs.formats.entry import MAX_UNCOMPRESSED_BYTES
from udfs.formats.entry_answer import entry_of
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.requests.retry import COPY_ID
from udfs.undelivered import UndeliveredMessage, found_in, found_in_bytes

_EVERYTHING = (1 << 62, 1 << 62)
_PATIENCE_S = 4.0
_AT_ONCE = 8

Entry = tuple[str, int, int]
"""Partition, ledger and entry id."""


@dataclass
class StoredMessages:
    """The messages that were read so far.

    The service's own decoder reads each entry once. Unlike the service, which waits for many entries together, this
    class asks for each entry that the broker does not send by its position.
    """

    settings: Settings
    copies: dict[MessageAddress, str | None] = field(default_factory=dict)  # the copy id of a message, if any
    unread: set[Entry] = field(default_factory=set)  # the broker gave no answer
    _upto: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, partitions: list[str]) -> dict[MessageAddress, str | None]:
        """Read what is new in these partitions; return all their messages."""
        with admin_for(self.settings) as admin:
            for partition in partitions:
                self._read_new(admin, partition)
        chosen = set(partitions)
        return {address: copy for address, copy in self.copies.items() if address[0] in chosen}

    def read_again(self, entries: set[Entry]) -> None:
        """Ask once more for those of the entries that the broker did not show."""
        with admin_for(self.settings) as admin:
            for partition, *position in sorted(entries & self.unread):
                self._keep(admin, partition, SpanEntry((position[0], position[1]), None))

    def describe(self, address: MessageAddress) -> str:
        """Describe a message's entry: the batch indexes that were read from it, and the broker's answer."""
        partition, ledger, entry, _index = address
        indexes = sorted(other[3] for other in self.copies if other[:3] == address[:3])
        with admin_for(self.settings) as admin:
            answer = admin.entry(partition, (ledger, entry), MAX_UNCOMPRESSED_BYTES, _PATIENCE_S)
        return f"\n{address}: read as {indexes}, read up to {self._upto.get(partition)}; the broker: {answer!r:.4000}"

    def _read_new(self, admin: PulsarAdmin, partition: str) -> None:
        ledgers = admin.internal_stats(partition).ledgers
        spans = list(spans_of(ledgers, Range(self._upto.get(partition, BEFORE_ALL), _EVERYTHING)))
        if not spans:
            return
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            reads = [threads.submit(self._keep, admin, partition, sent) for sent in self._sent(partition, spans)]
        for read in reads:
            read.result()
        self._upto[partition] = (spans[-1].ledger, spans[-1].last)

    def _sent(self, partition: str, spans: list[EntrySpan]) -> Iterator[SpanEntry]:
        return read_spans(self.settings.pulsar, partition, spans)

    def _keep(self, admin: PulsarAdmin, partition: str, sent: SpanEntry) -> None:
        entry = (partition, *sent.position)
        messages = self._messages(admin, partition, sent)
        if messages is None:
            self.unread.add(entry)
            return
        self.unread.discard(entry)
        self.copies |= {(*entry, message.batch_index): _copy_id(message) for message in messages}

    def _messages(self, admin: PulsarAdmin, partition: str, sent: SpanEntry) -> list[UndeliveredMessage] | None:
        if sent.data is not None:
            return list(found_in_bytes(sent.data))
        answer = admin.entry(partition, sent.position, MAX_UNCOMPRESSED_BYTES, _PATIENCE_S)
        if answer is None or answer.status != HTTPStatus.OK or not answer.is_whole:
            return None
        entry, standing = entry_of(answer.headers, answer.data)
        return list(found_in(entry, standing))


def _copy_id(message: UndeliveredMessage) -> str | None:
    copy_id = message.content.properties.get(COPY_ID, "")
    return copy_id if re.fullmatch(r"[0-9a-f-]{36}/\d+", copy_id) else None
