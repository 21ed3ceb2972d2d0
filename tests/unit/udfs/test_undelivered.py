"""Entries that the connector did not deliver: each message once, and no message for a marker."""

import pytest

from tests.builders import data_request
from tests.pulsar_fields import entry, framed, key_value, single
from udfs import columns as c
from udfs.formats.entry import Content, EntryState, parse_entry
from udfs.records import Reason, Rejection
from udfs.requests.request_format import encode
from udfs.requests.retry import CUT_FROM, MAX_ABOUT_BYTES
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

REQUEST = b'{"ledgerId": 7}'
PLAIN = Content(key=None, payload=REQUEST, properties={})
SENT_MS = 1_700_000_000_000
IN_TRANSACTION = {"txnid_most_bits": 1, "txnid_least_bits": 2}


def _why(message: UndeliveredMessage) -> tuple[int, bytes, Undeliverable | None]:
    return message.batch_index, message.content.payload, message.why


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
            id="a batch marked as a part of a message, which the connector delivers",
        ),
        pytest.param(entry(REQUEST, marker_type=10), [], id="a marker"),
        pytest.param(entry(REQUEST, marker_type=99, encryption_keys=[b""]), [], id="a marker of any kind"),
        pytest.param(entry(single(REQUEST, compacted_out=1), num_messages_in_batch=1), [], id="compacted away"),
        pytest.param(
            entry(b"zz", compression=2, uncompressed_size=5),
            [(-1, b"zz", Undeliverable.UNREADABLE)],
            id="not compressed as its metadata claims",
        ),
        pytest.param(
            entry(single(REQUEST), num_messages_in_batch=2),
            [(0, REQUEST, None), (1, single(REQUEST), Undeliverable.UNREADABLE)],
            id="a batch that ends too soon",
        ),
        pytest.param(
            entry(b"zz", num_messages_in_batch=0, compression=1),
            [(-1, b"zz", Undeliverable.UNREADABLE)],
            id="a batch of no message",
        ),
        pytest.param(
            entry(b"", num_messages_in_batch=0),
            [(-1, b"", Undeliverable.UNREADABLE)],
            id="the same as the admin API returns it",
        ),
        pytest.param(
            framed(b"\xff\xff", REQUEST),
            [(-1, framed(b"\xff\xff", REQUEST), Undeliverable.UNREADABLE)],
            id="metadata that is none",
        ),
    ],
)
def test_the_messages_of_an_entry(written: bytes, expected: list[tuple[int, bytes, Undeliverable | None]]) -> None:
    assert [_why(message) for message in found_in_bytes(written)] == expected


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
    assert [_why(message) for message in found_in(written, standing)] == [(0, REQUEST, why), (1, REQUEST, why)]


@pytest.mark.parametrize("standing", EntryState)
def test_a_transactions_marker_is_no_message_whether_committed_or_aborted(standing: EntryState) -> None:
    assert not list(found_in(parse_entry(entry(b"", marker_type=22, **IN_TRANSACTION)), standing))


def test_a_dead_letter_has_key_properties_and_time_too() -> None:
    written = entry(
        b"?!", encryption_keys=[b""], partition_key="k", properties=[key_value("a", "b")], publish_time=SENT_MS
    )
    (message,) = found_in_bytes(written)
    assert (message.content, message.publish_ms) == (Content(key=b"k", payload=b"?!", properties={"a": "b"}), SENT_MS)


def test_an_entry_that_the_broker_does_not_return_is_one_message_without_bytes() -> None:
    message = not_shown(NotShown("the broker returns nothing"))
    assert _why(message) == (-1, b"", Undeliverable.NOT_SHOWN)
    assert message.detail == "the broker returns nothing"


@pytest.mark.parametrize("why", Undeliverable)
def test_a_refusal_can_be_written_and_read_as_a_reason(why: Undeliverable) -> None:
    refusal = refusal_of(UndeliveredMessage(batch_index=-1, content=PLAIN, why=why, detail="a: b"))
    assert refusal is not None
    assert rejection_of(refusal) == Rejection(Reason(why.value), "a: b")
    assert refusal_of(UndeliveredMessage(batch_index=-1, content=PLAIN)) is None


def test_a_message_becomes_a_bounded_row_that_every_table_can_store() -> None:
    large = Content(key=b"k", payload=b"x" * (3 << 20), properties={"a": "\ud800", "b": "c"})
    message = UndeliveredMessage(
        batch_index=2, content=large, publish_ms=SENT_MS, why=Undeliverable.CHUNK, detail="why"
    )
    row = fallback_row("persistent://t/ns/x-partition-0", (5, 6), message, 4_096)
    assert [row[name] for name in c.POSITION] == ["persistent://t/ns/x-partition-0", 5, 6, 2]
    assert (row[c.PUBLISH_MS], row[c.DUE_MS], row[c.NO_REQUEST]) == (SENT_MS, 0, "CHUNK: why")
    assert row[c.PAYLOAD] == b"x" * 4_097
    assert dict(row[c.MESSAGE_PROPERTIES]) == {"a": "?", "b": "c", CUT_FROM: str(3 << 20)}


def test_a_message_larger_than_a_request_may_be_is_no_request_even_after_a_cut() -> None:
    asked = encode(data_request(5))
    row = fallback_row(
        "persistent://t/ns/x",
        (5, 6),
        UndeliveredMessage(
            batch_index=-1, content=Content(key=None, payload=asked + b" " * 9, properties={}), publish_ms=SENT_MS
        ),
        len(asked),
    )
    assert (row[c.REFERENCE_KEY], len(row[c.PAYLOAD])) == (None, len(asked) + 1)


@pytest.mark.parametrize(("key", "kept"), [(b"k", b"k"), (b"k" * (MAX_ABOUT_BYTES + 1), None)], ids=["small", "large"])
def test_key_and_properties_of_a_message_are_bounded_too(key: bytes, kept: bytes | None) -> None:
    row = fallback_row(
        "persistent://t/ns/x",
        (5, 6),
        UndeliveredMessage(
            batch_index=-1, content=Content(key=key, payload=b"", properties={"a": "b"}), publish_ms=SENT_MS
        ),
        9,
    )
    assert row[c.MESSAGE_KEY] == kept
    assert row[c.MESSAGE_PROPERTIES] == ([("a", "b")] if kept else [])


def test_a_refused_message_that_resembles_a_request_has_no_owner_to_read() -> None:
    asked = encode(data_request(5))
    rows = [
        fallback_row(
            "persistent://t/ns/x",
            (5, 6),
            UndeliveredMessage(
                batch_index=-1, content=Content(key=None, payload=asked, properties={}), publish_ms=SENT_MS, why=why
            ),
            len(asked),
        )
        for why in (None, Undeliverable.OPEN_TRANSACTION)
    ]
    assert [row[c.REFERENCE_KEY] is None for row in rows] == [False, True]
    assert [row[c.PAYLOAD] for row in rows] == [asked, asked]
