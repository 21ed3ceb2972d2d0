from udfs.snapshots.aborts import aborts_of, ids_of, joined, merged, trimmed


def test_a_union_holds_each_id_once_with_its_last_marker_in_the_order_of_markers() -> None:
    first = aborts_of([(0, 1, 5, 0), (0, 2, 5, 1)])
    second = aborts_of([(1, 1, 4, 9), (0, 1, 6, 0), (0, 2, 5, 1)])
    assert merged([first, second]).tuples() == [(1, 1, 4, 9), (0, 2, 5, 1), (0, 1, 6, 0)]


def test_ids_with_the_same_marker_keep_their_order() -> None:
    rows = [(0, 9, 5, 0), (0, 1, 5, 0), (0, 5, 5, 0)]
    assert merged([aborts_of(rows)]).tuples() == rows


def test_nothing_is_a_union_too() -> None:
    assert merged([]).rows == joined([]).rows == 0


def test_trimming_takes_ids_whose_ledger_has_gone_and_no_others() -> None:
    aborts = aborts_of([(0, 1, 4, 0), (0, 2, 5, 0), (0, 3, 6, 0)])
    assert trimmed(aborts, {5, 6}).tuples() == [(0, 2, 5, 0), (0, 3, 6, 0)]
    assert trimmed(aborts, set()).rows == 0
    assert trimmed(aborts, {4, 5, 6}) is aborts


def test_ids_are_pairs() -> None:
    assert ids_of([(1, 2), (3, 4)]).pairs() == aborts_of([(1, 2, 0, 0), (3, 4, 0, 0)]).ids.pairs()
