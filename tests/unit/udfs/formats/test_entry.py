"""Entries as a sender may write them: read whole, or refused by name, and never more memory than the bound."""

import base64
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace

import cramjam
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.pulsar_fields import entry, framed, key_value, metadata, single
from udfs.formats.compression import Compression
from udfs.formats.entry import LATEST_MS, MAX_UNCOMPRESSED_BYTES, ChunkPart, Content, contents_of, parse_entry
from udfs.formats.errors import FormatError

REQUEST = b'{"ledgerId": 7}'
PLAIN = Content(key=None, payload=REQUEST, properties={})
PACK: dict[int, Callable[[bytes], bytes]] = {
    1: lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    2: zlib.compress,
    3: lambda data: bytes(cramjam.zstd.compress(data)),
    4: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


def _read(data: bytes) -> list[tuple[int, Content]]:
    return list(contents_of(parse_entry(data)))


def test_a_message_that_was_sent_alone() -> None:
    written = entry(REQUEST, partition_key="k", properties=[key_value("a", "b")])
    assert _read(written) == [(-1, Content(key=b"k", payload=REQUEST, properties={"a": "b"}))]
    assert parse_entry(written).publish_ms == 1_700_000_000_000


def test_only_an_uncompressed_message_that_was_sent_alone_is_plain() -> None:
    plain, packed = entry(REQUEST), entry(PACK[1](REQUEST), compression=1, uncompressed_size=len(REQUEST))
    batch = entry(single(REQUEST), num_messages_in_batch=1)
    assert [content.is_plain for data in (plain, packed, batch) for _index, content in _read(data)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"\x0e\x01" + b"crc!", id="a checksum"),
        pytest.param(b"\x0e\x02\x00\x00\x00\x03abc", id="a broker's own metadata"),
        pytest.param(b"\x0e\x02\x00\x00\x00\x03abc\x0e\x01crc!", id="both"),
    ],
)
def test_metadata_that_brokers_add_to_an_entry_are_skipped(before: bytes) -> None:
    assert _read(before + entry(REQUEST)) == [(-1, PLAIN)]


@pytest.mark.parametrize(
    ("publish_time", "publish_ms"),
    [
        pytest.param(0, 0, id="1970"),
        pytest.param(-1, 0, id="before 1970"),
        pytest.param(-(1 << 63), 0, id="the smallest"),
        pytest.param(LATEST_MS, LATEST_MS, id="the last of 9999"),
        pytest.param(LATEST_MS + 1, LATEST_MS, id="after 9999"),
        pytest.param((1 << 63) - 1, LATEST_MS, id="the largest"),
    ],
)
def test_a_publish_time_is_brought_within_years_that_have_four_digits(publish_time: int, publish_ms: int) -> None:
    assert parse_entry(entry(REQUEST, publish_time=publish_time)).publish_ms == publish_ms


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"partition_key": b"\xff"}, b"\xff", id="no text"),
        pytest.param({"partition_key": "AP8=", "partition_key_b64_encoded": 1}, b"\x00\xff", id="bytes"),
        pytest.param({"partition_key": "no!", "partition_key_b64_encoded": 1}, b"no!", id="marked as bytes"),
        pytest.param({"partition_key": "k", "null_partition_key": 1}, None, id="marked as null"),
    ],
)
def test_a_key_is_read_as_by_java_and_never_an_error(fields: dict[str, int | str | bytes], key: bytes) -> None:
    assert _read(entry(REQUEST, **fields)) == [(-1, Content(key=key, payload=REQUEST, properties={}))]
    assert _read(entry(single(REQUEST, **fields), num_messages_in_batch=1)) == [
        (0, Content(key=key, payload=REQUEST, properties={}))
    ]


def test_the_last_value_of_a_repeated_property_counts_and_bytes_that_are_no_text_are_replaced() -> None:
    properties = [key_value("twice", "a"), key_value("twice", "b"), key_value(b"\xff", b"\xc3\x28")]
    assert parse_entry(entry(REQUEST, properties=properties)).properties == {"twice": "b", "�": "�("}


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_every_compression_of_pulsar_is_undone(compression: int) -> None:
    batch = single(REQUEST) + single(REQUEST)
    packed = PACK[compression](batch)
    fields = {"compression": compression, "uncompressed_size": len(batch), "num_messages_in_batch": 2}
    assert _read(entry(packed, **fields)) == [(0, PLAIN), (1, PLAIN)]


