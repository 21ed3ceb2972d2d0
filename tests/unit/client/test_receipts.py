"""Receipts reach those who wait for them, whatever the order in which send and receipt are seen."""

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pulsar
import pytest

from ledger_reaper_client import NoReceiptError, Outcome, ReceiptsOffError, RefusedError, Settings
from ledger_reaper_client.admin import Admin, InternalStats
from ledger_reaper_client.receipts import ReceiptReader, parse_receipt, require_receipt_topic
from tests.contract.http_stub import CannedAnswer, http_stub

TOPIC = "persistent://acme/ledger-deletion/__ledger_deletion-RECEIPT"
PATH = "/admin/v2/persistent/acme/ledger-deletion/__ledger_deletion-RECEIPT"


def payload(message_id: str, outcome: str = "DELETED", **changes: Any) -> bytes:
    fields = {
        "version": 1,
        "messageId": message_id,
        "topic": "acme/app/persistent/orders",
        "ledgerId": 5,
        "component": "MANAGED_LEDGER",
        "type": "LEDGER",
        "outcome": outcome,
        "reason": "UNREFERENCED",
        "tries": 0,
        "atMs": 7,
    }
    return json.dumps({**fields, **changes}).encode()


INFINITE = payload("1:2:0").replace(b'"ledgerId": 5', b'"ledgerId": 1e999')


@dataclass
class FakeReader:
    """The library's reader, as far as it is used: read_next() raises Timeout where nothing arrives."""

    arriving: "queue.Queue[bytes]" = field(default_factory=queue.Queue)
    read: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    opened_after: Any = None
    is_closed: bool = False

    def create_reader(self, topic: str, after: pulsar.MessageId) -> "FakeReader":
        assert topic == TOPIC
        self.opened_after = (after.ledger_id(), after.entry_id())
        return self

    def read_next(self, timeout_millis: int) -> Any:
        try:
            data = self.arriving.get(timeout=timeout_millis / 1000)
        except queue.Empty:
            raise pulsar.Timeout from None
        if data == b"disconnected":
            raise pulsar.ConnectError

        class Message:
            def data(self) -> bytes:
                return data

        return Message()

    def close(self) -> None:
        self.is_closed = True


class FakeAdmin:
    def internal_stats(self, topic: str) -> InternalStats:
        return InternalStats((), {}, (9, 4))


@pytest.fixture
def fake() -> FakeReader:
    return FakeReader()


@pytest.fixture
def reader(fake: FakeReader) -> Iterator[ReceiptReader]:
    made = ReceiptReader(fake, FakeAdmin(), TOPIC)  # type: ignore[arg-type]
    yield made
    made.close()


def test_a_reader_starts_after_the_newest_receipt_at_a_position_that_it_names(
    fake: FakeReader, reader: ReceiptReader
) -> None:
    """From "latest", the library would skip what is published while it connects again."""
    assert fake.opened_after == (9, 4)


def test_a_final_receipt_ends_each_wait_for_it_and_a_retry_ends_none(fake: FakeReader, reader: ReceiptReader) -> None:
    first, second, other = reader.expect(), reader.expect(), reader.expect()
    first.sent("1:2:0")
    second.sent("1:2:0")
    other.sent("1:3:0")
    for data in (payload("1:2:0", "RETRY", reason="IN_USE"), b"garbage", INFINITE, b"disconnected", payload("1:2:0")):
        fake.arriving.put(data)
    assert first.final.result(10) == second.final.result(10)
    assert first.final.result().outcome is Outcome.DELETED
    assert not other.final.done()
    other.drop()
    other.drop()


def test_a_receipt_may_arrive_before_the_send_returns(fake: FakeReader, reader: ReceiptReader) -> None:
    early, marker = reader.expect(), reader.expect()
    marker.sent("9:9:0")
    fake.arriving.put(payload("1:2:0"))
    fake.arriving.put(payload("1:2:0", "RETRY"))  # a receipt may be published twice, and a final one stays final
    fake.arriving.put(payload("9:9:0"))
    assert marker.final.result(10)
    early.sent("1:2:0")
    assert early.final.result(10).outcome is Outcome.DELETED


def test_receipts_are_kept_only_while_a_send_is_under_way(fake: FakeReader, reader: ReceiptReader) -> None:
    marker = reader.expect()
    fake.arriving.put(payload("1:2:0"))
    marker.sent("9:9:0")
    fake.arriving.put(payload("9:9:0"))
    assert marker.final.result(10)
    assert not reader._kept
    dropped = reader.expect()
    dropped.drop()
    assert not reader._sending


def test_the_error_of_a_wait_names_the_newest_receipt(fake: FakeReader, reader: ReceiptReader) -> None:
    wait, marker = reader.expect(), reader.expect()
    wait.sent("1:2:0")
    marker.sent("9:9:0")
    assert "it has no receipt yet" in str(wait.error("none came"))
    fake.arriving.put(payload("1:2:0", "RETRY", reason="IN_USE"))
    fake.arriving.put(payload("9:9:0"))
    assert marker.final.result(10)
    error = wait.error("none came")
    assert "its newest receipt is RETRY IN_USE" in str(error)
    assert (error.message_id, error.newest and error.newest.reason) == ("1:2:0", "IN_USE")


def test_closing_ends_all_waits(fake: FakeReader, reader: ReceiptReader) -> None:
    wait = reader.expect()
    wait.sent("1:2:0")
    reader.close()
    reader.close()
    with pytest.raises(NoReceiptError, match="the client was closed"):
        wait.final.result(10)
    assert fake.is_closed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        payload("1:2:0", "GONE"),
        payload("1:2:0", version=2),
        payload("1:2:0", atMs=None),
        payload("1:2:0", ledgerId="x"),
        payload("1:2:0", ledgerId=float("inf")),
        payload("1:2:0", tries=float("nan")),
        payload("1:2:0", atMs=-float("inf")),
        b'{"version":1}',
    ],
)
def test_what_is_no_receipt_is_ignored(data: bytes) -> None:
    assert parse_receipt(data) is None


def test_a_receipt_of_a_message_that_was_no_request_has_no_ledger() -> None:
    receipt = parse_receipt(payload("1:2:0", "DEAD_LETTER", topic=None, ledgerId=None, component=None, type=None))
    assert receipt is not None
    assert (receipt.ledger_id, receipt.topic, receipt.is_final, receipt.is_gone) == (-1, "", True, False)


def test_without_a_receipt_topic_nothing_waits_unless_it_may_be_created() -> None:
    with http_stub() as stub:
        admin = Admin(Settings("pulsar://127.0.0.1:1", stub.url, lanes="tenant", timeout_seconds=2))
        stub.answer_with(
            f"{PATH}/partitions", CannedAnswer(404), CannedAnswer(404), CannedAnswer(200, b'{"partitions":4}')
        )
        with pytest.raises(ReceiptsOffError, match=r"the operator has set topics\.receipts"):
            require_receipt_topic(admin, TOPIC, None)
        assert [request.method for request in stub.requests] == ["GET"]
        stub.answer_with(PATH, CannedAnswer(204))
        stub.answer_with(f"{PATH}/retention", CannedAnswer(204))
        require_receipt_topic(admin, TOPIC, 60)
        assert json.loads(stub.requests[-1].body) == {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
        with pytest.raises(RefusedError, match="is partitioned"):
            require_receipt_topic(admin, TOPIC, 60)
