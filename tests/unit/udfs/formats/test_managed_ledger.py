"""A topic's and a cursor's znode: bytes written by Pulsar 4.0.8 itself, and every doubt that must be an error."""

import base64
from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.formats.compression import MAX_UNCOMPRESSED_BYTES, Compression, wrap
from udfs.formats.errors import FormatError
from udfs.formats.java_uuid import uuid_halves, uuid_text
from udfs.formats.managed_ledger import (
    AcknowledgedRange,
    LedgerInfo,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    OffloadState,
    acknowledged_ranges,
    in_use_ids,
    parse_cursor,
    parse_managed_ledger,
    serialize_cursor,
    serialize_managed_ledger,
)
from udfs.proto import managed_ledger_pb2 as pb

# MetaStoreImpl.compressLedgerInfo and compressCursorInfo of Pulsar 4.0.8, for each compression type
LEDGERS_BY_PULSAR = {
    Compression.NONE: (
        "CkgIBRAKGOgHIIDQlf+8MSo4CJDk0LKH067u/gEQ75uvzfis0ZEBGAEgASiA0JX/vDEyFgoGYXdzLXMzEgwKBmJ1Y2tldBIC"
        "YjEKDggHEAoY6AcggdCV/7wxCggIgLzBlgsgABoGCgFrEgF2"
    ),
    Compression.LZ4: (
        "R3gAAAAECAEQbPIdCkgIBRAKGOgHIIDQlf+8MSo4CJDk0LKH067u/gEQ75uvzfis0ZEBGAEgASgiAPINMhYKBmF3cy1zMxIM"
        "CgZidWNrZXQSAmIxCg4IB0oAEYFKAPADCggIgLzBlgsgABoGCgFrEgF2"
    ),
    Compression.ZLIB: (
        "R3gAAAAECAIQbHic4vLgYBXgknjBrtBwYer/PYZaFhwTnlzY1H553bt/jALvZ68/+2PNxYmMEowKjBoQFUZiXGyJ5cW6xcZC"
        "PFxsSaXJ2aklQkxJhlx8HOwQkxrB6rg4OBr2HJzGrcAgxcbFmC3EWAYAAAD//w=="
    ),
    Compression.ZSTD: (
        "R3gAAAAECAMQbCi1L/0kbD0DALQFCkgIBRAKGOgHIIDQlf+8MSo4CJDk0LKH067u/gEQ75uvzfis0ZEBGAEgASgyFgoGYXdz"
        "LXMzEgwKBmJ1Y2tldBICYjEKDggHgQoICIC8wZYLIAAaBgoBaxIBdgMAIARNGI5lUGVwuIzT"
    ),
    Compression.SNAPPY: (
        "R3gAAAAECAQQbGywCkgIBRAKGOgHIIDQlf+8MSo4CJDk0LKH067u/gEQ75uvzfis0ZEBGAEgASiABSJsMhYKBmF3cy1zMxIM"
        "CgZidWNrZXQSAmIxCg4IBwlKAIEFKEQKCAiAvMGWCyAAGgYKAWsSAXY="
    ),
}
CURSOR_BY_PULSAR = {
    Compression.NONE: (
        "CCoQBxj///////////8BIgwKBAgHEAMSBAgHEAUqGAoUQ29tcGFjdGVkVG9waWNMZWRnZXIQTTCC0JX/vDFCKQojI3B1bHNh"
        "ci5pbnRlcm5hbC5kZWxheWVkLmJ1Y2tldF8xXzkSAjk5"
    ),
    Compression.LZ4: (
        "R3gAAAAECAEQaWQIKhAHGP8BAPBMASIMCgQIBxADEgQIBxAFKhgKFENvbXBhY3RlZFRvcGljTGVkZ2VyEE0wgtCV/7wxQikK"
        "IyNwdWxzYXIuaW50ZXJuYWwuZGVsYXllZC5idWNrZXRfMV85EgI5OQ=="
    ),
    Compression.ZLIB: (
        "R3gAAAAECAIQaXic4tASYJf4DwOMSjxcLBzsAsxCIJJVS4JLxDk/tyAxuSQ1JSS/IDPZJzUlPbVIwNeg6cLU/3sMnTS5lJUL"
        "SnOKE4v0MvNKUovyEnP0UlJzEitTU/SSSpOzU0viDeMthZgsLQEAAAD//w=="
    ),
    Compression.ZSTD: (
        "R3gAAAAECAMQaSi1L/0kaTUDANQFCCoQBxj/ASIMCgQIBxADEgUqGAoUQ29tcGFjdGVkVG9waWNMZWRnZXIQTTCC0JX/vDFC"
        "KQojI3B1bHNhci5pbnRlcm5hbC5kZWxheWVkLmJ1Y2tldF8xXzkSAjk5AgApARGgCP+3A9E="
    ),
    Compression.SNAPPY: (
        "R3gAAAAECAQQaWkUCCoQBxj/EQEkASIMCgQIBxADEgEG8EwFKhgKFENvbXBhY3RlZFRvcGljTGVkZ2VyEE0wgtCV/7wxQikK"
        "IyNwdWxzYXIuaW50ZXJuYWwuZGVsYXllZC5idWNrZXRfMV85EgI5OQ=="
    ),
}

