"""A schema's locator: every version's ledger is in use, and a doubtful locator is an error."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.formats.errors import FormatError
from udfs.formats.schema_locator import ledger_ids, serialize_schema_locator
from udfs.proto.schema_storage_pb2 import IndexEntry, PositionInfo, SchemaLocator

# written with the classes of Pulsar 4.0.8
BY_PULSAR = base64.b64decode("ChAIARIICIC8wZYLEAAaAgECEgwIABIECAsQABoCAQISEAgBEggIgLzBlgsQABoCAQI=")


def entry(version: int, ledger_id: int) -> IndexEntry:
    return IndexEntry(version=version, position=PositionInfo(ledgerId=ledger_id, entryId=0), hash=b"h")


def test_what_pulsar_wrote_is_read() -> None:
    assert ledger_ids(BY_PULSAR) == {11, 3_000_000_000}


def test_the_ledger_of_info_counts_even_if_the_index_does_not_name_it() -> None:
    assert ledger_ids(SchemaLocator(info=entry(1, 8), index=[entry(0, 7)]).SerializeToString()) == {7, 8}
    assert ledger_ids(SchemaLocator(info=entry(0, 8)).SerializeToString()) == {8}


def test_a_ledger_with_two_versions_is_named_once() -> None:
    assert ledger_ids(serialize_schema_locator([(7, 0), (7, 1)])) == {7}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(BY_PULSAR[:-1], id="cut short"),
        pytest.param(BY_PULSAR[:18], id="info only, cut from the index"),
        pytest.param(BY_PULSAR[18:], id="no info"),
        pytest.param(b"\xff\xff", id="no protobuf"),
        pytest.param(BY_PULSAR + b"\x10\x05", id="an index that is a number"),
        pytest.param(BY_PULSAR + b"\x18\x05", id="a field of a newer version"),
        pytest.param(SchemaLocator(info=entry(0, -1)).SerializeToString(), id="ledger -1"),
        pytest.param(
            SchemaLocator(info=entry(2, 9), index=[entry(1, 8), entry(2, 9)]).SerializeToString(), id="no version 0"
        ),
        pytest.param(
            SchemaLocator(info=entry(0, 1), index=[IndexEntry(version=0, hash=b"")]).SerializePartialToString(),
            id="a version without position",
        ),
    ],
)
def test_a_doubtful_locator_is_an_error_and_never_empty(data: bytes) -> None:
    with pytest.raises(FormatError):
        ledger_ids(data)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 9)), min_size=1, max_size=6))
def test_a_locator_that_is_written_is_read_again(versions: list[tuple[int, int]]) -> None:
    assert ledger_ids(serialize_schema_locator(versions)) == {ledger_id for ledger_id, _ in versions}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_no_bytes_do_more_than_raise_a_format_error(data: bytes) -> None:
    try:
        assert ledger_ids(data)
    except FormatError as error:
        assert str(error).isprintable()  # noqa: PT017 - both ends are right here
