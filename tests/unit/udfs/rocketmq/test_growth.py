import numpy as np
import pytest

from udfs.rocketmq.growth import End, GapError, RecordUnit, UnitChunk, chunks_of, growth_of
from udfs.rocketmq.queue_units import Units


def chunk(first: int, *phy: int) -> UnitChunk:
    none = np.zeros(len(phy), dtype=np.int64)
    return UnitChunk(
        topic=b"T", queue_id=1, first=first, units=Units(np.array(phy), none.astype(np.int32), none), times=none + 7
    )


def test_units_of_a_queue_are_put_together_until_its_offsets_jump() -> None:
    entries = [
        RecordUnit(topic=b"A", queue_id=0, offset=offset, phy=phy, size=100, tags=5, time=9)
        for phy, offset in enumerate((3, 4, 0, 1))  # the queue was made anew in between
    ] + [RecordUnit(topic=b"B", queue_id=0, offset=7, phy=4, size=100, tags=5, time=9)]
    found = {(each.topic, each.first): each.units.phy.tolist() for each in chunks_of(entries)}
    assert found == {(b"A", 3): [0, 1], (b"A", 0): [2, 3], (b"B", 7): [4]}


def test_an_unknown_queue_starts_at_its_first_unit() -> None:
    step = growth_of(None, chunk(4, 10, 20))
    assert step is not None
    assert (step.clears, step.chunk.first, step.end) == (False, 4, End(5, 20))


def test_what_is_known_is_left_out_and_what_follows_is_added() -> None:
    step = growth_of(End(5, 20), chunk(4, 10, 20, 30))
    assert step is not None
    assert (step.clears, step.chunk.first, step.chunk.units.phy.tolist()) == (False, 6, [30])
    assert (step.chunk.times.tolist(), step.end) == ([7], End(6, 30))


def test_nothing_new_is_no_step() -> None:
    assert growth_of(End(5, 20), chunk(4, 10, 20)) is None


def test_a_later_message_with_a_known_offset_belongs_to_a_queue_that_was_created_again() -> None:
    step = growth_of(End(5, 20), chunk(0, 30))
    assert step is not None
    assert (step.clears, step.end) == (True, End(0, 30))


def test_a_hole_is_an_error() -> None:
    with pytest.raises(GapError, match="queue offset 7, and 6 should follow"):
        growth_of(End(5, 20), chunk(7, 30))
