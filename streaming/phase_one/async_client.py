"""The client for asyncio: it never blocks the event loop, and any number of requests may be under way at once."""

import asyncio
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from streaming.config.settings import Settings
from streaming.phase_one.client import WAIT_SECONDS, LedgerDeletionClient, Services, checked_request
from streaming.phase_one.receipts_by_message import POLL_SECONDS, Awaited, Receipt
from udfs.phase_one.pip_186_requests import request_for
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete


class AsyncLedgerDeletionClient:
    """Offers the methods of LedgerDeletionClient as coroutines, with the same arguments and errors."""

    def __init__(
        self,
        settings: Settings,
        *,
        topic: str = "",
        registry: CollectorRegistry | None = None,
        services: Services | None = None,
    ) -> None:
        self._client = LedgerDeletionClient(settings, topic=topic, registry=registry, services=services)
        self.registry = self._client.registry

    async def start(self) -> None:
        """Like LedgerDeletionClient.start()."""
        await asyncio.to_thread(self._client.start)

    async def close(self) -> None:
        """Like LedgerDeletionClient.close()."""
        await asyncio.to_thread(self._client.close)

    async def send_pending_delete_ledger(  # noqa: PLR0913  PIP-186's parameters
        self,
        topic: str,
        ledger_id: int,
        context: OffloadContext | None,
        component: LedgerComponent,
        ledger_type: LedgerType,
        *,
        cursor_name: str | None = None,
    ) -> str:
        """Like LedgerDeletionClient.send_pending_delete_ledger(). Cancellation does not withdraw the request."""
        request = checked_request(topic, ledger_id, context, component, ledger_type, cursor_name=cursor_name)
        return await self._send(request)

    async def delete_ledger(
        self,
        topic: str,
        ledger_id: int,
        component: LedgerComponent,
        *,
        cursor_name: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> Receipt:
        """Like LedgerDeletionClient.delete_ledger()."""
        return await self._finish(request_for(topic, ledger_id, component, cursor_name=cursor_name), timeout_seconds)

    async def delete_offloaded_ledger(
        self, topic: str, ledger_id: int, context: OffloadContext, *, timeout_seconds: float = WAIT_SECONDS
    ) -> Receipt:
        """Like LedgerDeletionClient.delete_offloaded_ledger()."""
        request = request_for(topic, ledger_id, LedgerComponent.MANAGED_LEDGER, context=context)
        return await self._finish(request, timeout_seconds)

    async def estimated_inflight_deletion_ledger_count(self) -> int:
        """Like LedgerDeletionClient.estimated_inflight_deletion_ledger_count()."""
        return await asyncio.to_thread(self._client.estimated_inflight_deletion_ledger_count)

    async def _send(self, request: PendingDelete) -> str:
        # in a thread, because a producer with too many pending messages blocks its caller
        message_id = await asyncio.to_thread(self._client.start_send, request)
        return await asyncio.wrap_future(message_id)

    async def _finish(self, request: PendingDelete, timeout_seconds: float) -> Receipt:
        services = self._client.services
        since_ms = services.now_ms()
        message_id = await self._send(request)
        clock = asyncio.get_running_loop().time
        awaited = Awaited([message_id], timeout_seconds, now_s=clock())
        # each read runs in a thread, and no thread waits between reads, because other requests need the threads
        while not awaited.take(await asyncio.to_thread(services.receipts, [message_id], since_ms), now_s=clock()):
            await asyncio.sleep(POLL_SECONDS)
        return awaited.final[message_id]

    async def __aenter__(self) -> Self:
        """Start, and return itself."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()
