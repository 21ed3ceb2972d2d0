"""Ledger znodes: golden vectors of BookKeeper's own test for all three versions, and bytes that are no ledger."""

import base64
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import (
    bookies_of,
    parse_ledger_metadata,
    parse_message,
    parse_placed,
    serialize_v3,
    to_message,
)
from udfs.proto.bookkeeper_pb2 import LedgerMetadataFormat
from udfs.records import LedgerMetadata, LedgerState

HEADER = b"BookieMetadataFormatVersion\t"
VERSION_1 = base64.b64decode(
    "Qm9va2llTWV0YWRhdGFGb3JtYXRWZXJzaW9uCTEKMgozCjAKMAkxOTIuMC4yLjE6MTIzNAkxOTIu"
    "MC4yLjI6MTIzNAkxOTIuMC4yLjM6MTIzNAotMTAyCUNMT1NFRA=="
)
VERSION_2 = (
    HEADER
    + b"2\n"
    + b"quorumSize: 2\nensembleSize: 3\nlength: 0\nlastEntryId: -1\nstate: IN_RECOVERY\n"
    + b'segment {\n  ensembleMember: "192.0.2.1:1234"\n  ensembleMember: "192.0.2.2:1234"\n'
    + b'  ensembleMember: "192.0.2.3:1234"\n  firstEntryId: 0\n}\n'
    + b'digestType: CRC32\npassword: "passwd"\nackQuorumSize: 2\n'
)
VERSION_2_CTIME = VERSION_2 + b"ctime: 1544002383075\n"
VERSION_3 = base64.b64decode(
    "Qm9va2llTWV0YWRhdGFGb3JtYXRWZXJzaW9uCTMKYAgCEAMYACD///////////8BKAEyMgoOMTkyL"
    "jAuMi4xOjMxODEKDjE5Mi4wLjIuMjozMTgxCg4xOTIuMC4yLjM6MzE4MRAAOANCBmZvb2JhckgB"
    "UP///////////wFgAA=="
)
CLOSED = LedgerMetadata(
    state=LedgerState.CLOSED,
    length_bytes=4096,
    last_entry_id=9,
    ctime_ms=1_700_000_000_000,
    custom_metadata={"application": b"pulsar", "pulsar/compactedTo": b"\x08\x01\xff"},
)
IN_RECOVERY = LedgerMetadata(
    state=LedgerState.IN_RECOVERY, length_bytes=0, last_entry_id=-1, ctime_ms=None, custom_metadata={}
)


