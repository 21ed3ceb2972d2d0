from hypothesis import given
from hypothesis import strategies as st

from udfs.rocketmq.parts import QueueRange, in_key_order, parts_of
from udfs.rocketmq.rows import unit_key

RANGES = st.lists(
    st.tuples(st.binary(min_size=1, max_size=3), st.integers(0, 3), st.integers(0, 50), st.integers(0, 40)),
    max_size=8,
    unique_by=lambda each: each[:2],
)


def queues(drawn: list[tuple[bytes, int, int, int]]) -> list[QueueRange]:
    ordered = in_key_order(
        QueueRange(number=0, topic=topic, queue_id=queue, first=first, end=first + count)
        for topic, queue, first, count in drawn
    )
    return [each._replace(number=number) for number, each in enumerate(ordered)]


@given(RANGES, st.integers(1, 30))
def test_every_unit_is_in_one_part_in_the_order_of_keys(drawn: list[tuple[bytes, int, int, int]], limit: int) -> None:
    ordered = queues(drawn)
    parts = list(parts_of(ordered, limit))
    units = [
        (segment.number, offset)
        for part in parts
        for segment in part.segments
        for offset in range(segment.first, segment.end)
    ]
    assert units == [(each.number, offset) for each in ordered for offset in range(each.first, each.end)]
    keys = [unit_key(ordered[number].topic, ordered[number].queue_id, offset) for number, offset in units]
    assert keys == sorted(keys)
    assert [part.number for part in parts] == list(range(len(parts)))
    assert all(part.rows == limit for part in parts[:-1])
    assert all(0 < part.rows <= limit for part in parts)


@given(RANGES, st.integers(1, 30))
def test_a_segment_has_the_number_of_units_of_its_part_before_it(
    drawn: list[tuple[bytes, int, int, int]], limit: int
) -> None:
    for part in parts_of(queues(drawn), limit):
        before = 0
        for segment in part.segments:
            assert segment.position == before
            before += segment.end - segment.first