UUID_A = "fedcba98-7654-3210-0123-456789abcdef"
UUID_B = "00000000-0000-0001-8000-000000000000"
OFFLOADED = OffloadState(
    uuid=UUID_A,
    complete=True,
    bookkeeper_deleted=True,
    timestamp_ms=1_700_000_000_000,
    driver_name="aws-s3",
    driver_properties={"bucket": "b1"},
)
LEDGERS = ManagedLedgerInfo(
    (
        LedgerInfo(ledger_id=5, entries=10, size_bytes=1000, timestamp_ms=1_700_000_000_000, offload=OFFLOADED),
        LedgerInfo(ledger_id=7, entries=10, size_bytes=1000, timestamp_ms=1_700_000_000_001),
        LedgerInfo(ledger_id=3_000_000_000),
    ),
    {"k": "v"},
)
CURSOR = ManagedCursorInfo(
    cursors_ledger_id=42,
    mark_delete_ledger_id=7,
    mark_delete_entry_id=-1,
    last_active_ms=1_700_000_000_002,
    properties={"CompactedTopicLedger": 77},
    cursor_properties={"#pulsar.internal.delayed.bucket_1_9": "99"},
)


@pytest.mark.parametrize("compression", list(Compression))
def test_what_pulsar_wrote_is_read(compression: Compression) -> None:
    assert parse_managed_ledger(base64.b64decode(LEDGERS_BY_PULSAR[compression])) == LEDGERS
    assert parse_cursor(base64.b64decode(CURSOR_BY_PULSAR[compression])) == CURSOR


def test_what_is_written_is_what_pulsar_writes() -> None:
    assert serialize_managed_ledger(LEDGERS) == base64.b64decode(LEDGERS_BY_PULSAR[Compression.NONE])
    assert serialize_managed_ledger(LEDGERS, Compression.LZ4) == base64.b64decode(LEDGERS_BY_PULSAR[Compression.LZ4])


def test_in_use_ids_are_those_that_bookkeeper_must_keep() -> None:
    listed = in_use_ids(serialize_managed_ledger(LEDGERS))
    assert listed.ids == array("q", [7, 3_000_000_000])
    assert listed.bookkeeper_free == array("q", [5])
    assert listed.offloads == ((5, UUID_A),)
    assert listed.newest_id == 3_000_000_000


@pytest.mark.parametrize(
    ("offload", "free"),
    [
        pytest.param(OFFLOADED, True, id="complete and given up in BookKeeper"),
        pytest.param(replace(OFFLOADED, complete=False), False, id="given up but not complete"),
        pytest.param(replace(OFFLOADED, bookkeeper_deleted=False), False, id="complete but not given up"),
        pytest.param(OffloadState(uuid=UUID_A), False, id="just started"),
    ],
)
def test_a_listed_ledger_is_free_in_bookkeeper_only_after_a_complete_offload(offload: OffloadState, free: bool) -> None:
    listed = in_use_ids(serialize_managed_ledger(ManagedLedgerInfo((LedgerInfo(ledger_id=5, offload=offload),))))
    assert (list(listed.bookkeeper_free), list(listed.ids)) == (([5], []) if free else ([], [5]))
    assert listed.offloads == ((5, UUID_A),)
    assert listed.newest_id == 5


def test_the_entry_that_keeps_a_ledger_counts_if_a_list_has_two() -> None:
    twice = ManagedLedgerInfo(
        (LedgerInfo(ledger_id=5, offload=OFFLOADED), LedgerInfo(ledger_id=5), LedgerInfo(ledger_id=5))
    )
    listed = in_use_ids(serialize_managed_ledger(twice))
    assert (list(listed.ids), list(listed.bookkeeper_free)) == ([5], [])


