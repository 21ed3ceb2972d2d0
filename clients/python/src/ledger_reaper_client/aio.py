"""The client for asyncio: it never blocks the event loop, and any number of requests may be under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType

from ledger_reaper_client.client import WAIT_SECONDS, LedgerDeletionService, checked_request
from ledger_reaper_client.receipts import Receipt, Wait
from ledger_reaper_client.requests import LedgerComponent, LedgerType, OffloadContext, Request, request_for
from ledger_reaper_client.sending import Topic
from ledger_reaper_client.settings import Settings


class AsyncLedgerDeletionService:
    """Offers the methods of LedgerDeletionService as coroutines, with the same arguments and errors."""

    def __init__(self, settings: Settings) -> None:
        self._service = LedgerDeletionService(settings)
        self._sending = self._service.sending

    async def start(self) -> None:
        """Like LedgerDeletionService.start()."""
        await asyncio.to_thread(self._service.start)

    async def close(self) -> None:
        """Like LedgerDeletionService.close()."""
        await asyncio.to_thread(self._service.close)

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
        """Like LedgerDeletionService.send_pending_delete_ledger(). Cancellation does not withdraw the request."""
        request = checked_request(topic, ledger_id, context, component, ledger_type, cursor_name=cursor_name)
        # in a thread, because a producer with too many pending messages blocks its caller
        request_topic, answer = await asyncio.to_thread(self._sending.start_send, request)
        message_id = await asyncio.wrap_future(answer)
        await asyncio.to_thread(request_topic.check_stored)
        return message_id

    async def delete_ledger(
        self,
        topic: str,
        ledger_id: int,
        component: LedgerComponent,
        *,
        cursor_name: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> Receipt:
        """Like LedgerDeletionService.delete_ledger()."""
        return await self._delete(request_for(topic, ledger_id, component, cursor_name=cursor_name), timeout_seconds)

    async def delete_offloaded_ledger(
        self, topic: str, ledger_id: int, context: OffloadContext, *, timeout_seconds: float = WAIT_SECONDS
    ) -> Receipt:
        """Like LedgerDeletionService.delete_offloaded_ledger()."""
        request = request_for(topic, ledger_id, LedgerComponent.MANAGED_LEDGER, context=context)
        return await self._delete(request, timeout_seconds)

    async def newest_receipt(self, topic: str, message_id: str) -> Receipt | None:
        """Like LedgerDeletionService.newest_receipt()."""
        return await asyncio.to_thread(self._service.newest_receipt, topic, message_id)

    async def estimated_inflight_deletion_ledger_count(self, topic: str) -> int:
        """Like LedgerDeletionService.estimated_inflight_deletion_ledger_count()."""
        return await asyncio.to_thread(self._service.estimated_inflight_deletion_ledger_count, topic)

    def metrics(self) -> Mapping[str, int]:
        """Like LedgerDeletionService.metrics()."""
        return self._service.metrics()

    async def _delete(self, request: Request, timeout_seconds: float) -> Receipt:
        # no thread waits for a receipt, because other requests need the threads
        starting = asyncio.ensure_future(asyncio.to_thread(self._sending.start_delete, request))
        try:
            topic, answer, wait = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_drop)  # otherwise all receipts would be kept for this request
            raise
        try:
            wait.sent(await asyncio.wrap_future(answer))
            await asyncio.to_thread(topic.check_stored)
            return await asyncio.wait_for(asyncio.wrap_future(wait.final), timeout_seconds)
        except asyncio.TimeoutError:
            raise wait.error(f"none came within {timeout_seconds:g} s") from None
        finally:
            wait.drop()

    async def __aenter__(self) -> AsyncLedgerDeletionService:
        """Start, and return itself."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()


def _drop(starting: asyncio.Future[tuple[Topic, Future[str], Wait]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        _topic, _answer, wait = starting.result()
        wait.drop()
