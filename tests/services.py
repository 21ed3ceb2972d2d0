"""The service over parts in memory: a test names those that it looks at, the others are there and do nothing."""

import threading
from types import SimpleNamespace
from typing import Any, cast

from streaming.clock import ManualClock
from streaming.deletion.fair_lock import FairLock
from streaming.deletion.follow_up import FollowUp
from streaming.deletion.gate import Gate
from streaming.deletion.outages import Outages
from streaming.deletion.outbox import Outbox
from streaming.deletion.retries import Retries
from streaming.deletion.service import LedgerDeletionService
from streaming.in_use.cache import InUseCache
from streaming.in_use.loader import InUseLoader
from streaming.metrics import Metrics
from udfs.backoff import Backoff

EPOCH = 1


def service_of(**named: Any) -> LedgerDeletionService:
    """Put a service together; outages are waited for without a pause."""
    nothing: dict[str, Any] = dict.fromkeys(
        (
            "receipts",
            "copies",
            "coordination",
            "blast_radius",
            "breaker",
            "watch",
            "missing",
            "tenants",
            "waiting",
            "sweep",
        )
    )
    defaults: dict[str, Any] = {
        "cache": InUseCache(cast("InUseLoader", None), ManualClock(), 0, 0),
        "metrics": Metrics(),
        "clock": ManualClock(),
        "stop": threading.Event(),
        "state_dir": "/nowhere",
    }
    parts = SimpleNamespace(**nothing | defaults | named)
    outages = Outages(parts.stop, parts.metrics, lambda _text: None, backoff=Backoff((0,)))
    gate = Gate(
        parts.coordination,
        parts.blast_radius,
        parts.metrics,
        parts.clock,
        lambda _text: None,
        parts.stop,
        parts.state_dir,
        poll_s=1,
    )
    lock, describe = FairLock(parts.stop), lambda *_: None
    return LedgerDeletionService(
        parts.receipts,
        sweep=parts.sweep,
        outbox=Outbox(parts.receipts, parts.copies, parts.coordination, parts.blast_radius, gate, outages, EPOCH),
        follow_up=FollowUp(
            parts.receipts,
            parts.cache,
            parts.watch,
            parts.missing,
            parts.tenants,
            parts.breaker,
            outages,
            parts.metrics,
            lambda _text: None,
        ),
        retries=Retries(parts.waiting, parts.receipts, lock, gate, outages, parts.metrics, parts.clock, describe),
        gate=gate,
        outages=outages,
        lock=lock,
        clock=parts.clock,
        describe=describe,
        chunk_rows=1_000,
        max_request_bytes=4_000,
    )