def test_segments_of_a_streaming_offload_are_in_use_too() -> None:
    streaming = OffloadState(uuid=None, segment_uuids=(UUID_A, UUID_B))
    data = serialize_managed_ledger(ManagedLedgerInfo((LedgerInfo(ledger_id=5, offload=streaming),)))
    assert in_use_ids(data).offloads == ((5, UUID_A), (5, UUID_B))
    assert parse_managed_ledger(data).ledgers[0].offload == streaming


def test_no_bytes_are_an_empty_list_but_no_cursor() -> None:
    assert in_use_ids(b"").newest_id == -1
    assert parse_managed_ledger(b"") == ManagedLedgerInfo()
    with pytest.raises(FormatError, match="required"):
        parse_cursor(b"")


def test_a_list_may_be_empty_and_have_properties() -> None:
    assert list(in_use_ids(serialize_managed_ledger(ManagedLedgerInfo(properties={"a": "b"}))).ids) == []


def test_fields_of_a_newer_pulsar_are_skipped() -> None:
    info = pb.ManagedLedgerInfo.FromString(serialize_managed_ledger(ManagedLedgerInfo((LedgerInfo(ledger_id=7),))))
    newer = b"\xf2\x07\x01x"  # field 126, one byte
    info.ledgerInfo[0].MergeFromString(newer)
    assert list(in_use_ids(info.SerializeToString() + newer).ids) == [7]
    assert parse_cursor(serialize_cursor(CURSOR) + newer) == CURSOR


def test_a_cursor_with_acknowledged_ranges_is_read_without_them() -> None:
    ranges = b"\x22\x0c\x0a\x04\x08\x07\x10\x03\x12\x04\x08\x07\x10\x05"  # individualDeletedMessages
    assert parse_cursor(serialize_cursor(CURSOR) + ranges) == CURSOR


@pytest.mark.parametrize("where", ["offloadContext", "offloadSegment"])
def test_an_offload_context_of_a_newer_pulsar_is_an_error(where: str) -> None:
    info = pb.ManagedLedgerInfo()
    ledger = info.ledgerInfo.add(ledgerId=5)
    ledger.offloadContext.complete = True
    part = ledger.offloadContext if where == "offloadContext" else ledger.offloadContext.offloadSegment.add()
    part.MergeFromString(b"\xf2\x07\x01x")
    for parse in (in_use_ids, parse_managed_ledger):
        with pytest.raises(FormatError, match="newer"):
            parse(info.SerializeToString())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a", id="cut short"),
        pytest.param(b"\xff", id="no protobuf"),
        pytest.param(b"\x08\x01", id="a number where the list should be"),
        pytest.param(b"\xf2\x07\x01x", id="unknown fields and no list"),
        pytest.param(b"\x0a\x00", id="a ledger without id"),
        pytest.param(b"\x0a\x02\x10\x05", id="a ledger with entries but no id"),
        pytest.param(b"\x0a\x03\x0a\x01\x05", id="a ledger whose id is a text"),
        pytest.param(b"\x0a\x04\x08\x05\x28\x01", id="an offload context that is a number"),
        pytest.param(b"\x0a\x06\x08\x05\x2a\x02\x0a\x00", id="a UUID half that is a text"),
        pytest.param(b"\x0a\x06\x08\x05\x2a\x02\x08\x01", id="half of a UUID"),
        pytest.param(b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01", id="ledger -1"),
        pytest.param(b'{"ledgers": []}', id="JSON"),
        pytest.param(b"\x00", id="a zero byte"),
        pytest.param(b"\x47\x78", id="magic only"),
        pytest.param(b"\x47", id="half of the magic"),
    ],
)
def test_a_doubtful_list_is_an_error_and_never_empty(data: bytes) -> None:
    for parse in (in_use_ids, parse_managed_ledger):
        with pytest.raises(FormatError) as caught:
            parse(data)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(pb.ManagedCursorInfo(cursorsLedgerId=-2), id="ledger -2"),
        pytest.param(
            pb.ManagedCursorInfo(
                cursorsLedgerId=1,
                cursorProperties=[
                    pb.StringProperty(name="bucket", value="1"),
                    pb.StringProperty(name="bucket", value="2"),
                ],
            ),
            id="one property, two values",
        ),
        pytest.param(
            pb.ManagedCursorInfo(
                cursorsLedgerId=1, properties=[pb.LongProperty(name="x", value=1), pb.LongProperty(name="x", value=2)]
            ),
            id="one position property, two values",
        ),
    ],
)
def test_a_doubtful_cursor_is_an_error(message: pb.ManagedCursorInfo) -> None:
    with pytest.raises(FormatError):
        parse_cursor(message.SerializeToString())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a\x01x", id="ledger id is a text"),
        pytest.param(b"\x08\x01\x28\x01", id="properties are a number"),
        pytest.param(b"\x08\x01\x42\x00", id="property without name and value"),
        pytest.param(serialize_cursor(CURSOR).replace(b"99", b"\xff9"), id="value is not UTF-8"),
        pytest.param(serialize_cursor(CURSOR).replace(b"delayed", b"\xffelayed"), id="name is not UTF-8"),
    ],
)
def test_a_damaged_cursor_is_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_cursor(data)


