"""The reads of a pass: whole entries within bounds, and how far each lane was read."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from streaming.adapters.pulsar.readers.span_reader import SpanEntry
from streaming.config.load import load
from streaming.errors import UnavailableError
from streaming.queries.delivery.lane_reads import LATE, MOST_OF_ENTRY, ReadLanes
from streaming.queries.delivery.read_end import ReadEnd, end_in
from tests.pulsar_fields import framed, metadata, single
from udfs import columns as c
from udfs.entry_ranges import EntrySpan
from udfs.units import ROW_BYTES

Lane = Callable[[Sequence[EntrySpan]], Iterator[SpanEntry]]


def entry(*payloads: bytes, **fields: Any) -> bytes:
    written = {"producer_name": "p", "sequence_id": 1, "publish_time": 1000, **fields}
    if len(payloads) == 1 and "num_messages_in_batch" not in fields:
        return framed(metadata(**written), payloads[0])
    batch = b"".join(single(payload) for payload in payloads)
    return framed(metadata(**written | {"num_messages_in_batch": len(payloads)}), batch)


def sends(*entries: bytes | None) -> Lane:
    def lane(spans: Sequence[EntrySpan]) -> Iterator[SpanEntry]:
        positions = [(span.ledger, number) for span in spans for number in range(span.first, span.last + 1)]
        for position, data in zip(positions, entries, strict=False):
            yield SpanEntry(position, data)

    return lane


def read(
    most: int = 10, seconds: float = 30.0, **lanes: tuple[int, Lane]
) -> tuple[list[tuple[Any, ...]], dict[str, ReadEnd]]:
    """Read lanes of so many entries in ledger 7; return the messages, and how far each lane was read."""
    reading = ReadLanes(load(None), lambda _pulsar, name, spans: lanes[name][1](spans), seconds)
    planned = pa.RecordBatch.from_pylist(
        [
            {"source": name, "ledgers": [7], "firsts": [0], "lasts": [count - 1], "most": most}
            for name, (count, _lane) in lanes.items()
        ]
    )
    rows = [row for batch in reading([planned]) for row in batch.to_pylist()]
    for row in rows:
        row[c.MESSAGE_PROPERTIES] = dict(row[c.MESSAGE_PROPERTIES] or ())
    messages = [
        (row[c.SOURCE], row[c.POSITION_ENTRY], row[c.POSITION_BATCH], row[c.PAYLOAD])
        for row in rows
        if row[c.POSITION_BATCH] is not None
    ]
    return messages, {row[c.SOURCE]: end_in(row) for row in rows if row[c.POSITION_BATCH] is None}


def test_all_messages_of_all_lanes_are_read() -> None:
    messages, ends = read(a=(2, sends(entry(b"1"), entry(b"2", b"3"))), b=(1, sends(entry(b"4"))))
    assert sorted(messages) == [("a", 0, -1, b"1"), ("a", 1, 0, b"2"), ("a", 1, 1, b"3"), ("b", 0, -1, b"4")]
    assert ends == {"a": ReadEnd((7, 1), "", 2), "b": ReadEnd((7, 0), "", 0)}


@pytest.mark.parametrize(("most", "last"), [(2, 0), (3, 1)])
def test_a_lane_ends_before_the_entry_with_which_it_would_have_too_many_messages(most: int, last: int) -> None:
    messages, ends = read(most, a=(3, sends(entry(b"1"), entry(b"2", b"3"), entry(b"4"))))
    assert {position for _lane, position, *_ in messages} == {*range(last + 1)}
    assert ends == {"a": ReadEnd((7, last), "", len(messages) - 1)}


def test_at_least_one_entry_is_read_whatever_number_of_messages_it_has() -> None:
    messages, ends = read(1, a=(2, sends(entry(b"1", b"2", b"3"), entry(b"4"))))
    assert len(messages) == 3
    assert ends == {"a": ReadEnd((7, 0), "", 2)}


@pytest.mark.parametrize(("count", "fault"), [(0, ""), (1, "entry (7, 0) has more than 1000 messages")])
def test_an_entry_of_very_many_messages_is_left_to_the_slow_reader(count: int, fault: str) -> None:
    _messages, ends = read(a=(1, sends(entry(*[b"1"] * (MOST_OF_ENTRY + count)))))
    assert ends["a"].fault == fault


def test_an_entry_that_the_broker_sends_to_no_reader_is_left_to_the_slow_reader() -> None:
    messages, ends = read(a=(3, sends(entry(b"1"), None, entry(b"2"))))
    assert messages == [("a", 0, -1, b"1")]
    assert ends == {"a": ReadEnd((7, 0), "the broker sends entry (7, 1) to no reader", 0)}


def test_a_marker_is_read_and_named_as_an_entry_without_messages() -> None:
    _messages, ends = read(a=(2, sends(entry(b"", marker_type=20), entry(b"1"))))
    assert ends == {"a": ReadEnd((7, 1), "", 0, (EntrySpan(7, 0, 0),))}


def test_a_broker_that_fails_or_hangs_stops_its_lane_alone() -> None:
    goes_on = threading.Event()

    def fails(_spans: Sequence[EntrySpan]) -> Iterator[SpanEntry]:
        yield SpanEntry((7, 0), entry(b"1"))
        raise UnavailableError("it is away")

    def hangs(_spans: Sequence[EntrySpan]) -> Iterator[SpanEntry]:
        yield SpanEntry((7, 0), entry(b"1"))
        goes_on.wait()

    try:
        _messages, ends = read(seconds=6.0, a=(2, fails), b=(2, hangs), d=(1, sends(entry(b"1"))))
    finally:
        goes_on.set()
    assert ends["a"] == ReadEnd((7, 0), "it is away", 0)
    assert ends["b"] == ReadEnd((7, 0), LATE, 0)
    assert ends["d"] == ReadEnd((7, 0), "", 0)


def test_a_fault_of_ours_stops_its_lane_alone() -> None:
    def fails(_spans: Sequence[EntrySpan]) -> Iterator[SpanEntry]:
        yield SpanEntry((7, 0), entry(b"1"))
        raise IndexError("odd bytes")

    _messages, ends = read(a=(2, fails), b=(1, sends(entry(b"1"))))
    assert ends == {"a": ReadEnd((7, 0), "IndexError('odd bytes')", 0), "b": ReadEnd((7, 0), "", 0)}


def test_bytes_that_are_no_message_are_read_as_they_are() -> None:
    messages, ends = read(a=(1, sends(b"\xff\xff\xff")))
    assert messages == [("a", 0, -1, b"\xff\xff\xff")]
    assert ends == {"a": ReadEnd((7, 0), "", 0)}


def test_a_large_message_counts_as_several_rows_of_a_chunk() -> None:
    large = b"x" * (3 * ROW_BYTES)
    _messages, ends = read(a=(2, sends(entry(large), entry(b"1"))))
    assert ends["a"].last_row == 4