def v3(message: LedgerMetadataFormat) -> bytes:
    body = message.SerializePartialToString()
    assert len(body) < 128
    return HEADER + b"3\n" + bytes([len(body)]) + body


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(VERSION_1, IN_RECOVERY, id="version 1"),
        pytest.param(
            VERSION_1.replace(b"-102\tCLOSED", b"17\tCLOSED").replace(b"\n0\n", b"\n99\n", 1),
            LedgerMetadata(
                state=LedgerState.CLOSED, length_bytes=99, last_entry_id=17, ctime_ms=None, custom_metadata={}
            ),
            id="version 1, closed",
        ),
        pytest.param(
            VERSION_1.replace(b"-102\tCLOSED", b"-1\tCLOSED"),
            LedgerMetadata(
                state=LedgerState.CLOSED, length_bytes=0, last_entry_id=-1, ctime_ms=None, custom_metadata={}
            ),
            id="version 1, closed and empty",
        ),
        pytest.param(
            VERSION_1.replace(b"-102\tCLOSED", b""),
            LedgerMetadata(state=LedgerState.OPEN, length_bytes=0, last_entry_id=-1, ctime_ms=None, custom_metadata={}),
            id="1, open",
        ),
        pytest.param(VERSION_2, IN_RECOVERY, id="version 2"),
        pytest.param(VERSION_2_CTIME, replace(IN_RECOVERY, ctime_ms=1_544_002_383_075), id="version 2 with ctime"),
        pytest.param(
            VERSION_3,
            LedgerMetadata(state=LedgerState.OPEN, length_bytes=0, last_entry_id=-1, ctime_ms=None, custom_metadata={}),
            id="version 3, whose ctime -1 means none",
        ),
    ],
)
def test_every_version_that_bookkeeper_wrote_is_read(data: bytes, expected: LedgerMetadata) -> None:
    assert parse_ledger_metadata(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00" * 1000, id="zeros"),
        pytest.param(HEADER, id="header only"),
        pytest.param(HEADER + b"3", id="no end of the version"),
        pytest.param(HEADER + b"3\n", id="version 3 without length"),
        pytest.param(HEADER + b"3\n\x00", id="version 3, empty message"),
        pytest.param(HEADER + b"3\n\x80\x80\x80\x80\x80\x01", id="endless varint"),
        pytest.param(HEADER + b"foobar\nblahblah", id="version is a text"),
        pytest.param(HEADER + b"123456789123456789\nblahblah", id="version too long"),
        pytest.param(HEADER + b"4\n", id="version 4"),
        pytest.param(HEADER + b"03\n" + VERSION_3[30:], id="version 03"),
        pytest.param(VERSION_3[:-1], id="one byte short"),
        pytest.param(VERSION_3 + b"\x00", id="one byte too many"),
        pytest.param(VERSION_3 + b"\x28\x03", id="after the message, a field that would close the ledger"),
        pytest.param(b" " + VERSION_3, id="a byte before the header"),
        pytest.param(VERSION_2.replace(b"state: IN_RECOVERY\n", b""), id="version 2 without state"),
        pytest.param(VERSION_2.replace(b"IN_RECOVERY", b"LOST"), id="version 2 with an unknown state"),
        pytest.param(VERSION_2 + b"state: CLOSED\n", id="version 2 with two states"),
        pytest.param(VERSION_2 + b"\xff", id="version 2 that is not UTF-8"),
        pytest.param(VERSION_1.replace(b"\n3\n", b"\nx\n", 1), id="version 1 with a text for the ensemble size"),
        pytest.param(HEADER + b"1\n2\n3\n0\n", id="version 1 without ensemble"),
        pytest.param(HEADER + b"1\n2\n3\n0\n5\tCLOSED", id="version 1 closed without ensemble"),
        pytest.param(HEADER + b"1\n2\n3\n0\n0\n5\tCLOSED", id="version 1, ensemble without bookies"),
        pytest.param(HEADER + b"1\n2\n3\n", id="version 1 cut short"),
        pytest.param(HEADER + b"1\n2\n3\n0\n0\tb:1\n5\tCLOSED\n9\tb:1", id="version 1, lines after the last"),
    ],
)
def test_anything_else_is_an_error_and_never_a_ledger(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        parse_ledger_metadata(data)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("field", ["quorumSize", "ensembleSize", "length", "state", "lastEntryId"])
def test_a_closed_ledger_must_contain_its_length_and_last_entry(field: str) -> None:
    message = LedgerMetadataFormat.FromString(to_message(CLOSED))
    message.ClearField(field)
    with pytest.raises(FormatError):
        parse_message(message.SerializePartialToString())


def test_a_state_of_a_future_version_is_an_error() -> None:
    data = v3(LedgerMetadataFormat(quorumSize=1, ensembleSize=1, length=0, state=LedgerMetadataFormat.CLOSED))
    with pytest.raises(FormatError, match="state"):
        parse_ledger_metadata(data.replace(b"\x28\x03", b"\x28\x04"))


def test_length_and_last_entry_of_an_unclosed_ledger_are_ignored() -> None:
    message = LedgerMetadataFormat.FromString(to_message(CLOSED))
    message.state = LedgerMetadataFormat.OPEN
    parsed = parse_message(message.SerializeToString())
    assert (parsed.state, parsed.length_bytes, parsed.last_entry_id) == (LedgerState.OPEN, 0, -1)


@pytest.mark.parametrize(("ctime", "expected"), [(-1, None), (0, None), (1, 1), (1_700_000_000_000, 1_700_000_000_000)])
def test_a_creation_time_of_zero_or_less_counts_as_not_recorded(ctime: int, expected: int | None) -> None:
    assert parse_message(to_message(replace(CLOSED, ctime_ms=ctime))).ctime_ms == expected


def test_unknown_fields_are_skipped() -> None:
    assert parse_message(to_message(CLOSED) + b"\xf8\x07\x01") == CLOSED


def test_two_values_for_one_custom_key_are_an_error() -> None:
    message = LedgerMetadataFormat.FromString(to_message(CLOSED))
    message.customMetadata.add(key="application", value=b"other")
    with pytest.raises(FormatError, match="twice"):
        parse_message(message.SerializeToString())


def test_a_custom_key_that_is_not_text_is_an_error() -> None:
    with pytest.raises(FormatError, match="UTF-8"):
        parse_message(to_message(CLOSED).replace(b"application", b"\xff" * 11))


@settings(max_examples=100, deadline=None)
@given(
    state=st.sampled_from(LedgerState),
    length_bytes=st.integers(0, 2**63 - 1),
    last_entry_id=st.integers(-1, 2**63 - 1),
    ctime_ms=st.none() | st.integers(1, 2**63 - 1),
    custom=st.dictionaries(st.text(max_size=20), st.binary(max_size=200), max_size=4),
)
def test_written_metadata_are_read_again(
    state: LedgerState, length_bytes: int, last_entry_id: int, ctime_ms: int | None, custom: dict[str, bytes]
) -> None:
    closed = state is LedgerState.CLOSED
    metadata = LedgerMetadata(
        state=state,
        length_bytes=length_bytes if closed else 0,
        last_entry_id=last_entry_id if closed else -1,
        ctime_ms=ctime_ms,
        custom_metadata=custom,
    )
    assert parse_ledger_metadata(serialize_v3(metadata, bookies=("a:1", "b:2"))) == metadata


@settings(max_examples=200, deadline=None)
@given(prefix=st.sampled_from([b"", HEADER + b"1\n", HEADER + b"2\n", HEADER + b"3\n"]), tail=st.binary(max_size=80))
def test_no_bytes_do_more_than_raise_a_format_error(prefix: bytes, tail: bytes) -> None:
    try:
        parse_ledger_metadata(prefix + tail)
    except FormatError as error:
        assert str(error).isprintable()  # noqa: PT017 - both ends are right here


@pytest.mark.parametrize(
    ("data", "bookies"),
    [
        pytest.param(VERSION_1, {"192.0.2.1:1234", "192.0.2.2:1234", "192.0.2.3:1234"}, id="version 1"),
        pytest.param(VERSION_2, {"192.0.2.1:1234", "192.0.2.2:1234", "192.0.2.3:1234"}, id="version 2"),
        pytest.param(serialize_v3(CLOSED, bookies=("b1:3181", "b2:3181")), {"b1:3181", "b2:3181"}, id="version 3"),
    ],
)
def test_every_bookie_that_a_ledger_names_is_returned(data: bytes, bookies: set[str]) -> None:
    assert bookies_of(data) == bookies
    assert bookies_of(data.replace(b"-102\tCLOSED", b"17\tCLOSED")) == bookies


def test_bytes_that_are_no_ledger_have_no_bookies() -> None:
    with pytest.raises(FormatError):
        bookies_of(b"garbage")


THREE = ("192.0.2.1:1234", "192.0.2.2:1234", "192.0.2.3:1234")


@pytest.mark.parametrize(
    ("data", "digest_bytes", "segments"),
    [
        pytest.param(VERSION_1, 8, ((0, THREE),), id="version 1"),
        pytest.param(VERSION_1.removesuffix(b"\n-102\tCLOSED"), 8, ((0, THREE),), id="version 1, open"),
        pytest.param(
            VERSION_1.replace(b"\n-102", b"\n7\t192.0.2.9:1\t192.0.2.8:1\n11"),
            8,
            ((0, THREE), (7, ("192.0.2.9:1", "192.0.2.8:1"))),
            id="version 1, two segments",
        ),
        pytest.param(VERSION_2, 8, ((0, THREE),), id="version 2"),
        pytest.param(VERSION_2.replace(b"CRC32", b"HMAC"), 20, ((0, THREE),), id="version 2, HMAC"),
        pytest.param(VERSION_2.replace(b"digestType: CRC32\n", b""), 8, ((0, THREE),), id="version 2, no digest type"),
        pytest.param(VERSION_3, 4, ((0, ("192.0.2.1:3181", "192.0.2.2:3181", "192.0.2.3:3181")),), id="version 3"),
    ],
)
def test_the_bookies_of_a_ledgers_entries(
    data: bytes, digest_bytes: int, segments: tuple[tuple[int, tuple[str, ...]], ...]
) -> None:
    placed = parse_placed(data)
    assert placed.metadata == parse_ledger_metadata(data)
    assert (placed.write_quorum, placed.segments) == (2, segments)
    assert placed.digest_bytes == digest_bytes


@given(st.binary(max_size=200))
def test_what_is_no_ledger_has_no_bookies_either(data: bytes) -> None:
    for damaged in (data, HEADER + b"1\n" + data, HEADER + b"2\n" + data, HEADER + b"3\n" + data):
        try:
            expected: LedgerMetadata | None = parse_ledger_metadata(damaged)
        except FormatError:
            expected = None
        if expected is None:
            with pytest.raises(FormatError):
                parse_placed(damaged)
        else:
            assert parse_placed(damaged).metadata == expected
