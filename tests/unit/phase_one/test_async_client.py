"""The asyncio client behaves like the synchronous client, with many requests in flight."""

import asyncio

import pytest

from streaming.errors import UnavailableError
from streaming.phase_one.async_client import AsyncLedgerDeletionClient
from tests.builders import TOPIC, UUID
from tests.unit.phase_one.surroundings import Memory
from udfs.records import LedgerComponent, LedgerType, OffloadContext, Outcome, Reason

DATA, LEDGER = LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER


def test_many_are_sent_at_once_and_each_is_durable() -> None:
    memory = Memory()

    async def scene() -> list[str]:
        async with AsyncLedgerDeletionClient(memory.settings, services=memory.services()) as client:
            sends = [client.send_pending_delete_ledger(TOPIC, number, None, DATA, LEDGER) for number in range(20)]
            ids = await asyncio.gather(*sends)
            assert await client.estimated_inflight_deletion_ledger_count() == 20
            return ids

    ids = asyncio.run(scene())
    assert sorted(ids) == sorted(each.id for each in memory.sent())
    assert memory.senders[0].is_closed


def test_deletes_return_their_receipts_and_no_longer_than_asked() -> None:
    memory = Memory()

    async def scene() -> None:
        async with AsyncLedgerDeletionClient(memory.settings, services=memory.services()) as client:
            assert (await client.delete_ledger(TOPIC, 5, DATA)).outcome is Outcome.DELETED
            assert (await client.delete_offloaded_ledger(TOPIC, 5, OffloadContext(uuid=UUID))).is_final
            memory.answers = [(Outcome.RETRY, Reason.NOT_CLOSED)]
            with pytest.raises(UnavailableError, match="NOT_CLOSED"):
                await client.delete_ledger(TOPIC, 6, DATA, timeout_seconds=0)

    asyncio.run(scene())


def test_an_answer_that_was_lost_is_an_error() -> None:
    memory = Memory()

    async def scene() -> None:
        async with AsyncLedgerDeletionClient(memory.settings, services=memory.services()) as client:
            memory.pulsar.faults.fail_at(1)
            with pytest.raises(UnavailableError):
                await client.send_pending_delete_ledger(TOPIC, 5, None, DATA, LEDGER)

    asyncio.run(scene())
    assert memory.sent() == []