def header(compression: Compression, size: int) -> bytes:
    metadata = pb.ManagedInfoMetadata(compressionType=compression, uncompressedSize=size).SerializeToString()
    return b"\x47\x78" + len(metadata).to_bytes(4, "big") + metadata


@pytest.mark.parametrize("compression", [c for c in Compression if c is not Compression.NONE])
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_size_that_is_not_the_real_one_is_an_error(compression: Compression, difference: int) -> None:
    message = serialize_managed_ledger(LEDGERS)
    payload = wrap(message, compression).removeprefix(header(compression, len(message)))
    with pytest.raises(FormatError):
        in_use_ids(header(compression, len(message) + difference) + payload)


@pytest.mark.parametrize("compression", [c for c in Compression if c is not Compression.NONE])
def test_a_wrapped_znode_that_was_cut_never_loses_a_ledger(compression: Compression) -> None:
    data = wrap(serialize_managed_ledger(LEDGERS), compression)
    whole = in_use_ids(data)
    marker = 5 if compression is Compression.ZLIB else 0  # the flush marker's end carries no content
    for end in range(1, len(data) - marker):
        with pytest.raises(FormatError):
            in_use_ids(data[:end])
    for end in range(len(data) - marker, len(data)):
        assert in_use_ids(data[:end]) == whole


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(header(Compression.NONE, 5) + b"\x0a\x02\x08\x07", id="NONE with another size"),
        pytest.param(header(Compression.ZSTD, -1), id="a negative size"),
        pytest.param(b"\x47\x78\x00\x00\x00\x00", id="no header fields"),
        pytest.param(b"\x47\x78\x00\x00\x00\x02\x08\x09", id="no size"),
        pytest.param(b"\x47\x78\x00\x00\x00\x04\x08\x09\x10\x00", id="unknown compression type"),
        pytest.param(b"\x47\x78\xff\xff\xff\xff\x08\x00\x10\x00", id="negative header size"),
        pytest.param(b"\x47\x78\x7f\xff\xff\xff\x08\x00\x10\x00", id="header larger than the znode"),
        pytest.param(b"\x47\x78\x00\x00\x00\x02\xff\xff", id="header is no protobuf"),
        pytest.param(header(Compression.LZ4, 0), id="LZ4 of nothing at all"),
    ],
)
def test_a_damaged_wrapper_is_an_error_and_never_an_empty_list(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        in_use_ids(data)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("size", [MAX_UNCOMPRESSED_BYTES + 1, 2**31 - 1])
def test_no_memory_is_allocated_for_a_size_beyond_the_limit(size: int) -> None:
    with pytest.raises(FormatError, match="at most"):
        in_use_ids(header(Compression.ZSTD, size))


@pytest.mark.parametrize("compression", list(Compression))
def test_a_bomb_ends_as_an_error(compression: Compression) -> None:
    bomb = wrap(b"\x00" * 10_000_000, compression)
    metadata_size = int.from_bytes(bomb[2:6], "big") if compression is not Compression.NONE else -6
    with pytest.raises(FormatError):
        in_use_ids(header(compression, 1000) + bomb[6 + metadata_size :])


@pytest.mark.parametrize("compression", list(Compression))
def test_an_empty_list_may_be_compressed(compression: Compression) -> None:
    assert parse_managed_ledger(serialize_managed_ledger(ManagedLedgerInfo(), compression)) == ManagedLedgerInfo()


def test_an_lz4_block_that_seems_to_start_with_a_size_is_read_as_a_block() -> None:
    # five literals 00 00 00 10 41; some decoders take the first four bytes for a size and find one literal
    block = bytes.fromhex("500000001041")
    with pytest.raises(FormatError, match="no ManagedLedgerInfo"):
        in_use_ids(header(Compression.LZ4, 5) + block)
    with pytest.raises(FormatError, match="shorter"):
        in_use_ids(header(Compression.LZ4, 6) + block)


UUIDS = st.uuids().map(str)
OFFLOADS = st.builds(
    OffloadState,
    uuid=st.none() | UUIDS,
    complete=st.booleans(),
    bookkeeper_deleted=st.booleans(),
    timestamp_ms=st.integers(0, 2**63 - 1),
    driver_name=st.text(max_size=8),
    driver_properties=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    segment_uuids=st.lists(UUIDS, max_size=2).map(tuple),
)
LEDGER_INFOS = st.builds(
    LedgerInfo,
    ledger_id=st.integers(0, 2**63 - 1),
    entries=st.none() | st.integers(0, 2**63 - 1),
    size_bytes=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(0, 2**63 - 1),
    offload=st.none() | OFFLOADS,
)


@settings(max_examples=40, deadline=None)
@given(
    ledgers=st.lists(LEDGER_INFOS, max_size=5).map(tuple),
    properties=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=2),
    compression=st.sampled_from(Compression),
)
def test_a_list_that_is_written_is_read_again(
    ledgers: tuple[LedgerInfo, ...], properties: dict[str, str], compression: Compression
) -> None:
    info = ManagedLedgerInfo(ledgers, properties)
    data = serialize_managed_ledger(info, compression)
    assert parse_managed_ledger(data) == info
    listed = in_use_ids(data)
    assert set(listed.ids) | set(listed.bookkeeper_free) == {ledger.ledger_id for ledger in ledgers}
    assert not set(listed.ids) & set(listed.bookkeeper_free)
    assert listed.newest_id == max((ledger.ledger_id for ledger in ledgers), default=-1)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        ManagedCursorInfo,
        cursors_ledger_id=st.integers(-1, 2**63 - 1),
        mark_delete_ledger_id=st.integers(-1, 2**63 - 1),
        mark_delete_entry_id=st.integers(-1, 2**63 - 1),
        last_active_ms=st.integers(0, 2**63 - 1),
        properties=st.dictionaries(st.text(max_size=8), st.integers(-(2**63), 2**63 - 1), max_size=3),
        cursor_properties=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    ),
    st.sampled_from(Compression),
)
def test_a_cursor_that_is_written_is_read_again(info: ManagedCursorInfo, compression: Compression) -> None:
    assert parse_cursor(serialize_cursor(info, compression)) == info


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b"\x47\x78\x00\x00\x00\x04\x08\x03\x10\x05" + tail)
)
def test_no_bytes_do_more_than_raise_a_format_error(data: bytes) -> None:
    for parse in (in_use_ids, parse_managed_ledger, parse_cursor):
        try:
            parse(data)
        except FormatError as error:
            assert str(error).isprintable()  # noqa: PT017 - both ends are right here


