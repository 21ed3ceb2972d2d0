"""Entries that are read without the connector, as messages in order."""

from dataclasses import dataclass
from threading import Event

import pytest

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.readers import span_reader
from tests.unit.adapters.pulsar.frame_broker import Partition, serving
from tests.unit.adapters.pulsar.stored_entries import ALL, LAST, ORDINARY, STORED, Admin, body, read_all
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import InternalStats, Position
from udfs.undelivered import Undeliverable


def test_passed_over_entries_are_requested_by_position_and_markers_yield_nothing() -> None:
    aborted = {"txnid_most_bits": "1", "txnid_least_bits": "2", "txn_aborted": "true"}
    admin = Admin({(7, 1): body(b"taken back", **aborted), (8, 0): body(b"", marker_type="22")})
    with serving(Partition(STORED, LAST)) as partition:
        assert read_all(partition, admin, ALL) == [
            ((7, 0), b"request", None),
            ((7, 1), b"taken back", Undeliverable.ABORTED_TRANSACTION),
            ((7, 2), b"request", None),
            ((8, 1), b"request", None),
            (LAST, b"request", None),
        ]
    assert admin.requested == [(7, 1), (8, 0)]


def test_an_ordinary_message_after_an_open_transaction_is_processed() -> None:
    still_open = {"txnid_most_bits": "1", "txnid_least_bits": "2", "txn_uncommitted": "true"}
    admin = Admin({(8, 1): body(b"open", **still_open), LAST: body(b"request", txn_uncommitted="true")})
    with serving(Partition({**STORED, (8, 1): None, LAST: None}, (7, 2))) as partition:
        assert read_all(partition, admin, [EntrySpan(8, 1, 2)]) == [
            ((8, 1), b"open", Undeliverable.OPEN_TRANSACTION),
            (LAST, b"request", None),
        ]


def test_entries_that_may_come_are_requested_concurrently_and_yielded_in_order() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(40)), None)
    in_flight: list[int] = []
    most: list[int] = []

    @dataclass
    class Slow(Admin):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            in_flight.append(1)
            most.append(len(in_flight))
            Event().wait(0.01)
            in_flight.pop()
            return None if position[1] % 3 else body(b"%d" % position[1])

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        admin = Slow(stats=InternalStats(ledgers=((8, 40),), cursors={}, pending_adds=0))
        read = read_all(partition, admin, [EntrySpan(8, 0, 39)])
        assert [(position[1], payload) for position, payload, _why in read] == [
            (number, b"" if number % 3 else b"%d" % number) for number in range(40)
        ]
    assert max(most) == 4


def test_a_later_entry_is_noticed_while_earlier_entries_are_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(span_reader, "_REOPEN_SECONDS", 0.05)
    monkeypatch.setattr(span_reader, "_READER_TIMEOUT_SECONDS", 0.2)
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(1000)), None)

    @dataclass
    class Slow(Admin):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            Event().wait(0.01)
            if len(self.requested) == 20:
                broker.entries, broker.last = {**stored, (8, 1000): ORDINARY}, (8, 1000)
            return super().entry(partition, position, most_bytes, patience_seconds)

    with serving(Partition(stored, (8, 999))) as broker:
        admin = Slow()
        read = read_all(broker, admin, [EntrySpan(8, 0, 1000)])
    assert [position[1] for position, _payload, _why in read] == list(range(1001))
    assert read[-1] == ((8, 1000), b"request", None)
    assert len(admin.requested) < 300, "of passed over entries only a few are requested"
