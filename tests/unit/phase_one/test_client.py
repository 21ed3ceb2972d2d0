"""A caller of PIP-186's API drops a ledger only after a durable request, and gets the result of the request."""

import subprocess
import sys

import pytest

from streaming.errors import ConfigError, UnavailableError
from streaming.phase_one import client as module
from streaming.phase_one.client import LedgerDeletionClient
from tests.builders import CURSOR, TOPIC, UUID, cursor_request, data_request
from tests.unit.phase_one.surroundings import Memory
from udfs.phase_one.pip_186_metrics import Metric
from udfs.records import LedgerComponent, LedgerType, OffloadContext, Outcome, Reason
from udfs.requests.request_format import decode

DATA, LEDGER = LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def client(memory: Memory) -> LedgerDeletionClient:
    made = LedgerDeletionClient(memory.settings, services=memory.services())
    made.start()
    return made


def count(client: LedgerDeletionClient, metric: Metric) -> float | None:
    return client.registry.get_sample_value(f"ledger_deletion_{metric}_total")


def test_a_sent_request_is_in_the_request_topic_with_its_owner_as_key(
    memory: Memory, client: LedgerDeletionClient
) -> None:
    first = client.send_pending_delete_ledger(TOPIC, 5, None, DATA, LEDGER)
    second = client.send_pending_delete_ledger(
        TOPIC, 5, None, LedgerComponent.MANAGED_CURSOR, LEDGER, cursor_name=CURSOR
    )
    assert {each.id: (each.key, decode(each.payload)) for each in memory.sent()} == {
        first: (f"data:{TOPIC}", data_request(5)),
        second: (f"cursor:{TOPIC}/{CURSOR}", cursor_request(5)),
    }


def test_a_request_whose_answer_was_lost_is_an_error_and_may_be_sent_again(
    memory: Memory, client: LedgerDeletionClient
) -> None:
    memory.pulsar.faults.fail_at(1, applied=True)
    with pytest.raises(UnavailableError):
        client.send_pending_delete_ledger(TOPIC, 5, None, DATA, LEDGER)
    assert count(client, Metric.LEDGERS_SENT) == 0
    client.send_pending_delete_ledger(TOPIC, 5, None, DATA, LEDGER)
    assert len(memory.sent()) == 2
    assert count(client, Metric.LEDGERS_SENT) == 1


def test_the_topics_are_there_with_their_subscription_before_the_first_request(memory: Memory) -> None:
    LedgerDeletionClient(memory.settings, services=memory.services()).start()
    topics = memory.settings.topics
    for partition in memory.pulsar.topics[topics.requests[0]].partitions.values():
        assert topics.subscription in partition.cursors


def test_starting_and_closing_twice_is_harmless(memory: Memory, client: LedgerDeletionClient) -> None:
    client.start()
    client.close()
    client.close()
    assert [each.is_closed for each in memory.senders] == [True]
    with pytest.raises(UnavailableError, match="call start"):
        client.send_pending_delete_ledger(TOPIC, 5, None, DATA, LEDGER)


@pytest.mark.parametrize("ledger_type", [LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER])
def test_a_context_is_for_an_offloaded_ledger_alone(client: LedgerDeletionClient, ledger_type: LedgerType) -> None:
    context = OffloadContext(uuid=UUID) if ledger_type is LEDGER else None
    with pytest.raises(ValueError, match="OFFLOAD_LEDGER needs a context, and no other type takes one"):
        client.send_pending_delete_ledger(TOPIC, 5, context, DATA, ledger_type)


def test_delete_waits_for_the_final_receipt(
    memory: Memory, client: LedgerDeletionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.answers = [(Outcome.DELETED, Reason.UNREFERENCED)]
    receipt = client.delete_ledger(TOPIC, 5, DATA)
    assert (receipt.outcome, receipt.message_id) == (Outcome.DELETED, memory.sent()[0].id)
    assert client.delete_offloaded_ledger(TOPIC, 5, OffloadContext(uuid=UUID)).is_final
    assert count(client, Metric.OFFLOAD_LEDGERS_SENT) == 1


def test_waiting_for_a_delayed_request_ends_after_the_timeout(memory: Memory, client: LedgerDeletionClient) -> None:
    memory.answers = [(Outcome.RETRY, Reason.IN_USE)]
    with pytest.raises(UnavailableError, match=r"its newest receipt is IN_USE.*stay durable"):
        client.delete_ledger(TOPIC, 5, DATA, timeout_seconds=0)
    assert len(memory.sent()) == 1


def test_a_tenants_own_request_topic_may_be_named_if_the_service_reads_it(memory: Memory) -> None:
    own = "persistent://acme/reaper/deletions"
    with pytest.raises(ConfigError, match="no service with this configuration reads"):
        LedgerDeletionClient(memory.settings, topic=own, services=memory.services())
    topics = memory.settings.topics.model_copy(update={"requests": (*memory.settings.topics.requests, own)})
    memory.settings = memory.settings.model_copy(update={"topics": topics})
    with LedgerDeletionClient(memory.settings, topic=own, services=memory.services()) as client:
        client.send_pending_delete_ledger(TOPIC, 5, None, DATA, LEDGER)
        assert client.estimated_inflight_deletion_ledger_count() == 0
    assert len(memory.sent(own)) == 1


def test_it_needs_no_spark() -> None:
    """The client, its receipts and its count can be imported without pyspark."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import streaming.phase_one.async_client, streaming.phase_one.lines\n"
        "from streaming.phase_one.receipts_by_message import newest_receipts\n"
        "from streaming.state.waiting import outstanding\n"
        "assert newest_receipts(sys.argv[1], ['1:2:3'], 0) == {} and not list(outstanding(sys.argv[1]))\n"
    )
    subprocess.run([sys.executable, "-c", program, "/nonexistent/state"], check=True)
    assert module.WAIT_SECONDS > 600
