"""What of a partition is unread, and which gaps are reported."""

from dataclasses import replace

import pytest

from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.pulsar_source.offsets import Gap, PartitionOffset
from udfs.pulsar_source.planning import (
    UnknownPositionError,
    acknowledged_by,
    advance,
    first_offset,
    last_offset,
    resume,
    unread,
)


def _stats(*ledgers: tuple[int, int], last: Position | None = None) -> InternalStats:
    return InternalStats(ledgers=ledgers, cursors={}, pending_adds=0, last_confirmed=last)


def _read(at: Position, seen: Position | None = None) -> PartitionOffset:
    return PartitionOffset(at=at, seen=at if seen is None else seen, after=at)


def test_a_batch_names_its_entries_across_ledgers() -> None:
    stats = _stats((7, 20), (8, 0), (9, 6))
    start = first_offset(stats)
    end = advance(resume(start, stats), start, (9, 2), stats)
    assert end == PartitionOffset(
        at=(9, 2), seen=(9, 5), after=(7, -1), spans=(EntrySpan(7, 0, 19), EntrySpan(9, 0, 2))
    )
    assert acknowledged_by(end) == (9, 2)
    assert unread(end.at, stats) == [EntrySpan(9, 3, 5)]
    assert unread(end.at, stats, upto=(9, 4)) == [EntrySpan(9, 3, 4)]


def test_the_end_of_a_closed_ledger_is_the_start_of_the_next() -> None:
    stats = _stats((7, 20), (8, 0), (9, 6))
    start = first_offset(stats)
    assert advance(start, start, (7, 19), stats).at == (9, -1)
    assert acknowledged_by(advance(start, start, (7, 19), stats)) == (7, 19)
    assert advance(start, start, (7, 18), stats).at == (7, 18)
    assert advance(start, start, (9, 5), stats).at == (9, 5), "the newest ledger may grow"
    assert last_offset(stats).at == (9, 5)


@pytest.mark.parametrize(
    ("start", "stats", "expected"),
    [
        pytest.param(_read((9, 5)), _stats((9, 6)), (_read((9, 5)), None), id="nothing new"),
        pytest.param(_read((9, 5)), _stats((9, 6), (12, 3)), ((12, -1), None), id="the ledger was closed there"),
        pytest.param(
            _read((9, 5)), _stats((12, 0), last=(9, 5)), ((12, -1), None), id="closed and deleted, nothing was added"
        ),
        pytest.param(
            _read((9, -1)), _stats((12, 0), last=(8, 5)), ((12, -1), None), id="deleted while it was still empty"
        ),
        pytest.param(
            _read((9, 5)),
            _stats((12, 0), last=(12, -1)),
            ((12, -1), Gap((9, 5), (12, -1), is_certain=False)),
            id="deleted, and the broker has loaded the topic since",
        ),
        pytest.param(
            _read((9, 5)),
            _stats((12, 4), last=(12, 3)),
            ((12, -1), Gap((9, 5), (12, -1), is_certain=False)),
            id="deleted or created again, with newer entries",
        ),
        pytest.param(
            _read((9, 5)),
            _stats((12, 4)),
            ((12, -1), Gap((9, 5), (12, -1), is_certain=False)),
            id="a broker that does not name its newest entry",
        ),
        pytest.param(
            _read((9, 5), seen=(9, 6)),
            _stats((12, 4), last=(12, 3)),
            ((12, -1), Gap((9, 5), (12, -1), is_certain=True)),
            id="an entry was seen there",
        ),
        pytest.param(
            _read((12, -1), seen=(12, 0)),
            _stats((20, 4), last=(20, 3)),
            ((20, -1), Gap((12, -1), (20, -1), is_certain=True)),
            id="a whole ledger was seen there",
        ),
        pytest.param(_read(BEFORE_ALL), _stats((12, 4)), (_read(BEFORE_ALL), None), id="an empty topic got entries"),
    ],
)
def test_a_gap_is_reported_unless_nothing_can_be_missing(
    start: PartitionOffset, stats: InternalStats, expected: tuple[PartitionOffset | Position, Gap | None]
) -> None:
    resumed = resume(start, stats)
    unchanged_or_at, gap = expected
    assert (resumed if isinstance(unchanged_or_at, PartitionOffset) else resumed.at) == unchanged_or_at
    assert resumed.gap == gap
    assert resumed is start or resumed.after == start.at


def test_a_gap_before_the_entries_of_a_batch_is_part_of_its_offset() -> None:
    start, stats = _read((9, 5), seen=(9, 6)), _stats((12, 4), last=(12, 3))
    end = advance(resume(start, stats), start, (12, 1), stats)
    assert end.gap == Gap((9, 5), (12, -1), is_certain=True)
    assert (end.after, end.spans, end.at) == ((9, 5), (EntrySpan(12, 0, 1),), (12, 1))
    assert advance(resume(end, stats), end, (12, 2), stats).gap is None, "a gap is in one batch"


def test_a_partition_with_only_older_ledgers_is_refused() -> None:
    with pytest.raises(UnknownPositionError, match="new checkpoint"):
        resume(_read((9, 5)), _stats((3, 100)))


def test_the_messages_of_a_compacted_ledger_alone_are_reported_as_a_gap() -> None:
    stats = replace(_stats((9, 5)), compacted=(8, 3), cursors={"__compaction": (7, 19)})
    start = first_offset(stats)
    assert start.at == BEFORE_ALL
    assert resume(start, stats).gap == Gap(BEFORE_ALL, (9, -1), is_certain=True)
    still_stored = replace(stats, cursors={"__compaction": (9, 1)})
    assert first_offset(still_stored).at == (9, -1)
