from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.rocketmq import metadata as m

VERSION = {"counter": 16, "stateVersion": 0, "timestamp": 1795415752540}
OFFSETS = {"dataVersion": VERSION, "groupTopicMap": {}, "offsetTable": {"T@g": {0: 10, 1: 19000}}}
LMQ_OFFSETS = OFFSETS | {"lmqOffsetTable": {"%LMQ%a@%LMQ%g": 5}}
NAMES = st.text("abc%", min_size=1, max_size=4)
TABLES = st.dictionaries(
    st.tuples(NAMES, NAMES.filter(lambda name: not name.startswith("%LMQ%"))).map("@".join),
    st.dictionaries(st.integers(0, 9), st.integers(0, 2**62)),
)


def test_rows_of_topics_are_compact_json_with_a_version_above_the_files() -> None:
    table = {"dataVersion": VERSION, "topicConfigTable": {"T": {"topicName": "T", "order": False}}}
    rows = m.topic_rows(table)
    assert rows.default == {b"T": b'{"topicName":"T","order":false}'}
    assert rows.version == {b"kvDataVersionKey": b'{"counter":17,"stateVersion":0,"timestamp":1795415752540}'}
    assert rows.forbidden == {}


def test_rows_of_groups_have_the_forbidden_ones_apart() -> None:
    table = {"dataVersion": VERSION, "forbiddenTable": {"g": {"T": 3}}, "subscriptionGroupTable": {"g": {"a": 1}}}
    rows = m.group_rows(table)
    assert (rows.default, rows.forbidden) == ({b"g": b'{"a":1}'}, {b"g": b'{"T":3}'})
    back = m.groups_table(rows)
    assert {**back, "dataVersion": VERSION} == table


def test_an_lmq_groups_offset_is_an_entry_like_the_others() -> None:
    rows = m.offset_rows(LMQ_OFFSETS)
    assert rows.default == {
        b"T@g": b'{"offsetTable":{0:10,1:19000}}',
        b"%LMQ%a@%LMQ%g": b'{"offsetTable":{0:5}}',
    }


def test_back_in_the_file_of_an_lmq_broker_it_has_its_own_table_again() -> None:
    back = m.offsets_table(m.offset_rows(LMQ_OFFSETS), is_lmq=True)
    assert back["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 5}
    assert back["offsetTable"] == {"T@g": {0: 10, 1: 19000}}
    assert back["groupTopicMap"] == {"g": ["T"]}


def test_a_broker_without_lmq_reads_them_all_in_one_table() -> None:
    back = m.offsets_table(m.offset_rows(LMQ_OFFSETS), is_lmq=False)
    assert back["offsetTable"] == {"T@g": {0: 10, 1: 19000}, "%LMQ%a@%LMQ%g": {0: 5}}
    assert "lmqOffsetTable" not in back


def test_queue_ids_in_quotation_marks_as_a_broker_writes_them_into_rows_are_queue_ids() -> None:
    written = {b"T@g": b'{"offsetTable":{"0":60,"1":61}}', b"%LMQ%a@%LMQ%g": b'{"offsetTable":{"0":9}}'}
    back = m.offsets_table(m.ConfigRows(written, {}, {}), is_lmq=True)
    assert back["offsetTable"] == {"T@g": {0: 60, 1: 61}}
    assert back["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 9}


@pytest.mark.parametrize(
    "row", [b'{"offsetTable":{"a":1}}', b'{"offsetTable":{"0":"1"}}', b'{"offsetTable":[]}', b"{}"]
)
def test_a_row_without_offsets_by_queue_is_refused(row: bytes) -> None:
    with pytest.raises(m.BadTableError):
        m.offsets_table(m.ConfigRows({b"T@g": row}, {}, {}), is_lmq=False)


@settings(max_examples=40)
@given(TABLES, st.booleans())
def test_offsets_come_back_whatever_they_are(offsets: dict[str, dict[int, int]], is_lmq: bool) -> None:
    table = {"dataVersion": VERSION, "offsetTable": offsets}
    back = m.offsets_table(m.offset_rows(table), is_lmq=is_lmq)
    assert back["offsetTable"] == offsets
    assert back["dataVersion"]["counter"] == VERSION["counter"] + 1


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"dataVersion": VERSION},
        {"dataVersion": VERSION, "offsetTable": []},
        {"dataVersion": VERSION, "offsetTable": {"T@g": {"0": 1}}},
        {"dataVersion": VERSION, "offsetTable": {"T@g": {0: "1"}}},
        {"dataVersion": VERSION, "offsetTable": {"T@g": {0: True}}},
        {"dataVersion": {"counter": None}, "offsetTable": {}},
        {"dataVersion": VERSION, "offsetTable": {7: {0: 1}}},
        {"dataVersion": VERSION, "offsetTable": {"T@g": {0: -1}}},
        {"dataVersion": VERSION, "offsetTable": {"T@g": {0: 1.0}}},
        {"dataVersion": VERSION, "offsetTable": {"T@g": {2**31: 1}}},
        {"dataVersion": VERSION, "offsetTable": {"T@g": {-1: 1}}},
        {"dataVersion": VERSION, "offsetTable": {}, "lmqOffsetTable": {"%LMQ%a@g": -1}},
        {"dataVersion": {"counter": 2**63 - 1}, "offsetTable": {}},
        {"dataVersion": VERSION, "offsetTable": {"\ud800@g": {0: 1}}},
    ],
)
def test_a_file_that_holds_something_else_is_refused(table: Any) -> None:
    with pytest.raises(m.BadTableError):
        m.offset_rows(table)


def test_a_row_that_is_no_json_is_refused_by_name() -> None:
    with pytest.raises(m.BadTableError, match="T@g"):
        m.offsets_table(m.ConfigRows({b"T@g": b"{"}, {}, {}), is_lmq=False)


def test_a_database_without_a_version_has_no_counter() -> None:
    assert m.counter_of(m.ConfigRows({}, {}, {})) is None
    assert m.counter_of(m.offset_rows(OFFSETS)) == 17


@pytest.mark.parametrize("is_lmq", [True, False])
def test_offsets_of_rows_that_a_broker_wrote_come_back_although_it_quotes_the_queue_ids(is_lmq: bool) -> None:
    # rows of a real broker 5.3.3
    rows = m.ConfigRows(
        {b"%LMQ%left@%LMQ%readers": b'{"offsetTable":{"0":9}}', b"Later@laters": b'{"offsetTable":{"0":4,"1":6}}'},
        {},
        {},
    )
    table = m.offsets_table(rows, is_lmq=is_lmq)
    others = {"Later@laters": {0: 4, 1: 6}}
    if is_lmq:
        assert (table["lmqOffsetTable"], table["offsetTable"]) == ({"%LMQ%left@%LMQ%readers": 9}, others)
    else:
        assert table["offsetTable"] == {"%LMQ%left@%LMQ%readers": {0: 9}, **others}


def test_a_row_whose_queue_ids_are_no_numbers_is_refused() -> None:
    with pytest.raises(m.BadTableError, match="T@g"):
        m.offsets_table(m.ConfigRows({b"T@g": b'{"offsetTable":{"one":1}}'}, {}, {}), is_lmq=True)
