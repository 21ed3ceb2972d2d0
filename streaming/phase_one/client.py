"""PIP-186's LedgerDeletionService for callers that drop ledgers; the service that deletes is in deletion/.

Rules for the caller:
1. Send the request before you drop the ledger from its list, and drop it only after the call has returned. A request
   for a ledger that stays in use is harmless: the sweep keeps the ledger.
2. A call that raised may have stored the request. Send it again: a second request finds the ledger gone.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from streaming.clients import admin_for, open_sender, reader_for
from streaming.config.settings import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.phase_one.receipts_by_message import NewestReceipts, Receipt, await_receipts, newest_receipts
from streaming.ports import Pulsar, RequestSender
from streaming.prometheus.registry import counter
from streaming.prometheus.table import PIP_186
from streaming.reconcile.backlog_count import backlog_of
from streaming.topics.requests import owner_key
from streaming.topics.setup import ensure_request_topic
from udfs.paths import topic_of
from udfs.phase_one.pip_186_metrics import SENT, sent_as
from udfs.phase_one.pip_186_requests import request_for
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete
from udfs.requests.request_format import encode

WAIT_SECONDS = 900.0  # longer than reconsume_later_seconds, because the sweep checks twice that an owner is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services that the client uses."""

    ensure_topic: Callable[[str], object]  # creates or checks the request topic
    open_sender: Callable[[str], RequestSender]  # opens a producer on a request topic
    receipts: NewestReceipts
    count: Callable[[], int]  # counts the waiting requests
    now_ms: Callable[[], int]  # this machine's clock


def services_of(settings: Settings) -> Services:
    """Return the Pulsar cluster and state directory of the configuration. Opens nothing yet."""

    def ensure(topic: str) -> None:
        with admin_for(settings) as admin:
            ensure_request_topic(admin, settings, topic)

    def count() -> int:
        with admin_for(settings) as admin:
            return int(backlog_of(settings, Pulsar(admin, reader_for(settings)))["messages"])

    return Services(
        ensure_topic=ensure,
        open_sender=partial(open_sender, settings),
        receipts=lambda ids, since_ms: newest_receipts(settings.state_dir, ids, since_ms),
        count=count,
        now_ms=lambda: time.time_ns() // 1_000_000,
    )


class LedgerDeletionClient:
    """Sends requests and reads their receipts. Thread-safe. A context manager: starts at entry, closes at exit.

    Every method raises UnavailableError if a server does not answer, and RefusedError if it refuses.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        topic: str = "",
        registry: CollectorRegistry | None = None,
        services: Services | None = None,
    ) -> None:
        """Create the client.

        Args:
            settings: of the service.
            topic: one of topics.requests (default: the first), or a topic that matches topics.requests_pattern.
            registry: gets PIP-186's two metrics of sent requests.
            services: those of the settings by default.
        """
        self._topic = topic_of(topic) if topic else settings.topics.requests[0]
        if not settings.topics.takes(self._topic):
            raise ConfigError(f"no service with this configuration reads {self._topic}: name one of topics.requests")
        self.services = services or services_of(settings)
        self._sender: RequestSender | None = None
        self.registry = registry or CollectorRegistry()
        self._sent = {metric: counter(PIP_186[metric], self.registry) for metric in SENT}

    def start(self) -> None:
        """Create the topic if it is missing, and connect a producer. A second call does nothing.

        Needs rights to that topic only. A role that may only produce can't create the topic, so it needs one that the
        service already reads.
        Raises ConfigError and RefusedError if a request could be lost there.
        """
        if self._sender is None:
            self.services.ensure_topic(self._topic)
            self._sender = self.services.open_sender(self._topic)

    def close(self) -> None:
        """Wait for pending requests, then disconnect. A second call does nothing."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def start_send(self, request: PendingDelete) -> "Future[str]":
        """Send a request; the future returns its message id once the request is durable."""
        if self._sender is None:
            raise UnavailableError("this client is not started, or closed already: call start() first")
        counter = self._sent[sent_as(request.ledger_type)]
        answer = self._sender.send(owner_key(request), encode(request))

        def count(sent: "Future[str]") -> None:
            if sent.exception() is None:
                counter.inc()

        answer.add_done_callback(count)
        return answer

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

        Raises ValueError for an invalid combination of arguments.

        Args:
            topic: its name, in any form; for a ledger of a partition, the name of the partition.
            ledger_id: the ledger.
            context: the upload, for OFFLOAD_LEDGER only.
            component: what the ledger belongs to.
            ledger_type: LEDGER in BookKeeper, or OFFLOAD_LEDGER in tiered storage.
            cursor_name: the subscription, for MANAGED_CURSOR.
        """
        request = checked_request(topic, ledger_id, context, component, ledger_type, cursor_name=cursor_name)
        return self.start_send(request).result()

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

        Raises UnavailableError if there is no final receipt in time; the request stays durable.
        """
        return self.finish(request_for(topic, ledger_id, component, cursor_name=cursor_name), timeout_seconds)

    def delete_offloaded_ledger(
        self, topic: str, ledger_id: int, context: OffloadContext, *, timeout_seconds: float = WAIT_SECONDS
    ) -> Receipt:
        """Request the deletion of an upload of a ledger to tiered storage, like delete_ledger()."""
        request = request_for(topic, ledger_id, LedgerComponent.MANAGED_LEDGER, context=context)
        return self.finish(request, timeout_seconds)

    def finish(self, request: PendingDelete, timeout_seconds: float = WAIT_SECONDS) -> Receipt:
        """Send a request and wait for its final receipt."""
        since_ms = self.services.now_ms()
        message_id = self.start_send(request).result()
        return await_receipts(self.services.receipts, [message_id], since_ms, timeout_seconds)[message_id]

    def newest_receipt(self, message_id: str, since_ms: int) -> Receipt | None:
        """Return the newest receipt of a request that was sent at since_ms or later; None if there is none yet."""
        return self.services.receipts([message_id], since_ms).get(message_id)

    def estimated_inflight_deletion_ledger_count(self) -> int:
        """Count the requests without a final receipt, including retries; 0: every request has its final receipt.

        It is an upper bound, because a request that moves while we count may count twice; it is exact if none moves or
        arrives.
        """
        return self.services.count()

    def __enter__(self) -> Self:
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
) -> PendingDelete:
    """Return the request for PIP-186's arguments. Raises ValueError for an invalid combination."""
    if (ledger_type is LedgerType.OFFLOAD_LEDGER) != (context is not None):
        raise ValueError(f"ledger_type is {ledger_type}: OFFLOAD_LEDGER needs a context, and no other type takes one")
    return request_for(topic, ledger_id, component, context=context, cursor_name=cursor_name)
