"""A repair says what it could not find out."""

import pytest

from streaming.snapshots.repair.verify import RepairResult, ignorance
from udfs.snapshots.repair_rules import KnownIds

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


def test_what_a_repair_came_to_stands_in_one_line() -> None:
    said = RepairResult(topic="T", journal="1.json", aborted=3, known=4, expected=3, delivered=2).describe()
    assert said == (
        "T is loaded again and has 3 aborted ids (its old snapshot had 4); a reader gets 2 entries, none of them "
        "aborted. The old index is 1.json in the journal"
    )
