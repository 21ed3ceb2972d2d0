"""The note of the entries that the fallback (a read without the connector) has processed completely."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from streaming.state.notes.note import Note
from udfs.entry_ranges import EntrySpan, joined

_LEDGERS = 1_000  # of a partition, the newest
_PARTITIONS = 10_000  # the partitions noted last, because topics come and go

Spans = dict[str, list[EntrySpan]]  # by partition


def _encode(spans: Spans) -> dict[str, list[tuple[int, int, int]]]:
    return {
        partition: [(span.ledger, span.first, span.last) for span in of_partition]
        for partition, of_partition in spans.items()
    }


def _decode(spans: Any) -> Spans:
    return {
        str(partition): [EntrySpan(*map(int, span)) for span in of_partition]
        for partition, of_partition in spans.items()
    }


# Not every entry contains a message: a broker's transaction markers do not. Such an entry has no receipt, and can be
# read and explained while it is stored. After its ledger is gone, this note shows that no message was lost.
_NOTE: Note[Spans] = Note("worked-off.json", _encode, _decode)


class WorkedOff:
    """The note of one state directory. One per service: many of its threads may call note()."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._one_at_a_time = threading.Lock()

    def note(self, spans: Mapping[str, Sequence[EntrySpan]]) -> None:
        """Add the entries that were processed, by partition; call this after they have their receipts.

        A failure to write is ignored: its only effect may be a false alarm.
        """
        with self._one_at_a_time:
            noted = self.recall()
            for partition, added in spans.items():
                merged = joined((*noted.get(partition, ()), *added))
                newest = sorted({span.ledger for span in merged})[-_LEDGERS:]
                # moves to the end: the partition that was noted longest ago is dropped first
                noted.pop(partition, None)
                noted[partition] = [span for span in merged if span.ledger >= newest[0]] if newest else []
            _NOTE.try_write(self._state_dir, dict(list(noted.items())[-_PARTITIONS:]))

    def recall(self) -> Spans:
        """Return the noted entries by partition; none if there is no note or it can't be read."""
        return _NOTE.try_read(self._state_dir) or {}
