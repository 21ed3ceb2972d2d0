"""The value that makes a broker replay a topic is the one that was seen to do so."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from tests.unit.udfs.snapshots.test_audit import NAMED, WELL
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.audit import NamedSegment
from udfs.snapshots.codec import decode_index
from udfs.snapshots.repairing import empty_index, refusal_of, told_of


def test_an_empty_index_is_as_long_as_the_one_that_was_seen_to_work() -> None:
    topic = "persistent://public/t/orde"
    assert (len(topic), len(empty_index(topic))) == (26, 35)
    assert decode_index(empty_index(topic)).tail.rows == 0


def test_only_a_topic_that_is_not_ready_and_lacks_a_segment_may_be_repaired() -> None:
    broken = replace(WELL, named=(NAMED, replace(NAMED, sequence=1, is_readable=False)), buffer=None)
    assert refusal_of(broken) == ""
    assert refusal_of(replace(broken, buffer=WELL.buffer))
    assert refusal_of(replace(broken, named=(NAMED,)))
    assert refusal_of(replace(broken, named=()))
    assert refusal_of(replace(broken, ledgers=frozenset()))


A, B, TAIL = [(0, 1), (0, 2)], [(0, 3), (0, 4)], [(0, 5)]
FIRST, SECOND = (
    NamedSegment(number, (70, number), (ledger, 9), is_readable=False) for number, ledger in ((0, 4), (1, 5))
)
IDS = {(0, (4, 9)): ids_of(A), (1, (5, 9)): ids_of(B)}


@pytest.mark.parametrize(
    ("ledgers", "doubled", "known", "sure"),
    [
        pytest.param({4, 5}, 0, [*A, *B, *TAIL], [A[1], *B, *TAIL], id="all may live"),
        pytest.param({5}, 0, [*B, *TAIL], [B[1], *TAIL], id="the first segment's last marker is gone"),
        pytest.param(set(), 0, TAIL, [], id="both are, and the tail may be"),
        pytest.param({4, 5}, 2, [*A, *B, *TAIL], [A[1], B[1]], id="segments share ids, so their order tells nothing"),
    ],
)
def test_an_id_is_sure_only_where_a_segment_before_it_lives(
    ledgers: Collection[int], doubled: int, known: list[tuple[int, int]], sure: list[tuple[int, int]]
) -> None:
    facts = replace(WELL, named=(SECOND, FIRST), ledgers=frozenset(ledgers), doubled_ids=doubled)
    told = told_of(facts, IDS, ids_of(TAIL))
    assert (set(told.known), set(told.sure), told.unknown) == (set(known), set(sure), ())


def test_segments_that_are_needed_and_of_which_nobody_knows_the_ids_are_told() -> None:
    facts = replace(WELL, named=(FIRST, SECOND), ledgers=frozenset({4, 5}))
    assert told_of(facts, {(0, (4, 8)): IDS[0, (4, 9)]}, ids_of([])).unknown == (0, 1)
    assert told_of(replace(facts, ledgers=frozenset({5})), {}, ids_of([])).unknown == (1,)
