"""A mark is removed only after the service has said that its ledger is gone, and a listed ledger is never requested."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from ledger_reaper_client import DeletableLedgers, Outcome, Receipt, RefusedError, Removal, Settings, UnavailableError
from ledger_reaper_client.admin import Admin
from ledger_reaper_client.marks import MOST_ZNODE_BYTES
from ledger_reaper_client.requests import Request
from tests.contract.http_stub import CannedAnswer, HttpStub, http_stub

TOPIC = "persistent://acme/app/orders"
PATH = "/admin/v2/persistent/acme/app/orders"
KEY = "ledger-reaper.deletable.m.0"


def info(*listed: int, **properties: str) -> CannedAnswer:
    ledgers = [{"ledgerId": ledger_id, "isOffloaded": False} for ledger_id in listed]
    return CannedAnswer(200, json.dumps({"ledgers": ledgers, "properties": properties}).encode())


def marked(ledgers: str) -> dict[str, str]:
    return {KEY: json.dumps({"v": 1, "ledgers": ledgers})}


@dataclass
class Wait:
    final: "Future[Receipt]"

    def sent(self, message_id: str) -> None:
        pass

    def drop(self) -> None:
        pass


class RequestTopic:
    def check_stored(self) -> None:
        pass


@dataclass
class Sending:
    """The client's part that sends: answers each request with an outcome by ledger, and records the ledgers."""

    admin: Admin
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def start_delete(self, request: Request) -> Any:
        ledger_id = json.loads(request.payload)["ledgerId"]
        self.asked.append(ledger_id)
        sent: Future[str] = Future()
        sent.set_result("1:2:0")
        wait = Wait(Future())
        if ledger_id in self.outcomes:
            wait.final.set_result(Receipt("1:2:0", TOPIC, ledger_id, "", "", self.outcomes[ledger_id], "ANY", 0, 0))
        return RequestTopic(), sent, wait


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    with http_stub() as opened:
        opened.answer_with(f"{PATH}/properties", CannedAnswer(204))
        yield opened


@pytest.fixture
def sending(stub: HttpStub) -> Sending:
    return Sending(Admin(Settings("pulsar://127.0.0.1:1", stub.url, lanes="tenant", timeout_seconds=2)))


@pytest.fixture
def marks(sending: Sending) -> DeletableLedgers:
    class Service:
        pass

    service: Any = Service()
    service.sending = sending
    return DeletableLedgers(service)


def written(stub: HttpStub) -> list[tuple[str, Any]]:
    """Return what changed the properties: ("PUT", values) and ("DELETE", key)."""
    return [
        (each.method, each.path.partition("key=")[2] or list(json.loads(each.body).values()))
        for each in stub.requests
        if each.method != "GET"
    ]


def test_only_what_is_gone_loses_its_mark(stub: HttpStub, sending: Sending, marks: DeletableLedgers) -> None:
    sending.outcomes = {5: Outcome.DELETED, 6: Outcome.ALREADY_GONE, 7: Outcome.DEAD_LETTER}
    rest = {"ledger-reaper.deletable.n.0": '{"v":1,"ledgers":"7-9"}'}

    def answers() -> Iterator[CannedAnswer]:
        yield info(9, **marked("5-9"))
        yield info(9, **marked("5-9"), **rest)

    stub.answer_with(f"{PATH}/internal-info", *answers())
    with pytest.raises(UnavailableError, match="does not have the marks"):  # their key has a name that nobody knows
        marks.remove_all_deletable_ledgers(TOPIC, timeout_seconds=0)
    assert sorted(sending.asked) == [5, 6, 7, 8], "a listed ledger was requested"
    assert written(stub) == [("PUT", ['{"v":1,"ledgers":"7-9"}'])], "a mark was removed before the rest was durable"


def test_a_key_is_removed_when_all_its_ledgers_are_gone(
    stub: HttpStub, sending: Sending, marks: DeletableLedgers
) -> None:
    sending.outcomes = {5: Outcome.DELETED, 6: Outcome.ALREADY_GONE}
    stub.answer_with(f"{PATH}/internal-info", info(9, **marked("5-6")))
    assert marks.remove_all_deletable_ledgers(TOPIC, timeout_seconds=0) == Removal(gone=2)
    assert written(stub) == [("DELETE", KEY)]


def test_a_request_without_a_final_receipt_leaves_its_mark(
    stub: HttpStub, sending: Sending, marks: DeletableLedgers
) -> None:
    sending.outcomes = {5: Outcome.DEAD_LETTER}
    stub.answer_with(f"{PATH}/internal-info", info(**marked("5-6")))
    removal = marks.remove_all_deletable_ledgers(TOPIC, timeout_seconds=0)
    assert removal == Removal(asked=2, dead_letters=1)
    assert not removal.is_done
    assert written(stub) == []


def test_marks_that_the_store_does_not_have_are_an_error(stub: HttpStub, marks: DeletableLedgers) -> None:
    stub.answer_with(f"{PATH}/internal-info", info(9))
    with pytest.raises(UnavailableError, match="does not have the marks"):
        marks.mark_deletable_ledgers(TOPIC, [5])


def test_marks_that_could_make_the_znode_too_large_are_refused(stub: HttpStub, marks: DeletableLedgers) -> None:
    stub.answer_with(f"{PATH}/internal-info", info(9, other="x" * (MOST_ZNODE_BYTES - 100)))
    with pytest.raises(RefusedError, match="mark fewer ledgers"):
        marks.mark_deletable_ledgers(TOPIC, [5])
    assert written(stub) == []


def test_more_marks_than_can_be_read_again_are_refused(stub: HttpStub, marks: DeletableLedgers) -> None:
    stub.answer_with(f"{PATH}/internal-info", info(9, **marked("0-499999")))
    with pytest.raises(RefusedError, match="at most 500000 marked"):
        marks.mark_deletable_ledgers(TOPIC, [10**12])
    assert written(stub) == []


@pytest.mark.parametrize("answer", [CannedAnswer(200, b"{}"), CannedAnswer(200, b"[]"), CannedAnswer(404)])
def test_a_topic_without_a_list_has_no_marks(stub: HttpStub, marks: DeletableLedgers, answer: CannedAnswer) -> None:
    stub.answer_with(f"{PATH}/internal-info", answer)
    with pytest.raises(RefusedError, match="name the partition"):
        marks.marks_of(TOPIC)
