"""The examples of docs/phase-one.md are short, and work as described."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import UnavailableError
from streaming.phase_one.client import LedgerDeletionClient
from streaming.topics.requests import owner_key
from tests.builders import TOPIC, data_request
from tests.unit.phase_one.surroundings import Memory
from udfs.requests.request_format import decode

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def _drop() -> Any:
    return runpy.run_path(str(EXAMPLES / "producer.py"))["drop"]


@pytest.fixture
def memory() -> Memory:
    return Memory()


def test_the_producer_removes_a_ledger_from_the_list_after_a_durable_request(memory: Memory) -> None:
    seen: list[int] = []
    with LedgerDeletionClient(memory.settings, services=memory.services()) as client:
        _drop()(client, TOPIC, 5, lambda: seen.append(len(memory.sent())))
    assert seen == [1]
    assert [decode(each.payload) for each in memory.sent()] == [data_request(5)]


def test_the_producer_leaves_the_list_alone_where_the_request_may_not_be_durable(memory: Memory) -> None:
    seen: list[int] = []
    with LedgerDeletionClient(memory.settings, services=memory.services()) as client:
        memory.pulsar.faults.away = True
        with pytest.raises(UnavailableError):
            _drop()(client, TOPIC, 5, lambda: seen.append(5))
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
