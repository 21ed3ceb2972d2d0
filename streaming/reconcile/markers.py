"""Entries without a receipt in which a look has found no message that lacks one: mostly a broker's markers.

Entries never change, so the next look need not read them again. This is kept in memory: whoever starts anew reads them
once more.
"""

from collections.abc import Collection, Iterable, Sequence

from udfs.entry_ranges import EntrySpan, joined


class Markers:
    """What the looks of one service have found."""

    def __init__(self) -> None:
        self._known: dict[str, list[EntrySpan]] = {}

    def of(self, partition: str) -> Sequence[EntrySpan]:
        """Return the entries of a partition that need not be read again."""
        return self._known.get(partition, ())

    def keep(self, partition: str, added: Iterable[EntrySpan], stored: Collection[int]) -> None:
        """Add entries of a partition, and forget those of ledgers that are not stored any more."""
        spans = joined((*self.of(partition), *added))
        self._known[partition] = [span for span in spans if span.ledger in stored]

    def keep_only(self, partitions: Collection[str]) -> None:
        """Forget all other partitions, mostly those of deleted topics."""
        self._known = {partition: spans for partition, spans in self._known.items() if partition in partitions}
