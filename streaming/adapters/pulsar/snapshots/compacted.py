"""Reads compacted topics: the latest message of each key, and all messages after the compaction horizon.

A broker does not report where a compacted reader ends: the topic's last message may be a tombstone that compaction has
removed. So the entries are counted: the compacted ledger has a known number of entries, and after its horizon the
topic's own entries follow up to the last. A broker sends a reader no markers and no entries whose metadata it can't
parse; if such entries follow the last entry that the reader got, they are requested by position (readers/entries.py).
If any entry is still missing, the read fails with an UnavailableError and never ends early.
"""

from collections.abc import Iterator
from contextlib import suppress

from streaming.adapters.pulsar.readers.control_entries import EntryAdmin
from streaming.adapters.pulsar.readers.entries import fallback_entries
from streaming.adapters.pulsar.readers.frames import ReceiveTimeout, opened
from streaming.adapters.pulsar.readers.span_reader import read_spans
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.entry_ranges import Range, spans_of
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.undelivered import NotShown, UndeliveredMessage, found_in_bytes, not_shown

_TIMEOUT_SECONDS = 10.0


def read_compacted(
    settings: PulsarSettings, admin: EntryAdmin, topic: str
) -> Iterator[tuple[Position, UndeliveredMessage]]:
    """Yield a compacted topic's messages as a compacted reader gets them; one entry is in memory at a time.

    If a key occurs several times, its last message counts. A message without a value is a tombstone. Raises
    UnavailableError if messages are missing, for example because a compaction ended during the read; the messages
    yielded by then are incomplete.
    """
    stats = admin.internal_stats(topic)
    left = _Left(stats)
    if left.is_nothing:
        return
    # without pulsar-client here too: tenants may publish to a system topic, and some messages end a process that reads
    # them with pulsar-client (docs/findings.md)
    with opened(settings, topic, BEFORE_ALL, compacted=True) as reader, suppress(ReceiveTimeout):
        while not left.is_nothing and not left.is_unsent(reader.last):
            position, data = reader.next(_TIMEOUT_SECONDS)
            left.take(position)
            for message in found_in_bytes(data):
                yield position, message
    if left.is_nothing:
        return
    if left.compacted > 0:
        raise UnavailableError(f"{topic}: the broker sends nothing more, and these are missing: {left}")
    # a broker sends a reader no markers and no entries whose metadata it can't parse
    yield from fallback_entries(settings, admin, topic, list(spans_of(stats.ledgers, Range(left.position, stats.last))))
    after = admin.internal_stats(topic)
    if (after.compacted, after.horizon) != (stats.compacted, stats.horizon):
        raise UnavailableError(f"{topic} was compacted during the read, so its end is unknown: read it again")


def read_stored(
    settings: PulsarSettings, admin: EntryAdmin, topic: str, after: Position = BEFORE_ALL
) -> Iterator[tuple[Position, UndeliveredMessage]]:
    """Yield the messages after a position in a topic's own ledgers, with the positions at which a broker reads them.

    An entry that the broker sends to no reader is yielded as not shown. Raises UnavailableError, RefusedError.
    """
    stats = admin.internal_stats(topic)
    if stats.last[1] < 0 or stats.last <= after:
        return
    for entry in read_spans(settings, topic, list(spans_of(stats.ledgers, Range(after, stats.last)))):
        if entry.data is None:
            yield entry.position, not_shown(NotShown("the broker sends it to no reader"))
            continue
        for message in found_in_bytes(entry.data):
            yield entry.position, message


class _Left:
    """The entries that a compacted reader has not received yet."""

    def __init__(self, stats: InternalStats) -> None:
        self.position = self._horizon = stats.horizon  # of the last entry after the horizon that the reader received
        self.compacted = stats.compacted[1]  # entries left in the compacted ledger
        self._last = stats.last
        self._waits_for_last = stats.entries_after(stats.horizon) > 0

    @property
    def is_nothing(self) -> bool:
        return self.compacted <= 0 and not self._waits_for_last

    def is_unsent(self, last: Position | None) -> bool:
        """Whether the broker sends none of the entries left to a reader, given the last entry that it would send."""
        return self.compacted <= 0 and last is not None and last <= self.position

    def take(self, position: Position) -> None:
        if position <= self._horizon:
            self.compacted -= 1
        else:
            self.position = position
            # the compacted ledger is sent first; a compaction that ended during the read may have shortened it
            self.compacted = 0
            self._waits_for_last &= position < self._last

    def __str__(self) -> str:
        after = f", and the entries after it up to {self._last[0]}:{self._last[1]}" if self._waits_for_last else ""
        return f"{max(0, self.compacted)} entries of the compacted ledger{after}"
