"""Message ids as the connector delivers them and as Java prints them."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.formats.errors import FormatError
from udfs.formats.message_id import MessagePosition, message_id_text, parse_message_id, serialize_message_id


@pytest.mark.parametrize(
    ("data", "position", "text"),
    [
        pytest.param(base64.b64decode("CAUQBzAA"), MessagePosition(5, 7), "5:7:-1", id="no partition"),
        pytest.param(base64.b64decode("CAUQBxgCMAA="), MessagePosition(5, 7, 2), "5:7:2", id="partition"),
        pytest.param(
            base64.b64decode("CIC8wZYLEAAYACADMAo="),
            MessagePosition(3_000_000_000, 0, 0, 3),
            "3000000000:0:0:3",
            id="batch",
        ),
        pytest.param(base64.b64decode("CAUQByAAMAE="), MessagePosition(5, 7, -1, 0), "5:7:-1:0", id="first of a batch"),
        pytest.param(
            bytes([8, 11, 16, 101, 24, 0, 32, 1]), MessagePosition(11, 101, 0, 1), "11:101:0:1", id="connector"
        ),
    ],
)
def test_message_ids_written_by_pulsar_are_read_and_printed_as_java_does(
    data: bytes, position: MessagePosition, text: str
) -> None:
    assert parse_message_id(data) == position
    assert str(position) == text
    assert message_id_text(position.ledger_id, position.entry_id, position.partition, position.batch_index) == text


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x08\x05", id="no entry"),
        pytest.param(b"\x08", id="cut short"),
        pytest.param(base64.b64decode("CP///////////wEQ////////////ATAA"), id="MessageId.earliest"),
    ],
)
def test_bytes_that_are_no_message_id_are_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_message_id(data)


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        MessagePosition,
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**31 - 1),
        st.integers(-1, 2**31 - 1),
    )
)
def test_a_message_id_that_is_written_is_read_again(position: MessagePosition) -> None:
    assert parse_message_id(serialize_message_id(position)) == position