@pytest.mark.parametrize(
    ("msb", "lsb", "text"),
    [
        pytest.param(0, 0, "00000000-0000-0000-0000-000000000000", id="zero"),
        pytest.param(-1, -1, "ffffffff-ffff-ffff-ffff-ffffffffffff", id="both negative"),
        pytest.param(-81985529216486896, 81985529216486895, UUID_A, id="signed halves"),
        pytest.param(1, -(2**63), UUID_B, id="lowest half"),
    ],
)
def test_a_uuid_has_two_signed_halves(msb: int, lsb: int, text: str) -> None:
    assert uuid_text(msb, lsb) == text
    assert uuid_halves(text) == (msb, lsb)


@pytest.mark.parametrize(
    "text", ["", UUID_A.upper(), UUID_A[:-1], UUID_A + "\n", "{" + UUID_A + "}", UUID_A.replace("-", "")]
)
def test_only_javas_text_form_is_a_uuid(text: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        uuid_halves(text)


@pytest.mark.parametrize("compression", Compression)
def test_acknowledged_ranges_are_read_on_request(compression: Compression) -> None:
    ranges = (AcknowledgedRange((5, -1), (5, 3)), AcknowledgedRange((5, 7), (6, 0)))
    data = serialize_cursor(CURSOR, compression, acknowledged=ranges)
    assert acknowledged_ranges(data) == ranges
    assert parse_cursor(data) == CURSOR
    assert acknowledged_ranges(serialize_cursor(CURSOR)) == ()


@pytest.mark.parametrize("data", [b"\xff\xff", serialize_cursor(CURSOR) + b"\x22\x04\x0a\x02\x08\x05"])
def test_damaged_acknowledged_ranges_are_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        acknowledged_ranges(data)
