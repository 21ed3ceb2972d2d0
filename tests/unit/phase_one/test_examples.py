"""The examples of docs/phase-one.md are short, and work as described."""

import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ledger_reaper_client import UnavailableError
from ledger_reaper_client.client import checked_request
from streaming.topics.requests import owner_key
from tests.builders import TOPIC, data_request
from udfs.requests.request_format import decode

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def _drop() -> Any:
    return runpy.run_path(str(EXAMPLES / "producer.py"))["drop"]


@dataclass
class Sender:
    """Records what it would send."""

    fault: Exception | None = None
    sent: list[bytes] = field(default_factory=list)

    def send_pending_delete_ledger(self, *arguments: Any) -> str:
        if self.fault is not None:
            raise self.fault
        self.sent.append(checked_request(*arguments).payload)
        return "1:2:0"


def test_the_producer_removes_a_ledger_from_the_list_after_a_durable_request() -> None:
    sender = Sender()
    seen: list[int] = []
    assert _drop()(sender, TOPIC, 5, lambda: seen.append(len(sender.sent))) == "1:2:0"
    assert seen == [1]
    assert [decode(each) for each in sender.sent] == [data_request(5)]


def test_the_producer_leaves_the_list_alone_where_the_request_may_not_be_durable() -> None:
    seen: list[int] = []
    with pytest.raises(UnavailableError):
        _drop()(Sender(UnavailableError("no answer")), TOPIC, 5, lambda: seen.append(5))
    assert seen == []


def test_the_broker_plugin_writes_the_request_that_we_read() -> None:
    """The text of the plugin's request, with Java's escapes decoded and its strings joined."""
    source = (EXAMPLES / "BrokerPlugin.java").read_text()
    declared = source.partition("String REQUEST = ")[2].partition(";")[0]
    text = "".join(part for part in declared.replace('\\"', "\0").split('"')[1::2]).replace("\0", '"')
    assert decode((text % (TOPIC, 5)).encode()) == data_request(5)
    assert f'"{owner_key(data_request(5)).decode().partition(":")[0]}:" + managedLedger' in source


@pytest.mark.parametrize("name", ["producer.py", "BrokerPlugin.java"])
def test_an_example_fits_on_a_screen(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 20
