"""Our bytes are fastavro's bytes, sizes are those that were seen on 4.0.8, and hostile bytes end in FormatError."""

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.formats.errors import FormatError
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.avro_schemas import SCHEMAS
from udfs.snapshots.codec import (
    Index,
    Segment,
    Snapshot,
    decode_index,
    decode_segment,
    decode_snapshot,
    encode_index,
    encode_segment,
    encode_snapshot,
    entries_of,
)
from udfs.snapshots.keys import SnapshotKind

TOPIC = "persistent://public/default/orders"
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
POSITIONS = st.tuples(LONGS, LONGS)
DECODERS: list[Callable[[bytes], Any]] = [decode_snapshot, decode_segment, decode_index]


def _library(kind: SnapshotKind, record: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMAS[kind]), record)
    return out.getvalue()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(LONGS, LONGS, LONGS, LONGS), max_size=9), POSITIONS, st.text(max_size=9))
def test_a_single_snapshot_has_the_librarys_bytes(rows: Any, max_read: Any, topic: str) -> None:
    data = encode_snapshot(Snapshot(topic, max_read, aborts_of(rows)))
    aborts = [
        {"entryId": entry, "ledgerId": ledger, "txnIdLeastBits": least, "txnIdMostBits": most}
        for most, least, ledger, entry in rows
    ]
    record = {"maxReadPositionEntryId": max_read[1], "maxReadPositionLedgerId": max_read[0], "topicName": topic}
    assert data == _library(SnapshotKind.SINGLE, record | {"aborts": aborts})
    read = decode_snapshot(data)
    assert (read.topic, read.max_read, read.aborts.tuples()) == (topic, max_read, rows)


@settings(max_examples=40, deadline=None)
@given(st.lists(POSITIONS, max_size=9), POSITIONS, LONGS)
def test_a_segment_has_the_librarys_bytes(ids: Any, marker: Any, sequence: int) -> None:
    data = encode_segment(Segment(TOPIC, sequence, marker, ids_of(ids)))
    aborts = [{"leastSigBits": least, "mostSigBits": most} for most, least in ids]
    record = {"persistentPositionEntryId": marker[1], "persistentPositionLedgerId": marker[0], "sequenceId": sequence}
    assert data == _library(SnapshotKind.SEGMENT, record | {"aborts": aborts, "topicName": TOPIC})
    read = decode_segment(data)
    assert (read.topic, read.sequence, read.marker, read.ids.pairs()) == (TOPIC, sequence, marker, ids)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(LONGS, POSITIONS, POSITIONS), max_size=9), st.lists(POSITIONS, max_size=5), POSITIONS)
def test_an_index_has_the_librarys_bytes(rows: Any, tail: Any, max_read: Any) -> None:
    data = encode_index(Index(TOPIC, entries_of(rows), max_read, ids_of(tail)))
    listed = [
        {
            "abortedMarkEntryID": marker[1],
            "abortedMarkLedgerID": marker[0],
            "segmentEntryID": place[1],
            "segmentLedgerID": place[0],
            "sequenceID": sequence,
        }
        for sequence, place, marker in rows
    ]
    metadata = {
        "aborts": [{"leastSigBits": least, "mostSigBits": most} for most, least in tail],
        "maxReadPositionEntryId": max_read[1],
        "maxReadPositionLedgerId": max_read[0],
    }
    assert data == _library(SnapshotKind.INDEX, {"indexList": listed, "snapshot": metadata, "topicName": TOPIC})
    read = decode_index(data)
    assert (read.max_read, read.tail.pairs(), read.entries.rows) == (max_read, tail, len(rows))
    assert read.entries.marker_entry.tolist() == [marker[1] for _sequence, _place, marker in rows]
    assert read.entries.segment_ledger.tolist() == [place[0] for _sequence, place, _marker in rows]


def test_an_empty_index_has_the_length_that_was_seen() -> None:
    topic = "persistent://public/txn/ab"
    assert len(topic) == 26
    assert len(encode_index(Index(topic, entries_of([]), (-1, -1), ids_of([])))) == 35


def test_nulls_and_lists_in_several_blocks_are_read() -> None:
    rest = b"\x06\x08\x00"  # positions 3 and 4, no topic
    read = decode_snapshot(b"\x00" + rest)
    assert (read.topic, read.max_read, read.aborts.rows) == ("", (4, 3), 0)
    row = b"\x02\x04\x06\x08"
    read = decode_snapshot(b"\x02" + b"\x02" + row + b"\x01\x08" + row + b"\x00" + rest)  # the second with its length
    assert read.aborts.tuples() == [(4, 3, 2, 1)] * 2
    assert decode_index(b"\x00\x00\x00").max_read == (-1, -1)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x04", id="a branch that there is not"),
        pytest.param(b"\x02" + b"\xff" * 9 + b"\x01", id="the lowest number of rows"),
        pytest.param(b"\x02" + b"\xfe" * 9 + b"\x01", id="more rows than anybody has"),
        pytest.param(b"\x02" + b"\x02\x00\x00\x00\x00\x00" * 2000, id="thousands of blocks"),
        pytest.param(b"\x00" * 40, id="zeros"),
        pytest.param(b"not avro at all", id="text"),
    ],
)
def test_bytes_that_are_no_value_are_refused(decode: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(data)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(DECODERS))
def test_whatever_bytes_there_are_reading_ends(data: bytes, decode: Callable[[bytes], Any]) -> None:
    with suppress(FormatError):
        decode(data)


def test_a_value_cut_anywhere_is_refused() -> None:
    data = encode_snapshot(Snapshot(TOPIC, (7, 3), aborts_of([(0, each, 7, each) for each in range(300)])))
    for end in range(len(data)):
        with pytest.raises(FormatError):
            decode_snapshot(data[:end])
    with pytest.raises(FormatError):
        decode_snapshot(data + b"\x00")


def test_a_part_of_many_ids_comes_back() -> None:
    least = np.arange(20_000, dtype=np.int64)
    aborts = aborts_of([(each % 16, each, 90_000 + each // 500, each % 500) for each in least.tolist()])
    read = decode_snapshot(encode_snapshot(Snapshot(TOPIC, (90_100, 0), aborts)))
    assert all((ours == theirs).all() for ours, theirs in zip(read.aborts, aborts, strict=True))


def test_a_whole_value_in_thousands_of_blocks_is_refused() -> None:
    with pytest.raises(FormatError, match="in more than 1000 blocks"):
        decode_snapshot(b"\x02" + b"\x02\x00\x00\x00\x00" * 2000 + b"\x00\x06\x08\x00")
