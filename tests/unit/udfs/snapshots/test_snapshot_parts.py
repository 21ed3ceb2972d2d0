import pytest

from udfs.formats.errors import FormatError
from udfs.snapshots.aborts import aborts_of, joined
from udfs.snapshots.codec import Snapshot, decode_snapshot, encode_snapshot
from udfs.snapshots.keys import Capacity, PartKey, part_key_of
from udfs.snapshots.snapshot_parts import counting_of, pieces, recover, retire, split, write

TOPIC = "persistent://t/ns/orders"
TWO = Capacity(2, 1000)
ABORTS = aborts_of([(0, each, 5, each) for each in range(5)])


def _written(capacity: Capacity = TWO, present: tuple[str, ...] = ()) -> list[tuple[str, bytes | None]]:
    return [(step.key, step.value) for step in write(TOPIC, ABORTS, (5, 9), capacity, present)]


def _numbers(steps: list[tuple[str, bytes | None]]) -> list[int | None]:
    keys = [part_key_of(key) for key, _value in steps]
    return [key.number for key in keys if key]


def test_parts_go_oldest_first_and_end_last_and_only_end_is_complete_up_to_somewhere() -> None:
    steps = _written()
    assert _numbers(steps) == [1, 2, None]
    values = [decode_snapshot(value) for _key, value in steps if value]
    assert [value.max_read for value in values] == [(-1, -1), (-1, -1), (5, 9)]
    assert joined([value.aborts for value in values]).tuples() == ABORTS.tuples()


def test_bytes_bound_a_part_too() -> None:
    many = aborts_of([(0, 1 << 40, 5, each) for each in range(50)])
    pieces = list(split(many, Capacity(1000, 60)))
    assert len(pieces) > 5
    assert joined(pieces).tuples() == many.tuples()


def test_nothing_is_one_part_without_ids() -> None:
    assert [piece.rows for piece in split(aborts_of([]), TWO)] == [0]


def test_what_is_stale_is_tombstoned_behind_end_and_of_a_generation_its_end_first() -> None:
    present = tuple(str(PartKey(1, TWO, number, TOPIC)) for number in (1, 2, 3, 4, None))
    assert _numbers(_written(present=present)) == [1, 2, None, 4, 3]
    other = Capacity(3, 1000)
    steps = _written(other, present)
    assert [part_key_of(key) for key, value in steps if value][-1] == PartKey(2, other, None, TOPIC)
    assert [(part_key_of(key) or TOPIC)[2] for key, value in steps if value is None] == [None, 4, 3, 2, 1]


def test_another_topics_keys_are_left_alone() -> None:
    other = str(PartKey(1, TWO, 7, "persistent://t/ns/other"))
    assert all(value for _key, value in _written(present=(other,)))
    assert list(retire(TOPIC, [other])) == []


def test_recovery_takes_the_newest_generation_that_has_an_end() -> None:
    latest = {key: value for key, value in _written() if value}
    half = dict(list(_written(Capacity(4, 1000), tuple(latest)))[:1])
    found = recover(latest | {key: value for key, value in half.items() if value}, TOPIC, {5})
    assert (found.generation, found.max_read, found.aborts.tuples()) == (1, (5, 9), ABORTS.tuples())
    assert recover({}, TOPIC, {5}).generation == 0


def test_a_part_of_another_topic_or_without_sense_is_an_error_and_no_empty_part() -> None:
    latest = {key: value for key, value in _written() if value}
    first = str(PartKey(1, TWO, 1, TOPIC))
    with pytest.raises(FormatError):
        recover(latest | {first: b"nonsense"}, TOPIC, {5})
    stranger = next(write("persistent://t/ns/other", ABORTS, (5, 9), TWO, ())).value
    assert stranger
    with pytest.raises(FormatError, match="names another topic"):
        recover(latest | {first: stranger}, TOPIC, {5})


def test_parts_are_recovered_one_by_one_as_at_once() -> None:
    old = {key: value for key, value in _written() if value}
    longer = aborts_of(
        [(0, each, 5, each) for each in range(1, 8)]
    )  # the first id was trimmed; a crash behind one part
    first = next(write(TOPIC, longer, (5, 20), TWO, tuple(old)))
    mixed = old | {first.key: first.value or b""}
    keys = counting_of(mixed, TOPIC)
    found = list(pieces(keys, lambda key: mixed[str(key)], {5}))
    assert joined(found).tuples() == recover(mixed, TOPIC, {5}).aborts.tuples()
    assert max(piece.rows for piece in found) <= TWO.ids
    assert list(pieces(keys, lambda key: mixed[str(key)], ())) == []


def test_a_part_whose_ids_are_out_of_order_is_an_error() -> None:
    backwards = encode_snapshot(Snapshot(TOPIC, (5, 9), aborts_of([(0, 1, 5, 1), (0, 0, 5, 0)])))
    key = PartKey(1, TWO, None, TOPIC)
    with pytest.raises(FormatError, match="order of their markers"):
        list(pieces([key], lambda _key: backwards, {5}))
