"""What becomes of entries that the connector did not deliver: each message once, and nothing of a marker."""

import pytest

from tests.builders import data_request
from tests.pulsar_fields import entry, framed, key_value, single
from udfs import columns as c
from udfs.formats.entry import Content, EntryState, parse_entry
from udfs.records import Reason, Rejection
from udfs.retry import CUT_FROM, MAX_ABOUT_BYTES
from udfs.spark import fallback_row
from udfs.undelivered import (
    NotShown,
    Undeliverable,
    UndeliveredMessage,
    found_in,
    found_in_bytes,
    not_shown,
    refusal_of,
    rejection_of,
)
from udfs.wire import encode

REQUEST = b'{"ledgerId": 7}'
PLAIN = Content(None, REQUEST, {})
SENT_MS = 1_700_000_000_000
IN_TRANSACTION = {"txnid_most_bits": 1, "txnid_least_bits": 2}


def _why(found: UndeliveredMessage) -> tuple[int, bytes, Undeliverable | None]:
    return found.batch_index, found.content.payload, found.why


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(entry(REQUEST), [(-1, REQUEST, None)], id="a message"),
        pytest.param(entry(b"", null_value=1), [(-1, b"", None)], id="a message without a value"),
        pytest.param(
            entry(single(REQUEST) * 2, num_messages_in_batch=2), [(0, REQUEST, None), (1, REQUEST, None)], id="a batch"
        ),
        pytest.param(entry(REQUEST, **IN_TRANSACTION), [(-1, REQUEST, None)], id="of a transaction, and delivered"),
        pytest.param(
            entry(b"?!", encryption_keys=[key_value("k", b"v")]),
            [(-1, b"?!", Undeliverable.ENCRYPTED)],
            id="an encrypted message",
        ),
        pytest.param(
            entry(b"?!", encryption_keys=[key_value("k", b"v")], num_messages_in_batch=3),
            [(-1, b"?!", Undeliverable.ENCRYPTED)],
            id="an encrypted batch is one",
        ),
        pytest.param(
            entry(REQUEST, uuid="u", chunk_id=0, num_chunks_from_msg=2),
            [(-1, REQUEST, Undeliverable.CHUNK)],
            id="a part of a message",
        ),
        pytest.param(
            entry(
                single(REQUEST) + single(REQUEST, compacted_out=1) + single(REQUEST),
                num_messages_in_batch=3,
                uuid="u",
                chunk_id=0,
                num_chunks_from_msg=3,
            ),
            [(0, REQUEST, None), (2, REQUEST, None)],
            id="a batch that says it is a part of a message, which the connector delivers",
        ),
        pytest.param(entry(REQUEST, marker_type=10), [], id="a marker"),
        pytest.param(entry(REQUEST, marker_type=99, encryption_keys=[b""]), [], id="a marker of any kind"),
        pytest.param(entry(single(REQUEST, compacted_out=1), num_messages_in_batch=1), [], id="compacted away"),
        pytest.param(
            entry(b"zz", compression=2, uncompressed_size=5),
            [(-1, b"zz", Undeliverable.UNREADABLE)],
            id="not compressed as it says",
        ),
        pytest.param(
            entry(single(REQUEST), num_messages_in_batch=2),
            [(0, REQUEST, None), (1, single(REQUEST), Undeliverable.UNREADABLE)],
            id="a batch that ends too soon",
        ),
        pytest.param(
            framed(b"\xff\xff", REQUEST),
            [(-1, framed(b"\xff\xff", REQUEST), Undeliverable.UNREADABLE)],
            id="metadata that is none",
        ),
    ],
)
def test_what_an_entry_holds(written: bytes, expected: list[tuple[int, bytes, Undeliverable | None]]) -> None:
    assert [_why(found) for found in found_in_bytes(written)] == expected


@pytest.mark.parametrize(
    ("standing", "why"),
    [
        pytest.param(EntryState.DELIVERED, None, id="committed"),
        pytest.param(EntryState.ABORTED, Undeliverable.ABORTED_TRANSACTION, id="aborted"),
        pytest.param(EntryState.OPEN, Undeliverable.OPEN_TRANSACTION, id="open"),
    ],
)
def test_messages_of_a_transaction_are_requests_once_it_is_committed(
    standing: EntryState, why: Undeliverable | None
) -> None:
    written = parse_entry(entry(single(REQUEST) * 2, num_messages_in_batch=2, **IN_TRANSACTION))
    assert [_why(found) for found in found_in(written, standing)] == [(0, REQUEST, why), (1, REQUEST, why)]


