"""Index objects of offloaded ledgers: bytes written by Pulsar 4.0.8's offloader, and lengths that lie."""

import base64
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.formats.errors import FormatError
from udfs.formats.offload_index import (
    IndexEntry,
    ObjectName,
    OffloadIndex,
    index_name,
    object_name,
    parse_object_name,
    parse_offload_index,
    serialize_offload_index,
)
from udfs.records import LedgerMetadata, LedgerState

UUID = "fedcba98-7654-3210-0123-456789abcdef"
METADATA = LedgerMetadata(
    state=LedgerState.CLOSED,
    length_bytes=1000,
    last_entry_id=9,
    ctime_ms=1_700_000_000_000,
    custom_metadata={
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": b"public/default/persistent/t-partition-0",
    },
)
INDEX = OffloadIndex(METADATA, 2048, 128, (IndexEntry(0, 1, 0), IndexEntry(6, 2, 1024)))
BY_PULSAR = base64.b64decode(
    "3kfeRwAAAOgAAAAAAAAIAAAAAAAAAACAAAAAAgAAAKAIARABGOgHIAkoAzISCg4xMjcuMC4wLjE6MzE4MRAAOANIAVCA0JX/vDFaFQoLYXBwbGlj"
    "YXRpb24SBnB1bHNhclobCgljb21wb25lbnQSDm1hbmFnZWQtbGVkZ2VyWkAKFXB1bHNhci9tYW5hZ2VkLWxlZGdlchIncHVibGljL2RlZmF1bHQv"
    "cGVyc2lzdGVudC90LXBhcnRpdGlvbi0wAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAABgAAAAIAAAAAAAAEAA=="
)


def with_int(offset: int, value: int) -> bytes:
    return BY_PULSAR[:offset] + struct.pack(">i", value) + BY_PULSAR[offset + 4 :]


def test_what_pulsar_wrote_is_read() -> None:
    assert parse_offload_index(BY_PULSAR) == INDEX


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(BY_PULSAR[:31], id="cut within the header"),
        pytest.param(BY_PULSAR[:-1], id="one byte short"),
        pytest.param(BY_PULSAR + b"\x00", id="one byte too many"),
        pytest.param(with_int(0, 0x12345678), id="another magic"),
        pytest.param(with_int(4, 231), id="length too small"),
        pytest.param(with_int(4, 2**31 - 1), id="length of gigabytes"),
        pytest.param(with_int(24, 1), id="entry count too small"),
        pytest.param(with_int(24, 3), id="entry count too large"),
        pytest.param(with_int(24, -1), id="negative entry count"),
        pytest.param(with_int(28, 140), id="metadata length too small"),
        pytest.param(with_int(28, -1), id="negative metadata length"),
        pytest.param(
            BY_PULSAR[:4] + struct.pack(">i", 44) + BY_PULSAR[8:24] + struct.pack(">ii", 1, -8) + b"\x00" * 12,
            id="negative metadata length that adds up",
        ),
        pytest.param(with_int(28, 2**31 - 1), id="metadata length of gigabytes"),
        pytest.param(
            with_int(28, 180)[:24] + struct.pack(">ii", 1, 180) + BY_PULSAR[32:], id="metadata takes an entry"
        ),
        pytest.param(with_int(8, -1), id="negative data length"),
        pytest.param(with_int(16, -1), id="negative header length"),
    ],
)
def test_an_index_whose_lengths_lie_is_an_error(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        parse_offload_index(data)
    assert str(caught.value).isprintable()


def test_an_index_of_a_streaming_offload_is_refused_by_name() -> None:
    with pytest.raises(FormatError, match="streaming"):
        parse_offload_index(b"\x3d\x1f\xb0\xbc" + b"\x00" * 100)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.lists(
        st.builds(IndexEntry, st.integers(0, 2**63 - 1), st.integers(1, 10_000), st.integers(0, 2**63 - 1)), max_size=4
    ),
)
def test_an_index_that_is_written_is_read_again(data_bytes: int, entries: list[IndexEntry]) -> None:
    parsed = parse_offload_index(serialize_offload_index(METADATA, data_bytes, entries))
    assert parsed == OffloadIndex(METADATA, data_bytes, 128, tuple(entries))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=100), st.integers(0, len(BY_PULSAR)))
def test_no_bytes_do_more_than_raise_a_format_error(data: bytes, at: int) -> None:
    for damaged in (data, BY_PULSAR[:at] + data + BY_PULSAR[at + len(data) :]):
        try:
            parse_offload_index(damaged)
        except FormatError as error:
            assert str(error).isprintable()  # noqa: PT017 - both ends are right here


def test_objects_are_named_as_pulsars_offloader_names_them() -> None:
    assert object_name(UUID, 30) == f"{UUID}-ledger-30"
    assert index_name(UUID, 30) == f"{UUID}-ledger-30-index"
    assert parse_object_name(f"{UUID}-ledger-30") == ObjectName(UUID, 30, is_index=False)
    assert parse_object_name(f"{UUID}-ledger-30-index") == ObjectName(UUID, 30, is_index=True)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("", id="empty"),
        pytest.param(UUID, id="data object of a streaming offload"),
        pytest.param(f"{UUID}-index", id="index object of a streaming offload"),
        pytest.param(f"{UUID.upper()}-ledger-30", id="capitals"),
        pytest.param(f"{UUID}-ledger-030", id="leading zero"),
        pytest.param(f"{UUID}-ledger--1", id="negative id"),
        pytest.param(f"{UUID}-ledger-9223372036854775808", id="beyond 63 bits"),
        pytest.param(f"{UUID}-ledger-30-indexes", id="other suffix"),
        pytest.param(f"{UUID}-ledger-30\n", id="newline"),
        pytest.param(f"x/{UUID}-ledger-30", id="prefix"),
        pytest.param(f"{'-' * 36}-ledger-30", id="dashes instead of a UUID"),
    ],
)
def test_other_keys_are_no_ledgers_objects(key: str) -> None:
    assert parse_object_name(key) is None


@pytest.mark.parametrize(("uuid", "ledger_id"), [("x", 1), (UUID.upper(), 1), (UUID, -1), (UUID, 2**63)])
def test_an_impossible_object_has_no_name(uuid: str, ledger_id: int) -> None:
    with pytest.raises(ValueError, match="is no"):
        object_name(uuid, ledger_id)
