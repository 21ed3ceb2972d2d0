"""PIP-186's LedgerDeletionService for programs that drop ledgers; the service that deletes is Ledger Reaper.

Rules for the caller:
1. Send the request before you drop the ledger from its list, and drop it only after the call has returned. A request
   for a ledger that stays in use is harmless: the service keeps the ledger.
2. A call that raised may have stored the request. Send it again: a second request finds the ledger gone.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from types import TracebackType

from ledger_reaper_client.errors import InvalidRequestError
from ledger_reaper_client.receipts import Receipt
from ledger_reaper_client.requests import LedgerComponent, LedgerType, OffloadContext, Request, request_for
from ledger_reaper_client.sending import Sending
from ledger_reaper_client.settings import Settings

WAIT_SECONDS = 900.0  # longer than the service's retry after 600 s, because it checks twice that an owner is gone
_METRICS = {
    LedgerType.LEDGER: "ledger_deletion_ledgers_sent_total",
    LedgerType.OFFLOAD_LEDGER: "ledger_deletion_offload_ledgers_sent_total",
}


class LedgerDeletionService:
    """Sends requests and waits for their receipts. Thread-safe. A context manager: starts at entry, closes at exit.

    Every method raises UnavailableError if a server does not answer, and RefusedError if it refuses.
    """

    def __init__(self, settings: Settings) -> None:
        self._sending = Sending(settings)

    @property
    def settings(self) -> Settings:
        """The settings of this client."""
        return self._sending.settings

    @property
    def sending(self) -> Sending:
        """The part that DeletableLedgers shares with this client."""
        return self._sending

    def start(self) -> None:
        """Get ready to send. Connects, and creates a lane, at the first request only. A second call does nothing."""
        self._sending.start()

    def close(self) -> None:
        """Wait for pending requests, then disconnect; waits for receipts fail. A second call does nothing."""
        self._sending.close()

    def send_pending_delete_ledger(  # noqa: PLR0913  PIP-186's parameters
        self,
        topic: str,
        ledger_id: int,
        context: OffloadContext | None,
        component: LedgerComponent,
        ledger_type: LedgerType,
        *,
        cursor_name: str | None = None,
    ) -> str:
        """Return the request's message id once it is durable; only then may the caller drop the ledger from its list.

        Raises InvalidRequestError, a ValueError, for arguments that the service would refuse.

        Args:
            topic: its name, persistent://tenant/ns/name; for a ledger of a partition, the name of the partition.
            ledger_id: the ledger.
            context: the upload, for OFFLOAD_LEDGER only.
            component: what the ledger belongs to.
            ledger_type: LEDGER in BookKeeper, or OFFLOAD_LEDGER in tiered storage.
            cursor_name: the subscription, for MANAGED_CURSOR.
        """
        return self._send(checked_request(topic, ledger_id, context, component, ledger_type, cursor_name=cursor_name))

    def delete_ledger(
        self,
        topic: str,
        ledger_id: int,
        component: LedgerComponent,
        *,
        cursor_name: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> Receipt:
        """Request the deletion of a ledger in BookKeeper, and return the final receipt, whatever the outcome.

        Raises ReceiptsOffError at once if the service publishes no receipts, and NoReceiptError if there is no final
        receipt in time; the request stays durable.
        """
        return self._delete(request_for(topic, ledger_id, component, cursor_name=cursor_name), timeout_seconds)

    def delete_offloaded_ledger(
        self, topic: str, ledger_id: int, context: OffloadContext, *, timeout_seconds: float = WAIT_SECONDS
    ) -> Receipt:
        """Request the deletion of an upload of a ledger to tiered storage, like delete_ledger()."""
        return self._delete(
            request_for(topic, ledger_id, LedgerComponent.MANAGED_LEDGER, context=context), timeout_seconds
        )

    def newest_receipt(self, topic: str, message_id: str) -> Receipt | None:
        """Return the newest receipt of an earlier request for a ledger of this topic; None if there is none (any more).

        Reads the whole receipt topic. Raises ReceiptsOffError.
        """
        return self._sending.topic_of(topic).newest_receipt(message_id)

    def estimated_inflight_deletion_ledger_count(self, topic: str) -> int:
        """Count the requests without a final receipt in the request topic for this topic's ledgers, retries included.

        0: every request that this client sent, and every one that the receipts name, is finished. A request that
        another client sent counts unless it is being processed at this moment. Reads the whole receipt topic, and what
        the service has not read of the request topic, so the role needs the right to consume both. Raises
        ReceiptsOffError.
        """
        return len(self._sending.topic_of(topic).unfinished())

    def metrics(self) -> Mapping[str, int]:
        """Return PIP-186's two metrics of senders: how many requests this client has sent, by the metric's name."""
        return {_METRICS[ledger_type]: count for ledger_type, count in self._sending.sent.items()}

    def _send(self, request: Request) -> str:
        topic, answer = self._sending.start_send(request)
        message_id = answer.result()
        topic.check_stored()
        return message_id

    def _delete(self, request: Request, timeout_seconds: float) -> Receipt:
        topic, answer, wait = self._sending.start_delete(request)
        try:
            wait.sent(answer.result())
            topic.check_stored()
            return wait.final.result(timeout_seconds)
        except concurrent.futures.TimeoutError:
            raise wait.error(f"none came within {timeout_seconds:g} s") from None
        finally:
            wait.drop()

    def __enter__(self) -> LedgerDeletionService:
        """Start, and return itself."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def checked_request(  # noqa: PLR0913  PIP-186's parameters
    topic: str,
    ledger_id: int,
    context: OffloadContext | None,
    component: LedgerComponent,
    ledger_type: LedgerType,
    *,
    cursor_name: str | None = None,
) -> Request:
    """Return the request for PIP-186's arguments. Raises InvalidRequestError for an invalid combination."""
    if (LedgerType(ledger_type) is LedgerType.OFFLOAD_LEDGER) != (context is not None):
        raise InvalidRequestError(
            f"ledger_type is {ledger_type}: OFFLOAD_LEDGER needs a context, and no other type takes one"
        )
    return request_for(topic, ledger_id, component, context=context, cursor_name=cursor_name)
