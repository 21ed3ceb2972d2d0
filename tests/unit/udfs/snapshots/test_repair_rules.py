"""The value that makes a broker replay a topic is the one that was seen to do so."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from tests.unit.udfs.snapshots.test_topic_findings import NAMED, WELL
from udfs.formats.internal_stats import Position
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, decode_index, entries_of
from udfs.snapshots.repair_rules import (
    KnownIds,
    complete_part_of,
    empty_index,
    ignorance,
    known_ids_of,
    missing_in,
    refusal_of,
)
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.topic_findings import NamedSegment


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
    ids = known_ids_of(facts, IDS, ids_of(TAIL))
    assert (set(ids.known), set(ids.certain), ids.unknown) == (set(known), set(sure), ())


def test_segments_that_are_needed_and_of_which_nobody_knows_the_ids_are_told() -> None:
    facts = replace(WELL, named=(FIRST, SECOND), ledgers=frozenset({4, 5}))
    assert known_ids_of(facts, {(0, (4, 8)): IDS[0, (4, 9)]}, ids_of([])).unknown == (0, 1)
    assert known_ids_of(replace(facts, ledgers=frozenset({5})), {}, ids_of([])).unknown == (1,)


ALL = frozenset({(0, 1)})


@pytest.mark.parametrize(
    ("ids", "is_whole", "says"),
    [
        pytest.param(KnownIds(ALL, ALL, ()), True, "", id="all is known"),
        pytest.param(KnownIds(ALL, ALL, ()), False, "during a replay", id="it was half an index"),
        pytest.param(KnownIds(frozenset(), frozenset(), (1,)), True, "no old ids", id="nothing is known"),
        pytest.param(KnownIds(ALL, ALL, (1, 2)), True, "segments 1, 2 are not", id="some is not"),
        pytest.param(KnownIds(ALL, ALL, tuple(range(12))), True, "8, 9 and 2 more are not", id="much is not"),
    ],
)
def test_what_is_not_known_of_the_old_ids_is_told(ids: KnownIds, is_whole: bool, says: str) -> None:
    said = ignorance(ids, is_whole=is_whole)
    assert says in said
    assert bool(says) is bool(said)


ROWS = [(0, (70, 0), (4, 9)), (1, (70, 1), (5, 9))]


@pytest.mark.parametrize(
    ("max_read", "kept", "begins"),
    [
        pytest.param((6, 0), 2, (5, 9), id="all were settled: replayed from the last marker on, as the tail goes"),
        pytest.param((5, 9), 2, (5, 9), id="the last one was just settled"),
        pytest.param((5, 8), 1, (4, 9), id="a transaction was open before the last marker"),
        pytest.param((4, 8), 0, (-1, -1), id="one was open before all"),
        pytest.param((-1, -1), 0, (-1, -1), id="the broker recovered the topic just then"),
    ],
)
def test_of_an_index_the_time_before_its_max_read_position_stays(
    max_read: Position, kept: int, begins: Position
) -> None:
    found = complete_part_of(Index(WELL.topic, entries_of(ROWS), max_read, ids_of(TAIL)))
    assert list(named_segments(found)) == ROWS[:kept]
    assert (found.max_read, found.tail.rows, found.topic) == (begins, 0, WELL.topic)


@pytest.mark.parametrize(
    ("rows", "max_read", "sealed", "lacks"),
    [
        pytest.param(ROWS, (6, 0), [(4, 9), (5, 9)], "", id="all are named"),
        pytest.param(ROWS, (6, 0), [(5, 9)], "", id="more are named than it has"),
        pytest.param(
            ROWS[:1], (6, 0), [(4, 9), (5, 9)], "sealed 2 segments, and 1 of them are not in its index", id="one is not"
        ),
        pytest.param(ROWS, (-1, -1), [(4, 9), (5, 9)], "names 2 segments and no maxRead", id="written in a replay"),
        pytest.param([], (-1, -1), [], "", id="an empty one, and nothing sealed"),
        pytest.param(
            [], (-1, -1), [(4, 9)], "sealed 1 segments, and 1 of them are not in its index", id="an empty one"
        ),
        pytest.param(None, (6, 0), [(4, 9)], "sealed 1 segments, and 1 of them are not in its index", id="none"),
        pytest.param(None, (6, 0), [], "", id="none, and nothing sealed"),
    ],
)
def test_a_broker_can_go_on_from_an_index_that_names_what_it_has_sealed_and_says_up_to_where(
    rows: list[tuple[int, Position, Position]] | None, max_read: Position, sealed: list[Position], lacks: str
) -> None:
    index = None if rows is None else Index(WELL.topic, entries_of(rows), max_read, ids_of([]))
    said = missing_in(index, sealed)
    assert lacks in said
    assert bool(lacks) is bool(said)
