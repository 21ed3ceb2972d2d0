import pytest

from udfs.snapshots.keys import Capacity, PartKey, SegmentKey, is_topic, part_key_of, segment_key_of

TOPIC = "persistent://t/ns/orders-1-end"


@pytest.mark.parametrize("number", [1, 12, None])
def test_a_part_key_comes_back(number: int | None) -> None:
    key = PartKey(3, Capacity(500, 4000), number, TOPIC)
    assert part_key_of(str(key)) == key
    assert segment_key_of(str(key)) is None
    assert not is_topic(str(key))


def test_a_segment_key_comes_back() -> None:
    key = SegmentKey(12, TOPIC)
    assert segment_key_of(str(key)) == key
    assert part_key_of(str(key)) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        TOPIC,
        "parts-0-1-40-1-" + TOPIC,
        "parts-1-1-40-01-" + TOPIC,
        "parts-1-1-40-x-" + TOPIC,
        "parts-1-1-40-end-orders",
        "parts-1-1-40-end-persistent://t/ns/",
        "multiple-01-" + TOPIC,
        "multiple-1-orders",
        "multiple-\u0661-" + TOPIC,
    ],
)
def test_other_keys_are_neither(key: str) -> None:
    assert part_key_of(key) is None
    assert segment_key_of(key) is None


@pytest.mark.parametrize("capacity", [Capacity(0, 40), Capacity(1, 39)])
def test_a_capacity_into_which_no_id_fits_is_refused(capacity: Capacity) -> None:
    with pytest.raises(ValueError, match="at least one id"):
        capacity.checked()
