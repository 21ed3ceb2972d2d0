"""PIP-186's LedgerDeletionService as whoever drops ledgers calls it; the sweep's service is another (deletion/).

Rules for the caller:
1. Send the request before you drop the ledger from its list, and drop it only once the call has returned. A request for
   a ledger that stays in use does no harm: the sweep keeps the ledger.
2. A call that raised may have stored the request. Send it again: a second request finds the ledger gone.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from streaming.adapters.pulsar.producer import PulsarRequestSender
from streaming.clients import admin_for, reader_for
from streaming.config.settings import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.metrics import pip_186_counters
from streaming.phase_one.receipts import Look, Receipt, await_receipts, newest_receipts
from streaming.ports import Pulsar, RequestSender
from streaming.reconcile.backlog import backlog_of
from streaming.topics.requests import owner_key
from streaming.topics.setup import ensure_request_topic
from udfs.paths import topic_of
from udfs.phase_one.metrics import SENT, sent_as
from udfs.phase_one.requests import request_for
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete
from udfs.wire import encode

WAIT_SECONDS = 900.0  # longer than one reconsume_later_seconds: an owner that is gone must be seen gone twice


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the client talks to; tests hand in others."""

    ensure_topic: Callable[[str], object]  # creates or checks the topic that requests are sent to
    open_sender: Callable[[str], RequestSender]  # a producer on a request topic
    look: Look  # the newest receipts
    count: Callable[[], int]  # how many requests wait
    now_ms: Callable[[], int]  # this machine's clock


def surroundings_of(settings: Settings) -> Surroundings:
    """Return Pulsar and the state directory as the configuration names them. Nothing is opened yet."""

    def ensure(topic: str) -> None:
        with admin_for(settings) as admin:
            ensure_request_topic(admin, settings, topic)

    def count() -> int:
        with admin_for(settings) as admin:
            return int(backlog_of(settings, Pulsar(admin, reader_for(settings)))["messages"])

    return Surroundings(
        ensure_topic=ensure,
        open_sender=lambda topic: PulsarRequestSender(settings.pulsar, topic),
        look=lambda ids, since_ms: newest_receipts(settings.state_dir, ids, since_ms),
        count=count,
        now_ms=lambda: time.time_ns() // 1_000_000,
    )


class LedgerDeletionClient:
    """Sends requests and finds out what became of them. Thread-safe. A context manager: start at entry, close at exit.

    topic: one of topics.requests, or one that topics.requests_pattern takes; the first of topics.requests by default.
    registry: the two of PIP-186's metrics that count what was sent are registered there. Every method raises
    UnavailableError where a service does not answer, and RefusedError where it says no.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        topic: str = "",
        registry: CollectorRegistry | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._topic = topic_of(topic) if topic else settings.topics.requests[0]
        if not settings.topics.takes(self._topic):
            raise ConfigError(f"no service with this configuration reads {self._topic}: name one of topics.requests")
        self.around = surroundings or surroundings_of(settings)
        self._sender: RequestSender | None = None
        self.registry = registry or CollectorRegistry()
        self._sent = pip_186_counters(self.registry, SENT)

    def start(self) -> None:
        """Create the topic if it is missing, and connect a producer. A second call does nothing.

        Needs rights to that topic alone; a role that may only produce needs a topic that the service reads already.
        Raises ConfigError and RefusedError where a request could be lost there.
        """
        if self._sender is None:
            self.around.ensure_topic(self._topic)
            self._sender = self.around.open_sender(self._topic)

    def close(self) -> None:
        """Wait for what is under way, then disconnect. A second call does nothing."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def begin_send(self, request: PendingDelete) -> "Future[str]":
        """Put a request under way; the future is its message id, once it is durable."""
        if self._sender is None:
            raise UnavailableError("this client is not started, or closed already: call start() first")
        counter = self._sent[sent_as(request.ledger_type)]
        answer = self._sender.send(owner_key(request), encode(request))

        def count(done: "Future[str]") -> None:
            if done.exception() is None:
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
        """Return the request's message id when it is durable; only then may the caller drop the ledger from its list.

        topic: any form of its name, a partition's for a partition. context: for OFFLOAD_LEDGER, which upload; else
        None. cursor_name: the subscription, for MANAGED_CURSOR. Raises ValueError for arguments that make no request.
        """
        request = checked_request(topic, ledger_id, context, component, ledger_type, cursor_name=cursor_name)
        return self.begin_send(request).result()

    def delete_ledger(
        self,
        topic: str,
        ledger_id: int,
        component: LedgerComponent,
        *,
        cursor_name: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
    ) -> Receipt:
        """Have the sweep delete a ledger in BookKeeper; return its final receipt, whatever the outcome.

        Raises UnavailableError where there is none within the time: the request is durable and stays so.
        """
        return self.finish(request_for(topic, ledger_id, component, cursor_name=cursor_name), timeout_seconds)

    def delete_offloaded_ledger(
        self, topic: str, ledger_id: int, context: OffloadContext, *, timeout_seconds: float = WAIT_SECONDS
    ) -> Receipt:
        """Have the sweep delete one upload of a ledger to tiered storage; otherwise as delete_ledger."""
        request = request_for(topic, ledger_id, LedgerComponent.MANAGED_LEDGER, context=context)
        return self.finish(request, timeout_seconds)

    def finish(self, request: PendingDelete, timeout_seconds: float = WAIT_SECONDS) -> Receipt:
        """Send a request and wait for its final receipt."""
        since_ms = self.around.now_ms()
        message_id = self.begin_send(request).result()
        return await_receipts(self.around.look, [message_id], since_ms, timeout_seconds)[message_id]

    def newest_receipt(self, message_id: str, since_ms: int) -> Receipt | None:
        """Return the newest answer to a request that was sent at since_ms or later; None: there is none yet."""
        return self.around.look([message_id], since_ms).get(message_id)

    def estimated_inflight_deletion_ledger_count(self) -> int:
        """Count the requests that wait, retries included: an upper bound, exact while nothing moves.

        0: every request has its final receipt.
        """
        return self.around.count()

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
    """Return the request that PIP-186's arguments make. Raises ValueError where they make none."""
    if (ledger_type is LedgerType.OFFLOAD_LEDGER) != (context is not None):
        raise ValueError(f"context is for OFFLOAD_LEDGER alone, which needs it; ledger_type is {ledger_type}")
    return request_for(topic, ledger_id, component, context=context, cursor_name=cursor_name)
