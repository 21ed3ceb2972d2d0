"""The service with parts in memory: a test passes the parts that it checks; the other parts do nothing."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from streaming.adapters.memory.bookies import MemoryBookies
from streaming.adapters.memory.objects import MemoryObjects
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryBroker
from streaming.clients import CommandClients
from streaming.clock import ManualClock
from streaming.deletion.chunks.follow_up import FollowUp
from streaming.deletion.chunks.outbox import Outbox
from streaming.deletion.fair_lock import FairLock
from streaming.deletion.gate import Gate, Outages
from streaming.deletion.retries import Retries
from streaming.deletion.service import LedgerDeletionService
from streaming.in_use.cache import InUseCache
from streaming.in_use.loader import InUseLoader
from streaming.metrics import Metrics
from streaming.ports import Bookies, Broker, MetadataStore, ObjectStore, Pulsar
from udfs.backoff import Backoff
from udfs.offload_drivers import Bucket

EPOCH = 1


def command_clients_of(
    store: MetadataStore,
    pulsar: MemoryPulsar | None = None,
    *,
    broker: Broker | None = None,
    bookies: Bookies | None = None,
    objects: Callable[[Bucket], ObjectStore] = lambda _bucket: MemoryObjects(),
) -> CommandClients:
    """Return a command's clients for services in memory."""
    memory_pulsar = pulsar or MemoryPulsar()
    return CommandClients(
        store=store,
        bookies=bookies or MemoryBookies(),
        objects=objects,
        open_pulsar=lambda: Pulsar(memory_pulsar, memory_pulsar),
        open_broker=lambda: broker or MemoryBroker(),
    )


def service_of(**replaced: Any) -> LedgerDeletionService:
    """Build a service that waits for the end of outages without a pause."""
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
        "cache": InUseCache(loader=cast("InUseLoader", None), clock=ManualClock(), refresh_ms=0, max_bytes=0),
        "metrics": Metrics(),
        "clock": ManualClock(),
        "stop": threading.Event(),
        "state_dir": "/nowhere",
    }
    parts = SimpleNamespace(**nothing | defaults | replaced)
    outages = Outages(stop=parts.stop, metrics=parts.metrics, log=lambda _text: None, backoff=Backoff((0,)))
    gate = Gate(
        coordination=parts.coordination,
        blast_radius=parts.blast_radius,
        metrics=parts.metrics,
        clock=parts.clock,
        log=lambda _text: None,
        stop=parts.stop,
        state_dir=parts.state_dir,
        poll_s=1,
    )
    lock, describe = FairLock(parts.stop), lambda *_: None
    return LedgerDeletionService(
        receipts=parts.receipts,
        sweep=parts.sweep,
        outbox=Outbox(
            receipts=parts.receipts,
            copies=parts.copies,
            coordination=parts.coordination,
            blast_radius=parts.blast_radius,
            gate=gate,
            outages=outages,
            epoch=EPOCH,
        ),
        follow_up=FollowUp(
            receipts=parts.receipts,
            cache=parts.cache,
            watch=parts.watch,
            missing=parts.missing,
            tenants=parts.tenants,
            breaker=parts.breaker,
            outages=outages,
            metrics=parts.metrics,
            log=lambda _text: None,
        ),
        retries=Retries(
            waiting=parts.waiting,
            receipts=parts.receipts,
            lock=lock,
            gate=gate,
            outages=outages,
            metrics=parts.metrics,
            clock=parts.clock,
            describe=describe,
        ),
        gate=gate,
        outages=outages,
        lock=lock,
        clock=parts.clock,
        describe=describe,
        chunk_rows=1_000,
        max_request_bytes=4_000,
    )
