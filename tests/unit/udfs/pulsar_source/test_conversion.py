"""A converted offset leaves the same entries unread, and the first batch covers all that may have a receipt."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.pulsar_source.conversion import FramesPart, NotConvertibleError, to_connector, to_frames
from udfs.pulsar_source.offsets import Gap, PartitionOffset
from udfs.pulsar_source.planning import resume, unread


def _stats(*ledgers: tuple[int, int], last_confirmed: Position | None = None) -> InternalStats:
    return InternalStats(ledgers=ledgers, cursors={}, pending_adds=0, last_confirmed=last_confirmed)


def _entries(spans: Iterable[EntrySpan]) -> list[Position]:
    return [(span.ledger, entry) for span in spans for entry in range(span.first, span.last + 1)]


def _stored(stats: InternalStats) -> list[Position]:
    return [(ledger, entry) for ledger, entries in stats.ledgers for entry in range(entries)]


STATS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=5, unique_by=lambda x: x[0]).map(
    lambda ledgers: _stats(*sorted(ledgers))
)
POSITIONS = st.one_of(st.just(BEFORE_ALL), st.tuples(st.integers(0, 9), st.integers(-1, 4)))


@given(STATS, POSITIONS, POSITIONS)
def test_nothing_unread_is_skipped_and_all_that_may_be_processed_is_in_the_first_batch(
    stats: InternalStats, committed: Position, upto: Position
) -> None:
    if committed[0] > stats.ledgers[-1][0] or (upto[1] >= 0 and upto > stats.last):
        with pytest.raises(NotConvertibleError):
            to_frames(committed, upto, stats)
        return
    part = to_frames(committed, upto, stats)
    assert part.committed is not None
    first = [] if part.repeated is None else _entries(part.repeated.spans)
    later = _entries(unread(resume(part.repeated or part.committed, stats).at, stats))
    assert first + later == [at for at in _stored(stats) if at > committed], "each unread entry once, in order"
    assert not [at for at in later if at <= upto], "a batch after the first leaves out no messages with receipts"
    if part.repeated is not None:
        assert part.repeated.after == part.committed.at, "the source refuses other offsets"
        assert first


@given(STATS, POSITIONS, POSITIONS)
def test_the_way_back_reads_the_same_entries(stats: InternalStats, committed: Position, upto: Position) -> None:
    try:
        part = to_frames(committed, upto, stats)
        back = to_connector(part.committed, part.repeated, stats)
    except NotConvertibleError:
        return
    assert [at for at in _stored(stats) if at > back] == [at for at in _stored(stats) if at > committed]
    assert back == BEFORE_ALL or back in _stored(stats), "the connector starts at an entry"


def test_entries_that_are_deleted_after_the_conversion_are_a_certain_loss() -> None:
    part = to_frames((3, 1), BEFORE_ALL, _stats((3, 4), (5, 2))).committed
    assert part == PartitionOffset(at=(3, 1), seen=(5, 1), after=(3, 1))
    assert resume(part, _stats((7, 1), last_confirmed=(7, 0))).gap == Gap((3, 1), (7, -1), is_certain=True)


def test_the_deletion_of_a_ledger_that_was_read_is_no_loss() -> None:
    part = to_frames((3, 3), BEFORE_ALL, _stats((3, 4), (5, 2))).committed
    assert part is not None
    assert resume(part, _stats((5, 2), last_confirmed=(5, 1))).gap is None


def test_what_was_deleted_before_the_conversion_is_only_possible() -> None:
    stats = _stats((5, 2), last_confirmed=(5, 1))
    part = to_frames((3, 1), (5, 0), stats)
    assert part.committed == PartitionOffset(at=(3, 1), seen=(3, 1), after=(3, 1))
    gap = Gap((3, 1), (5, -1), is_certain=False)
    assert part.repeated is not None
    assert part.repeated.gap == gap
    assert part.repeated.spans == (EntrySpan(5, 0, 0),)
    assert resume(part.committed, stats).gap == gap


def test_a_partition_that_is_gone_keeps_its_position() -> None:
    assert to_frames((3, 1), (4, 0), None) == FramesPart(PartitionOffset(at=(3, 1), seen=(3, 1), after=(3, 1)))
    assert to_frames(BEFORE_ALL, BEFORE_ALL, None) == FramesPart(None)
    assert to_connector(PartitionOffset(at=(3, 1), seen=(3, 1)), None, None) == (3, 1)
    assert to_connector(None, None, None) == BEFORE_ALL


AT = PartitionOffset(at=(3, 1), seen=(5, 1), after=(3, 0))
BATCH = PartitionOffset(at=(5, -1), seen=(5, 1), after=(3, 1), spans=(EntrySpan(3, 2, 3),))


@pytest.mark.parametrize(
    ("unfinished", "stats", "why"),
    [
        pytest.param(None, None, "it was deleted, and its entries after 3:1, up to 5:1", id="deleted unread"),
        pytest.param(BATCH, _stats((5, 2), last_confirmed=(5, 1)), "may have been deleted", id="a ledger is gone"),
        pytest.param(
            PartitionOffset(at=(7, -1), seen=(7, -1), after=(3, 1), gap=Gap((3, 1), (7, -1), is_certain=True)),
            _stats((3, 4), (5, 2), (7, 0)),
            "reports deleted entries, after 3:1 and before 7:-1",
            id="the batch reports a loss",
        ),
        pytest.param(
            PartitionOffset(at=(5, 1), seen=(5, 1), after=(3, 1), spans=(EntrySpan(3, 2, 3), EntrySpan(4, 0, 0))),
            _stats((3, 4), (5, 2)),
            "were deleted since",
            id="entries of the batch are gone",
        ),
        pytest.param(None, _stats((2, 4)), "the newest ledger is 2", id="only older ledgers"),
    ],
)
def test_a_loss_that_only_the_source_would_report_is_not_converted(
    unfinished: PartitionOffset | None, stats: InternalStats | None, why: str
) -> None:
    with pytest.raises(NotConvertibleError, match=why):
        to_connector(AT, unfinished, stats)


def test_a_batch_that_was_started_is_planned_again() -> None:
    assert to_connector(AT, BATCH, _stats((3, 4), (5, 2))) == (3, 1)
    assert to_connector(None, BATCH, _stats((3, 4), (5, 2))) == BEFORE_ALL


def test_the_connector_starts_at_the_last_entry_that_was_read() -> None:
    read = PartitionOffset(at=(5, -1), seen=(5, -1), after=(3, 1))
    assert to_connector(read, None, _stats((3, 4), (5, 0))) == (3, 3)
    assert to_connector(read, None, _stats((5, 2))) == BEFORE_ALL, "nothing is stored before"
