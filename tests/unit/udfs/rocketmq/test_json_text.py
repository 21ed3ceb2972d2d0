from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.rocketmq.json_text import BadJsonError, compact, has_lines, parse, pretty

# as a broker 5.3.3 wrote it
OFFSETS = """{
\t"dataVersion":{
\t\t"counter":0,
\t\t"stateVersion":0,
\t\t"timestamp":1795415710816
\t},
\t"groupTopicMap":{
\t\t"orders-b":["Orders"],
\t\t"tx":["HALF","OP"]
\t},
\t"lmqOffsetTable":{},
\t"offsetTable":{
\t\t"Orders@orders-b":{0:50,1:50
\t\t}
\t}
}"""

# as a broker 5.5.0 wrote it, but for names
LATER_OFFSETS = """{
\t"dataVersion":{
\t\t"counter":0,
\t\t"stateVersion":0,
\t\t"timestamp":1795518893229
\t},
\t"groupTopicMap":{
\t\t"CID_RMQ_SYS_TRANS":[
\t\t\t"RMQ_SYS_TRANS_HALF_TOPIC",
\t\t\t"RMQ_SYS_TRANS_OP_HALF_TOPIC"
\t\t],
\t\t"old":[
\t\t\t"Old"
\t\t]
\t},
\t"lmqOffsetTable":{},
\t"offsetTable":{},
\t"pullOffsetTable":{
\t\t"Orders@readers":{
\t\t\t0:450,
\t\t\t1:425
\t\t},
\t\t"%LMQ%left@readers":{
\t\t\t0:25
\t\t}
\t}
}"""

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text().filter(lambda key: not key.startswith("\x01")), inner)
        | st.dictionaries(st.integers(), inner)
    ),
)


def test_a_brokers_file_is_read_and_written_byte_by_byte() -> None:
    table = parse(OFFSETS)
    assert table["offsetTable"] == {"Orders@orders-b": {0: 50, 1: 50}}
    assert pretty(table) == OFFSETS
    assert not has_lines(OFFSETS)


def test_a_later_brokers_file_is_written_in_its_own_lines() -> None:
    table = parse(LATER_OFFSETS)
    assert table["pullOffsetTable"]["Orders@readers"] == {0: 450, 1: 425}
    assert pretty(table, in_lines=has_lines(LATER_OFFSETS)) == LATER_OFFSETS


@pytest.mark.parametrize("text", ['{"a":"\\n\\t1:"}', '{"a":{0:1,1:2\n\t}\n}', "{}"])
def test_only_a_line_that_starts_with_an_integer_key_counts(text: str) -> None:
    assert not has_lines(text)


@settings(max_examples=40)
@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert parse(compact(value)) == value
    assert parse(pretty(value)) == value
    assert parse(pretty(value, in_lines=True)) == value


def test_a_value_of_rocksdb_is_compact() -> None:
    assert compact({"offsetTable": {0: 10, 1: 19000}}) == '{"offsetTable":{0:10,1:19000}}'


@pytest.mark.parametrize(
    "text", ['{"a{1:2":"{3:4,5:6}"}', '{"a\\"{1:":2}', '{"a":"\\\\",1:2}'], ids=["in a string", "quote", "backslash"]
)
def test_numbers_inside_of_strings_stay_what_they_are(text: str) -> None:
    assert compact(parse(text)) == text


def test_an_integer_key_and_the_same_text_are_two_keys() -> None:
    assert parse('{1:2,"1":3}') == {1: 2, "1": 3}


@pytest.mark.parametrize("text", ["", "{", '{"a":}', "{1 2}", '{"a":1', "\0"])
def test_what_is_no_json_is_refused_with_its_position(text: str) -> None:
    with pytest.raises(BadJsonError) as error:
        parse(text)
    assert error.value.position <= len(text)


def test_a_number_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadJsonError):
        parse('{"counter":' + "9" * 5000 + "}")


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 99999999999999999999999])
def test_a_number_that_no_java_long_holds_is_refused(number: int) -> None:
    """A broker with such an offset in RocksDB does not start (NumberFormatException)."""
    with pytest.raises(BadJsonError, match=str(number)):
        parse(f'{{"offsetTable":{{"Big@g1":{{0:{number}}}}}}}')


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_the_largest_and_the_smallest_java_long_are_read(number: int) -> None:
    assert parse(f"[{number}]") == [number]


def test_a_repeated_key_is_refused() -> None:
    with pytest.raises(BadJsonError, match="twice"):
        parse('{"a@b":{0:1,0:2}}')
