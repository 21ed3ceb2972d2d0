"""Entries that checks found to need no receipt are remembered as long as their ledger is stored."""

from streaming.reconcile.markers import Markers
from udfs.entry_ranges import EntrySpan


def test_markers_are_kept_until_their_ledger_is_gone() -> None:
    markers = Markers()
    assert list(markers.of("p")) == []
    markers.keep("p", [EntrySpan(5, 2, 2), EntrySpan(5, 0, 1)], {5, 6})
    markers.keep("p", [EntrySpan(6, 0, 0)], {5, 6})
    assert markers.of("p") == [EntrySpan(5, 0, 2), EntrySpan(6, 0, 0)]
    assert list(markers.of("q")) == []
    markers.keep("p", [], {6, 7})
    assert markers.of("p") == [EntrySpan(6, 0, 0)]