def test_an_unknown_compression_is_none_as_for_java_or_the_value_before_it() -> None:
    assert _read(entry(REQUEST, compression=9, uncompressed_size=3)) == [(-1, PLAIN)]
    packed = zlib.compress(REQUEST)
    assert _read(entry(packed, compression=[2, 9], uncompressed_size=len(REQUEST))) == [(-1, PLAIN)]


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("size", "why"),
    [
        pytest.param(len(REQUEST), "does not decompress", id="not compressed"),
        pytest.param((1 << 32) - 1, "at most", id="4 GiB"),
        pytest.param(MAX_UNCOMPRESSED_BYTES + 1, "at most", id="a byte too many"),
        pytest.param(MAX_UNCOMPRESSED_BYTES, "does not decompress", id="as many as are read"),
        pytest.param(0, "does not decompress|bytes, not to its header's", id="nothing"),
    ],
)
def test_a_payload_that_does_not_decompress_is_refused(compression: int, size: int, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        _read(entry(REQUEST, compression=compression, uncompressed_size=size))


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_a_bomb_takes_no_more_memory_than_the_bound(compression: int) -> None:
    bomb = b" " * (64 << 20)
    packed = PACK[compression](bomb)
    written = entry(packed, compression=compression, uncompressed_size=MAX_UNCOMPRESSED_BYTES)
    del bomb
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            _read(written)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_UNCOMPRESSED_BYTES
    finally:
        tracemalloc.stop()


def test_compacted_messages_of_a_batch_are_left_out_and_the_others_keep_their_indices() -> None:
    batch = single(REQUEST) + single(REQUEST, compacted_out=1) + single(b"", null_value=1)
    assert _read(entry(batch, num_messages_in_batch=3)) == [
        (0, PLAIN),
        (2, Content(key=None, payload=b"", properties={}, is_null=True)),
    ]


@pytest.mark.parametrize("flag", [1 << 32, 1 << 62, -(1 << 63), 0])
def test_a_bool_whose_low_32_bits_are_zero_is_false_as_for_java(flag: int) -> None:
    names = ("null_value", "null_partition_key", "partition_key_b64_encoded")
    flags: dict[str, int | str] = {**dict.fromkeys(names, flag), "partition_key": "AP8="}
    read = Content(key=b"AP8=", payload=REQUEST, properties={})
    assert _read(entry(REQUEST, **flags)) == [(-1, read)]
    assert _read(entry(single(REQUEST, compacted_out=flag, **flags), num_messages_in_batch=1)) == [(0, read)]


@pytest.mark.parametrize("flag", [1, 2, -1, (1 << 32) + 1, (1 << 63) - 1])
def test_any_other_bool_is_true(flag: int) -> None:
    assert _read(entry(REQUEST, null_value=flag)) == [
        (-1, Content(key=None, payload=REQUEST, properties={}, is_null=True))
    ]
    assert _read(entry(single(REQUEST, compacted_out=flag), num_messages_in_batch=1)) == []


@pytest.mark.parametrize(
    ("payload", "size", "readable", "why"),
    [
        pytest.param(single(REQUEST), 1000, 1, "claims to have 1000 messages, and ends after 1", id="too few"),
        pytest.param(single(REQUEST) * 3, 2, 2, "", id="too many"),
        pytest.param(REQUEST, 2, 0, "its metadata ends at byte", id="no batch"),
        pytest.param(REQUEST, 0, 0, "claims to have 0 messages", id="none"),
        pytest.param(REQUEST, -1, 0, "claims to have -1 messages", id="fewer than none"),
        pytest.param(single(REQUEST), (1 << 31) - 1, 1, "ends after 1", id="as many as there are numbers"),
        pytest.param(single(REQUEST) + single(b"", payload_size=-5), 2, 1, "to have -5 bytes", id="a negative size"),
        pytest.param(single(REQUEST, payload_size=99), 1, 0, "to have 99 bytes", id="a size beyond the end"),
        pytest.param(b"\x00\x00\x00\x00" + REQUEST, 1, 0, "has no length", id="no size"),
        pytest.param(b"\x00\x00\x00\x02\xff\xff" + REQUEST, 1, 0, "can't be parsed", id="garbage before a message"),
        pytest.param(b"\x00\x00", 1, 0, "end before the size", id="cut short"),
    ],
)
def test_messages_before_a_false_claim_of_a_batch_are_read(payload: bytes, size: int, readable: int, why: str) -> None:
    read = []
    try:
        for index, content in contents_of(parse_entry(entry(payload, num_messages_in_batch=size))):
            read.append((index, content))
        error_text = ""
    except FormatError as error:
        error_text = str(error)
    assert read == [(index, PLAIN) for index in range(readable)]
    assert why in error_text
    assert bool(error_text) == bool(why)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "end before the size", id="nothing"),
        pytest.param(b"\x0e\x02\xff\xff\xff\xff", "end before the size", id="a broker's metadata without an end"),
        pytest.param(framed(b"\xff" * 40, REQUEST), "can't be parsed", id="garbage"),
        pytest.param(b"\x00\x00\x10\x00abc", "its metadata ends at byte", id="cut short"),
        pytest.param(framed(metadata(publish_time=1), REQUEST), "has no producer name", id="no producer"),
        pytest.param(framed(metadata(producer_name="p"), REQUEST), "has no producer name", id="no time"),
        pytest.param(framed(b"", REQUEST), "has no producer name", id="no metadata"),
    ],
)
def test_metadata_that_no_broker_can_read_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        parse_entry(data)


def test_the_senders_metadata_of_an_entry_are_returned() -> None:
    parsed = parse_entry(
        entry(
            REQUEST,
            encryption_keys=[key_value("k", b"v")],
            marker_type=22,
            uuid="u",
            chunk_id=1,
            num_chunks_from_msg=3,
            txnid_most_bits=5,
            txnid_least_bits=6,
        )
    )
    assert (parsed.is_encrypted, parsed.marker_type, parsed.chunk, parsed.transaction) == (
        True,
        22,
        ChunkPart(b"u", 1, 3),
        (5, 6),
    )
    plain = parse_entry(entry(REQUEST))
    assert (plain.is_encrypted, plain.marker_type, plain.chunk, plain.transaction) == (False, None, None, None)
    assert parse_entry(entry(REQUEST, chunk_id=0, num_chunks_from_msg=1)).chunk is None, "whole in one part"


@given(st.binary(max_size=300))
@example(base64.b64decode("DgIAAAAA"))
def test_any_bytes_end_in_messages_or_a_refusal(data: bytes) -> None:
    try:
        _read(data)
    except FormatError:
        return


@given(st.integers(0, 80), st.integers(0, 255))
def test_nor_does_a_true_batch_with_one_byte_changed(at: int, byte: int) -> None:
    written = bytearray(entry(zlib.compress(single(REQUEST) * 2), compression=2, uncompressed_size=40))
    written[at % len(written)] = byte
    try:
        read = parse_entry(bytes(written))
        list(contents_of(replace(read, batch_size=2, compression=Compression.NONE)))
        list(contents_of(read))
    except FormatError:
        return
