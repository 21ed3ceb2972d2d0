"""An entry as the admin API returns it: its headers are read, and nonsense in them counts as absent."""

from dataclasses import replace

import pytest

from udfs.formats.entry import EntryState
from udfs.formats.entry_answer import entry_of
from udfs.undelivered import Undeliverable, UndeliveredMessage, found_in

REQUEST = b'{"ledgerId": 7}'


def _why(message: UndeliveredMessage) -> tuple[int, bytes, Undeliverable | None]:
    return message.batch_index, message.content.payload, message.why


# as a broker of Pulsar 4.0.8 answers
SHOWN = {
    "content-type": "application/json",
    "x-pulsar-message-id": "168:1",
    "x-pulsar-property": '{"p":"v"}',
    "x-pulsar-publish-time": "2026-11-22T14:12:04.649Z",
    "x-pulsar-is-encrypted": "false",
    "x-pulsar-producer-name": "sandbox-0-199",
    "x-pulsar-sequence-id": "0",
    "x-pulsar-partition-key": "k",
    "x-pulsar-partition-key-b64-encoded": "false",
    "x-pulsar-txn-uncommitted": "false",
}
TRANSACTION = {"x-pulsar-txnid-least-bits": "0", "x-pulsar-txnid-most-bits": "3"}


def test_an_entry_that_the_admin_api_returns_is_read_from_its_headers() -> None:
    shown, standing = entry_of(SHOWN, REQUEST)
    assert standing is EntryState.DELIVERED
    assert (shown.publish_ms, shown.key, shown.properties, shown.payload) == (
        1_795_356_724_649,
        b"k",
        {"p": "v"},
        REQUEST,
    )
    assert [_why(message) for message in found_in(shown, standing)] == [(-1, REQUEST, None)]


@pytest.mark.parametrize(
    ("headers", "standing"),
    [
        pytest.param(TRANSACTION | {"x-pulsar-txn-aborted": "true"}, EntryState.ABORTED, id="aborted"),
        pytest.param(TRANSACTION | {"x-pulsar-txn-uncommitted": "true"}, EntryState.OPEN, id="open"),
        pytest.param(TRANSACTION | {"x-pulsar-txn-aborted": "false"}, EntryState.DELIVERED, id="committed"),
        pytest.param(
            {"x-pulsar-txn-uncommitted": "true"},
            EntryState.DELIVERED,
            id="of no transaction, after an open transaction",
        ),
    ],
)
def test_how_a_transaction_ended_is_read_from_the_headers(headers: dict[str, str], standing: EntryState) -> None:
    assert entry_of(SHOWN | headers, REQUEST)[1] is standing


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param("publish-time", "+146140482-04-24T15:36:27.904Z", {"publish_ms": 253_402_300_799_999}, id="late"),
        pytest.param("publish-time", "-292275055-05-16T16:47:04.192Z", {"publish_ms": 0}, id="early"),
        pytest.param("publish-time", "1969-12-31T23:59:59.999Z", {"publish_ms": 0}, id="just before 1970"),
        pytest.param("publish-time", "nonsense", {"publish_ms": 0}, id="no time"),
        pytest.param("property", "{", {"properties": {}}, id="no JSON"),
        pytest.param("property", "[1]", {"properties": {}}, id="no properties"),
        pytest.param("null-partition-key", "true", {"key": None}, id="no key"),
        pytest.param("marker-type", "22", {"marker_type": 22}, id="a marker"),
        pytest.param("marker-type", "?", {"marker_type": None}, id="no number"),
        pytest.param("num-batch-message", "2", {"batch_size": 2}, id="a batch"),
        pytest.param("is-encrypted", "true", {"is_encrypted": True}, id="encrypted"),
    ],
)
def test_each_header_is_read_and_nonsense_in_it_counts_as_absent(
    name: str, text: str, expected: dict[str, object]
) -> None:
    plain, _ = entry_of(SHOWN, REQUEST)
    assert entry_of(SHOWN | {f"x-pulsar-{name}": text}, REQUEST)[0] == replace(plain, **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "expected"), [("AP8=", b"\x00\xff"), ("no base64!", b"no base64!"), ("ä", "ä".encode())]
)
def test_a_key_marked_as_base64_is_decoded_if_it_is(key: str, expected: bytes) -> None:
    headers = {"x-pulsar-partition-key": key, "x-pulsar-partition-key-b64-encoded": "true"}
    assert entry_of(SHOWN | headers, REQUEST)[0].key == expected


def test_a_chunk_is_recognised_by_its_headers_and_a_single_chunk_is_whole() -> None:
    of_three = SHOWN | {"x-pulsar-chunk-id": "1", "x-pulsar-num-chunks-from-msg": "3", "x-pulsar-uuid": "u"}
    (message,) = found_in(entry_of(of_three, REQUEST)[0])
    assert message.why is Undeliverable.CHUNK
    assert entry_of(of_three | {"x-pulsar-num-chunks-from-msg": "1"}, REQUEST)[0].chunk is None
