"""Entries of every kind, as rows."""

import pytest

from tests.pulsar_fields import entry, framed, key_value, metadata, single
from udfs.entry_ranges import EntrySpan
from udfs.formats.entry import EntryState, parse_entry
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.pulsar_source.offsets import Gap
from udfs.pulsar_source.source_rows import (
    is_taken_back,
    row_of_gap,
    row_of_trimmed,
    row_of_withheld,
    rows_of,
    rows_of_parsed,
)
from udfs.undelivered import NotShown

AT = (7, 3)


def test_a_message_has_all_that_its_sender_wrote() -> None:
    (row,) = rows_of(
        AT,
        entry(
            b"value",
            partition_key="key",
            properties=[key_value("name", "text")],
            event_time=5,
            sequence_id=-1,
            producer_name=b"\xff",
            schema_version=b"\x01",
        ),
    )
    assert (row.ledger_id, row.entry_id, row.batch_index, row.kind, row.detail) == (7, 3, -1, "MESSAGE", None)
    content = row.content
    assert (content.key, content.payload, content.properties) == (b"key", b"value", {"name": "text"})
    assert (content.event_ms, content.sequence_id, content.schema_version) == (5, -1, b"\x01")
    assert (row.publish_ms, row.producer, row.transaction, row.entry) == (1_700_000_000_000, "�", None, None)


def test_the_messages_of_a_batch_have_their_own_times_and_numbers() -> None:
    batch = single(b"one", event_time=8, sequence_id=3) + single(b"two", compacted_out=1) + single(b"three")
    rows = list(rows_of(AT, entry(batch, num_messages_in_batch=3)))
    assert [(row.batch_index, row.content.payload, row.content.event_ms) for row in rows] == [
        (0, b"one", 8),
        (2, b"three", 0),
    ]


@pytest.mark.parametrize(
    ("stored", "kinds"),
    [
        pytest.param(entry(b"x", encryption_keys=[key_value("k", b"v")]), ["ENCRYPTED"], id="encrypted"),
        pytest.param(
            entry(b"x", num_chunks_from_msg=3, chunk_id=0, uuid="u"), ["CHUNK"], id="a chunk of a larger message"
        ),
        pytest.param(framed(b"\xff" * 10, b"x"), ["UNREADABLE"], id="metadata that can't be parsed"),
        pytest.param(framed(metadata(partition_key="k"), b"x"), ["UNREADABLE"], id="metadata without required fields"),
        pytest.param(
            entry(single(b"one"), num_messages_in_batch=2), ["MESSAGE", "UNREADABLE"], id="a batch that ends early"
        ),
    ],
)
def test_what_is_no_readable_message_is_passed_on_as_it_is_stored(stored: bytes, kinds: list[str]) -> None:
    rows = list(rows_of(AT, stored))
    assert [row.kind for row in rows] == kinds
    assert rows[-1].entry == stored
    assert rows[-1].detail


def test_a_marker_is_a_row() -> None:
    stored = entry(b"x", marker_type=22)
    (row,) = rows_of(AT, stored)
    assert (row.kind, row.detail, row.content.payload, row.entry) == ("MARKER", "marker of type 22", b"x", stored)


def test_messages_of_transactions_name_them() -> None:
    parsed = parse_entry(entry(b"x", txnid_most_bits=1, txnid_least_bits=2))
    kinds = {}
    for state in EntryState:
        (row,) = rows_of_parsed(AT, parsed, state)
        assert row.transaction == "1:2"
        kinds[state] = (row.kind, is_taken_back(row))
    assert kinds == {
        EntryState.DELIVERED: ("MESSAGE", False),
        EntryState.ABORTED: ("ABORTED_TRANSACTION", True),
        EntryState.OPEN: ("OPEN_TRANSACTION", False),
    }


def test_what_can_not_be_read_is_reported_at_its_position() -> None:
    withheld = row_of_withheld(AT, NotShown("the broker answered 500"))
    assert (withheld.ledger_id, withheld.entry_id, withheld.kind) == (7, 3, "NOT_SHOWN")
    lost = row_of_gap(Gap((7, 3), (9, -1), is_certain=True))
    assert (lost.ledger_id, lost.entry_id, lost.kind) == (7, 4, "LOST")
    assert "after 7:3 and before 9:-1" in str(lost.detail)
    maybe = row_of_gap(Gap((7, 3), (9, -1), is_certain=False))
    assert (maybe.kind, "if there were any" in str(maybe.detail)) == ("MAYBE_LOST", True)
    assert "compacted ledger" in str(row_of_gap(Gap(BEFORE_ALL, (9, -1), is_certain=True)).detail)
    trimmed = row_of_trimmed(EntrySpan(7, 3, 9))
    assert (trimmed.ledger_id, trimmed.entry_id, trimmed.kind) == (7, 3, "LOST")
