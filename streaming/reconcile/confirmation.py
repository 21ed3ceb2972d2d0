"""Reads entries that seem to be missing, because an entry may contain a broker's marker and no message."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from streaming.ports import MessageReader
from streaming.reconcile.markers import Markers
from streaming.reconcile.positions import Accounted
from udfs.entry_ranges import EntrySpan, joined, without
from udfs.formats.internal_stats import Position


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Finds the gaps among entries that seem to be missing, and adds the entries that are no gaps to the markers."""

    reader: MessageReader
    markers: Markers
    oldest_ms: int  # receipts are kept from this time on; an older message is no gap

    def gaps(
        self, partition: str, missing: Iterable[Position], accounted: Accounted, stored: Mapping[int, int]
    ) -> list[Position]:
        """Return the entries that contain a message that is not accounted for.

        Args:
            partition: the partition's name.
            missing: entries that a query has read and that seem not to be accounted for.
            accounted: messages with receipts or waiting retries.
            stored: ledger -> number of its entries, for all ledgers of the partition now.
        """
        to_read = (EntrySpan(ledger, entry, entry) for ledger, entry in missing)
        spans = list(without(to_read, self.markers.of(partition)))
        if not spans:
            return []
        candidates = {(span.ledger, entry) for span in spans for entry in range(span.first, span.last + 1)}
        messages = accounted.messages({span.ledger for span in spans})
        gaps: list[Position] = []
        published_ms = 0
        # Only these entries are read, because a broker may take seconds to answer for some of the others. We also read
        # the entry before each: a message without a publish time counts as old as the message before it.
        for message in self.reader.read_entries(partition, _with_predecessors(spans, stored)):
            position = (message.ledger_id, message.entry_id)
            is_accounted = (*position, message.batch_index) in messages
            published_ms = message.publish_ms or published_ms
            if position in candidates and not is_accounted and published_ms >= self.oldest_ms:
                candidates.discard(position)
                if self._has_other_message(partition, position, messages):
                    gaps.append(position)
        self.markers.keep(partition, without(spans, (EntrySpan(*gap, gap[1]) for gap in gaps)), stored)
        return gaps

    def _has_other_message(self, partition: str, position: Position, messages: Container[tuple[int, int, int]]) -> bool:
        """Whether an entry, read by itself, contains a message that is not among `messages`."""
        # If the broker sends many entries to no reader, read_entries requests only a few of them from the admin API,
        # and takes each of the others for a message, even if it is a marker (adapters.pulsar.readers.admin_entries).
        # So we read each by itself.
        in_entry = self.reader.read_entries(partition, [EntrySpan(*position, position[1])])
        return any((*position, message.batch_index) not in messages for message in in_entry)


def _with_predecessors(spans: Iterable[EntrySpan], stored: Mapping[int, int]) -> list[EntrySpan]:
    """Add the entry before each span, which may be the last entry of the ledger before it."""
    filled = sorted(ledger for ledger, entries in stored.items() if entries)
    last_before = {
        ledger: EntrySpan(previous, stored[previous] - 1, stored[previous] - 1) for previous, ledger in pairwise(filled)
    }
    wider: list[EntrySpan] = []
    for span in spans:
        wider.append(EntrySpan(span.ledger, max(span.first - 1, 0), span.last))
        if span.first == 0 and span.ledger in last_before:
            wider.append(last_before[span.ledger])
    return joined(wider)
