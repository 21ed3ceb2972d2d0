import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.rocketmq import rows
from udfs.rocketmq.queue_units import Units

# Each vector is written out by hand from RocksDBConsumeQueueTable and RocksDBConsumeQueueOffsetTable.
KEY = bytes.fromhex("00000003 01 616263 01 00000007 01 0000000000000102".replace(" ", ""))
VALUE = bytes.fromhex("0000000000001234 000000ff fffffffffffffffe 00000190aabbccdd".replace(" ", ""))
MAX_KEY = bytes.fromhex("00000003 01 616263 01 6d6178 01 00000007".replace(" ", ""))
MIN_KEY = bytes.fromhex("00000003 01 616263 01 6d696e 01 00000007".replace(" ", ""))
BOUND = bytes.fromhex("0000000000001234 0000000000000102".replace(" ", ""))
CHECKPOINT_KEY = bytes.fromhex("00000010 01 434845434b504f494e545f544f504943 01 6d6178 01 00000000".replace(" ", ""))

TOPICS = st.binary(min_size=1, max_size=12)
QUEUES = st.integers(0, 2**31 - 1)
OFFSETS = st.integers(0, 2**62)


def one_unit() -> Units:
    return Units(np.array([0x1234]), np.array([255], dtype=np.int32), np.array([-2]))


def test_the_key_of_a_unit() -> None:
    assert rows.unit_key(b"abc", 7, 0x102) == KEY
    assert rows.unit_keys(rows.queue_prefix(b"abc", 7), 0x101, 2)[1] == KEY
    assert rows.decode_key(KEY) == rows.RowKey(b"abc", 7, 0x102)


def test_the_value_of_a_unit() -> None:
    assert rows.unit_values(one_unit(), np.array([0x190AABBCCDD])) == [VALUE]


def test_values_of_joined_columns_have_the_order_of_the_disk() -> None:
    """numpy drops the order of bytes where it joins arrays; a broker then answers every read with nothing."""
    twice = Units(*(np.concatenate((column, column)) for column in one_unit()))  # type: ignore[arg-type]
    assert rows.unit_values(twice, np.array([0x190AABBCCDD] * 2)) == [VALUE, VALUE]


def test_the_rows_of_a_queue_and_the_checkpoint() -> None:
    assert rows.max_key(b"abc", 7) == MAX_KEY
    assert rows.min_key(b"abc", 7) == MIN_KEY
    assert rows.bound_value(0x1234, 0x102) == BOUND
    assert rows.decode_bound(BOUND) == (0x1234, 0x102)
    assert rows.checkpoint_key() == CHECKPOINT_KEY
    assert rows.checkpoint_value(0x1234) == bytes.fromhex("0000000000001234")
    assert rows.decode_checkpoint(bytes.fromhex("0000000000001234")) == 0x1234


@given(st.lists(st.tuples(TOPICS, QUEUES, OFFSETS), min_size=2, max_size=6))
def test_keys_sort_by_length_of_the_name_then_name_queue_and_offset(drawn: list[tuple[bytes, int, int]]) -> None:
    by_bytes = sorted(drawn, key=lambda row: rows.unit_key(*row))
    assert by_bytes == sorted(drawn, key=lambda row: (len(row[0]), *row))


@given(TOPICS, QUEUES, OFFSETS, st.integers(1, 5))
def test_keys_and_values_are_read_back(topic: bytes, queue_id: int, first: int, count: int) -> None:
    prefix = rows.queue_prefix(topic, queue_id)
    keys = rows.unit_keys(prefix, first, count)
    assert keys == [rows.unit_key(topic, queue_id, first + each) for each in range(count)]
    assert [rows.decode_key(key) for key in keys] == [(topic, queue_id, first + each) for each in range(count)]
    assert rows.key_offsets(keys, prefix).tolist() == list(range(first, first + count))
    assert rows.decode_bound_key(rows.max_key(topic, queue_id)) == (topic, "max", queue_id)
    assert rows.decode_bound_key(rows.min_key(topic, queue_id)) == (topic, "min", queue_id)


def test_values_are_read_back() -> None:
    units, times = rows.decode_values([VALUE, VALUE])
    assert [column.tolist() for column in units] == [[0x1234] * 2, [255] * 2, [-2] * 2]
    assert times.tolist() == [0x190AABBCCDD] * 2


@pytest.mark.parametrize(
    "key", [b"", KEY[:-1], KEY + b"\0", KEY.replace(b"\x01", b"\x02", 1), struct.pack(">i", -1) + KEY]
)
def test_what_is_no_key_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        rows.decode_key(key)


@pytest.mark.parametrize("key", [b"", MAX_KEY[:-1], MAX_KEY.replace(b"max", b"mux")])
def test_what_is_no_key_of_a_bound_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        rows.decode_bound_key(key)


def test_values_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="28"):
        rows.decode_values([VALUE + b"\0"])
    with pytest.raises(ValueError, match="16"):
        rows.decode_bound(BOUND[:-1])
    with pytest.raises(ValueError, match="8"):
        rows.decode_checkpoint(b"")
    with pytest.raises(ValueError, match="bytes"):
        rows.key_offsets([KEY[:-1]], KEY[:-8])
