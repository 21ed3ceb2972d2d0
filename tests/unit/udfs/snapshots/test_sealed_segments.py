from itertools import accumulate

import pytest

from udfs.formats.errors import FormatError
from udfs.snapshots.aborts import aborts_of, joined
from udfs.snapshots.sealed_segments import ids_of_a_segment, index_of, named_segments, recover, recovered, seal, sealed

TOPIC = "persistent://t/ns/orders"
ABORTS = aborts_of([(0, each, 5 + each // 3, each) for each in range(5)])


@pytest.mark.parametrize(("length", "ids"), [(29, 200), (42, 196), (26, 201)])
def test_a_segment_is_sealed_after_as_many_ids_as_was_seen(length: int, ids: int) -> None:
    assert ids_of_a_segment(638, "x" * length) == ids


def test_a_size_into_which_nothing_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        ids_of_a_segment(34, TOPIC)


def test_an_index_and_its_segments_hold_all_ids_with_markers_that_are_late_enough() -> None:
    segments, tail = seal(TOPIC, ABORTS, 2, first=7)
    assert [each.sequence for each in segments] == [7, 8]
    index = index_of(TOPIC, segments, [(9, 0), (9, 1)], tail, (6, 2))
    assert list(named_segments(index)) == [(7, (9, 0), (5, 1)), (8, (9, 1), (6, 3))]
    found = recover(index, {(9, 0): segments[0], (9, 1): segments[1]}, (8, 8))
    assert found.ids.pairs() == ABORTS.ids.pairs()
    exact = zip(ABORTS.ledger.tolist(), ABORTS.entry.tolist(), strict=True)
    kept = zip(found.ledger.tolist(), found.entry.tolist(), strict=True)
    assert all(late >= own for late, own in zip(kept, exact, strict=True))
    assert (int(found.ledger[-1]), int(found.entry[-1])) == (8, 8)


def test_a_segment_that_is_not_where_the_index_says_is_an_error() -> None:
    segments, tail = seal(TOPIC, ABORTS, 2)
    index = index_of(TOPIC, segments, [(9, 0), (9, 1)], tail, (6, 2))
    with pytest.raises(FormatError, match=r"segment 1 of .* is not at 9:1"):
        recover(index, {(9, 0): segments[0]}, (8, 8))


@pytest.mark.parametrize("cuts", [(5,), (1, 1, 1, 1, 1), (0, 3, 0, 2), (2, 2, 1), (4, 1)])
def test_segments_are_sealed_piece_by_piece_as_at_once(cuts: tuple[int, ...]) -> None:
    ends = list(accumulate(cuts))
    given = [ABORTS.between(end - rows, end) for end, rows in zip(ends, cuts, strict=True)]
    made, tail = [], None
    sealing = sealed(TOPIC, given, 2, first=7)
    while tail is None:
        try:
            made.append(next(sealing))
        except StopIteration as ended:
            tail = ended.value
    whole, rest = seal(TOPIC, ABORTS, 2, first=7)
    assert [(each.sequence, each.marker, each.ids.pairs()) for each in made] == [
        (each.sequence, each.marker, each.ids.pairs()) for each in whole
    ]
    assert tail.pairs() == rest.pairs()


def test_an_index_is_recovered_piece_by_piece_as_at_once() -> None:
    segments, tail = seal(TOPIC, ABORTS, 2)
    index = index_of(TOPIC, segments, [(9, 0), (9, 1)], tail, (6, 2))
    at = {(9, 0): segments[0], (9, 1): segments[1]}
    pieces = list(recovered(index, at.get, (8, 8)))
    assert [piece.rows for piece in pieces] == [2, 2, 1]
    assert joined(pieces).tuples() == recover(index, at, (8, 8)).tuples()