@pytest.mark.parametrize("standing", EntryState)
def test_a_transactions_marker_is_nothing_however_it_ended(standing: EntryState) -> None:
    assert not list(found_in(parse_entry(entry(b"", marker_type=22, **IN_TRANSACTION)), standing))


def test_key_properties_and_time_come_with_a_dead_letter_too() -> None:
    written = entry(
        b"?!", encryption_keys=[b""], partition_key="k", properties=[key_value("a", "b")], publish_time=SENT_MS
    )
    (found,) = found_in_bytes(written)
    assert (found.content, found.publish_ms) == (Content(b"k", b"?!", {"a": "b"}), SENT_MS)


def test_an_entry_that_nobody_shows_is_one_message_without_bytes() -> None:
    found = not_shown(NotShown("the broker does not say"))
    assert _why(found) == (-1, b"", Undeliverable.NOT_SHOWN)
    assert found.detail == "the broker does not say"


@pytest.mark.parametrize("why", Undeliverable)
def test_why_it_is_no_request_can_be_written_down_and_read_as_a_reason(why: Undeliverable) -> None:
    said = refusal_of(UndeliveredMessage(-1, PLAIN, why=why, detail="a: b"))
    assert said is not None
    assert rejection_of(said) == Rejection(Reason(why.value), "a: b")
    assert refusal_of(UndeliveredMessage(-1, PLAIN)) is None


def test_a_message_becomes_a_row_that_is_bounded_and_that_every_table_can_hold() -> None:
    large = Content(b"k", b"x" * (3 << 20), {"a": "\ud800", "b": "c"})
    found = UndeliveredMessage(2, large, SENT_MS, Undeliverable.CHUNK, "why")
    row = fallback_row("persistent://t/ns/x-partition-0", (5, 6), found, 4_096)
    assert [row[name] for name in c.POSITION] == ["persistent://t/ns/x-partition-0", 5, 6, 2]
    assert (row[c.PUBLISH_MS], row[c.DUE_MS], row[c.NO_REQUEST]) == (SENT_MS, 0, "CHUNK: why")
    assert row[c.PAYLOAD] == b"x" * 4_097
    assert dict(row[c.MESSAGE_PROPERTIES]) == {"a": "?", "b": "c", CUT_FROM: str(3 << 20)}


def test_what_is_larger_than_a_request_may_be_is_none_whatever_is_left_of_it() -> None:
    asked = encode(data_request(5))
    row = fallback_row(
        "persistent://t/ns/x", (5, 6), UndeliveredMessage(-1, Content(None, asked + b" " * 9, {}), SENT_MS), len(asked)
    )
    assert (row[c.REFERENCE_KEY], len(row[c.PAYLOAD])) == (None, len(asked) + 1)


@pytest.mark.parametrize(("key", "kept"), [(b"k", b"k"), (b"k" * (MAX_ABOUT_BYTES + 1), None)], ids=["small", "large"])
def test_what_is_said_about_a_message_is_bounded_too(key: bytes, kept: bytes | None) -> None:
    row = fallback_row("persistent://t/ns/x", (5, 6), UndeliveredMessage(-1, Content(key, b"", {"a": "b"}), SENT_MS), 9)
    assert row[c.MESSAGE_KEY] == kept
    assert row[c.MESSAGE_PROPERTIES] == ([("a", "b")] if kept else [])


def test_what_only_looks_like_a_request_has_no_owner_that_would_be_read_for_it() -> None:
    asked = encode(data_request(5))
    rows = [
        fallback_row(
            "persistent://t/ns/x", (5, 6), UndeliveredMessage(-1, Content(None, asked, {}), SENT_MS, why), len(asked)
        )
        for why in (None, Undeliverable.OPEN_TRANSACTION)
    ]
    assert [row[c.REFERENCE_KEY] is None for row in rows] == [False, True]
    assert [row[c.PAYLOAD] for row in rows] == [asked, asked]
