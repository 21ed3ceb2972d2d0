"""Compacted topics as the broker sends them: the latest message of each key, and all that came behind the compaction.

We read Pulsar's frames ourselves here too (frames.py): a system topic takes what anybody who may publish to it sends,
and some such messages end a process that reads them with pulsar-client (docs/findings.md).

A broker does not say where a compacted reader's end is: its last message may be a tombstone that compaction has taken
away. So we count: the compacted ledger has so many entries, and after its horizon come the topic's own ones up to the
last. A broker sends no reader a marker, or an entry whose metadata it can't parse: such entries after the last one that
the reader got are asked for by their position (entries.py). A reader that got less than that is an UnavailableError,
never an end.
"""

from collections.abc import Iterator
from contextlib import suppress

from streaming.adapters.pulsar.controls import EntryAdmin
from streaming.adapters.pulsar.entries import fallback_entries, read_spans
from streaming.adapters.pulsar.frames import Silence, opened
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.entry_ranges import Range, spans_of
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.undelivered import NotShown, UndeliveredMessage, found_in_bytes, not_shown

_PATIENCE_SECONDS = 10.0


def read_compacted(
    settings: PulsarSettings, admin: EntryAdmin, topic: str
) -> Iterator[tuple[Position, UndeliveredMessage]]:
    """Yield a compacted topic's messages as a compacted reader gets them; one entry is in memory at a time.

    A key may come several times, then its last message counts. A message without a value is a tombstone. Raises
    UnavailableError where not all could be read, as when a compaction ends meanwhile: what was yielded is not all then.
    """
    stats = admin.internal_stats(topic)
    left = _Left(stats)
    if left.is_nothing:
        return
    with opened(settings, topic, BEFORE_ALL, compacted=True) as reader, suppress(Silence):
        while not left.is_nothing and not left.is_unsent(reader.last):
            position, data = reader.next(_PATIENCE_SECONDS)
            left.take(position)
            for found in found_in_bytes(data):
                yield position, found
    if left.is_nothing:
        return
    if left.compacted > 0:
        raise UnavailableError(f"{topic}: the broker sends nothing more, and these are left: {left}")
    yield from fallback_entries(settings, admin, topic, list(spans_of(stats.ledgers, Range(left.at, stats.last))))
    after = admin.internal_stats(topic)
    if (after.compacted, after.horizon) != (stats.compacted, stats.horizon):
        raise UnavailableError(f"{topic} was compacted while it was read, so its end is not known: read it again")


def read_stored(
    settings: PulsarSettings, admin: EntryAdmin, topic: str, after: Position = BEFORE_ALL
) -> Iterator[tuple[Position, UndeliveredMessage]]:
    """Yield the messages that lie behind a position in a topic's own ledgers, at the places where a broker reads them.

    An entry that the broker sends to nobody comes as one that was not shown. Raises UnavailableError, RefusedError.
    """
    stats = admin.internal_stats(topic)
    if stats.last[1] < 0 or stats.last <= after:
        return
    for sent in read_spans(settings, topic, list(spans_of(stats.ledgers, Range(after, stats.last)))):
        if sent.data is None:
            yield sent.position, not_shown(NotShown("the broker sends it to nobody"))
            continue
        for found in found_in_bytes(sent.data):
            yield sent.position, found


class _Left:
    """What a compacted reader has not got yet."""

    def __init__(self, stats: InternalStats) -> None:
        self.at = self._horizon = stats.horizon  # of the last entry after the horizon that the reader got
        self.compacted = stats.compacted[1]
        self._last = stats.last
        self._waits_for_last = stats.entries_after(stats.horizon) > 0

    @property
    def is_nothing(self) -> bool:
        return self.compacted <= 0 and not self._waits_for_last

    def is_unsent(self, last: Position | None) -> bool:
        """Whether the broker sends nothing of what is left to any reader; last: the last entry that it would send."""
        return self.compacted <= 0 and last is not None and last <= self.at

    def take(self, position: Position) -> None:
        if position <= self._horizon:
            self.compacted -= 1
        else:
            self.at = position
            self.compacted = 0  # it comes first; a compaction that ended meanwhile has left less of it
            self._waits_for_last &= position < self._last

    def __str__(self) -> str:
        after = f", and what comes after it up to {self._last[0]}:{self._last[1]}" if self._waits_for_last else ""
        return f"{max(0, self.compacted)} entries of the compacted ledger{after}"
