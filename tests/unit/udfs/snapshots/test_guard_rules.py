"""A guard never moves behind a segment that a broker could still want to read, whoever wrote what."""

import pytest

from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, Segment, entries_of
from udfs.snapshots.guard_rules import (
    Bound,
    Holds,
    IndexHold,
    index_bound,
    is_perhaps_needed,
    segment_bound,
)
from udfs.snapshots.keys import SnapshotKind, keeper_topic
from udfs.snapshots.values import Fault, ReadValue

A, B = "persistent://t/ns/a", "persistent://t/ns/b"
END = (20, 5)
LEDGERS = frozenset({10, 11, 12, 20})


def _index(topic: str, *rows: tuple[int, tuple[int, int]], fault: Fault | None = None, null: bool = False) -> ReadValue:
    value = Index(topic, entries_of([(number, place, (1, 1)) for number, place in rows]), (1, 1), ids_of([]))
    is_value = fault is None and not null
    return ReadValue(
        kind=SnapshotKind.INDEX,
        key=topic,
        topic=topic,
        position=(1, 1),
        publish_ms=1_000,
        size_bytes=9,
        sequence=-1,
        is_null=null,
        fault=fault,
        detail="",
        value=value if is_value else None,
    )


def _segment(topic: str, number: int, place: tuple[int, int], publish_ms: int = 1_000) -> ReadValue:
    value = Segment(topic, number, (1, 1), ids_of([(1, 1)]))
    key = f"multiple-{number}-{topic}"
    return ReadValue(
        kind=SnapshotKind.SEGMENT,
        key=key,
        topic=topic,
        position=place,
        publish_ms=publish_ms,
        size_bytes=9,
        sequence=number,
        value=value,
    )


def _holds(*reads: ReadValue) -> Holds:
    holds = Holds(LEDGERS)
    for read in reads:
        holds.take(read)
    return holds


def test_without_indexes_the_end_before_the_look_is_the_bound() -> None:
    assert index_bound({}, END).position == END


def test_the_lowest_named_place_is_the_bound() -> None:
    holds = _holds(_index(A, (3, (12, 0)), (2, (11, 4))), _index(B, (0, (11, 6))))
    assert index_bound(holds.by_topic, END).position == (11, 4)


def test_the_latest_index_of_a_topic_counts_and_a_tombstone_ends_it() -> None:
    again = _holds(_index(A, (0, (10, 0))), _index(A, (1, (12, 0))))
    assert index_bound(again.by_topic, END).position == (12, 0)
    gone = _holds(_index(A, (0, (10, 0))), _index(A, null=True))
    assert index_bound(gone.by_topic, END).position == END


def test_a_place_that_was_trimmed_before_holds_nothing_and_is_counted() -> None:
    holds = _holds(_index(A, (0, (9, 0)), (1, (12, 0))))
    assert index_bound(holds.by_topic, END).position == (12, 0)
    assert holds.by_topic[A].lost == 1


@pytest.mark.parametrize("fault", [Fault.UNREADABLE, Fault.FOREIGN_SCHEMA, Fault.OTHER_NAME])
def test_an_index_that_nobody_can_read_holds_everything(fault: Fault) -> None:
    holds = _holds(_index(A, (1, (12, 0))), _index(B, fault=fault))
    assert index_bound(holds.by_topic, END).position == (-1, -1)


def test_a_key_that_no_topic_has_holds_nothing() -> None:
    odd = ReadValue(
        kind=SnapshotKind.INDEX, key="?", topic="", position=(1, 1), publish_ms=1, size_bytes=1, fault=Fault.ODD_KEY
    )
    assert _holds(odd).by_topic == {}


@pytest.mark.parametrize(
    ("segment", "holds", "expected"),
    [
        pytest.param(
            _segment(A, 3, (10, 0)), {A: IndexHold(lowest=(12, 0), last=2)}, True, id="behind the last that is named"
        ),
        pytest.param(
            _segment(A, 2, (10, 0)), {A: IndexHold(lowest=(12, 0), last=2)}, False, id="the index has gone past it"
        ),
        pytest.param(_segment(A, 0, (10, 0)), {}, True, id="a topic without an index"),
        pytest.param(_segment(keeper_topic("t/ns"), 0, (10, 0)), {}, False, id="our own record behind tombstones"),
        pytest.param(_segment(A, 0, (10, 0)), {A: IndexHold(lowest=None)}, True, id="an index that names nothing"),
        pytest.param(
            ReadValue(
                kind=SnapshotKind.SEGMENT,
                key="k",
                topic=A,
                position=(10, 0),
                publish_ms=1,
                size_bytes=1,
                sequence=9,
                fault=Fault.UNREADABLE,
            ),
            {},
            False,
            id="no value",
        ),
    ],
)
def test_a_segment_that_an_index_may_still_name_is_needed(
    segment: ReadValue, holds: dict[str, IndexHold], expected: bool
) -> None:
    assert is_perhaps_needed(segment, holds) is expected


def test_of_the_candidates_the_first_that_was_not_tombstoned_is_the_bound() -> None:
    tombstoned, compacted_away, live = _segment(A, 0, (10, 0)), _segment(A, 1, (10, 1)), _segment(A, 2, (10, 2))
    later = _segment(A, 3, (10, 3))
    latest = {tombstoned.key: None, live.key: live.position, later.key: later.position}
    bound = segment_bound(Bound((12, 0), "x"), [tombstoned, compacted_away, live, later], latest)
    assert bound.position == (10, 2)
    assert segment_bound(Bound((12, 0), "x"), [tombstoned], latest).position == (12, 0)
