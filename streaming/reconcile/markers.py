"""Entries without a receipt whose messages are all accounted for: mostly a broker's transaction markers.

They are kept in memory, and read again after a start.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from udfs.entry_ranges import EntrySpan, joined
from udfs.formats.internal_stats import Position


class Markers:
    """The markers that a service's checks have found.

    Attributes:
        lanes: partition -> position up to which it was processed, for lanes that the service has processed since its
            last check; it does not check each idle lane.
        waiting: the same for lanes that have messages and wait to be read.
    """

    def __init__(self) -> None:
        self.lanes: Mapping[str, Position] = {}
        self.waiting: Mapping[str, Position] = {}
        self._spans: dict[str, list[EntrySpan]] = {}

    def of(self, partition: str) -> Sequence[EntrySpan]:
        """Return the entries of a partition that need not be read again."""
        return self._spans.get(partition, ())

    def keep(self, partition: str, added: Iterable[EntrySpan], stored: Collection[int]) -> None:
        """Add entries of a partition, and forget those of ledgers that are no longer stored."""
        # entries never change, so the next check need not read them again
        spans = joined((*self.of(partition), *added))
        self._spans[partition] = [span for span in spans if span.ledger in stored]

    def keep_only(self, partitions: Collection[str]) -> None:
        """Forget all other partitions, mostly those of deleted topics."""
        self._spans = {partition: spans for partition, spans in self._spans.items() if partition in partitions}
