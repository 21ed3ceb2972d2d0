"""Runs the watcher: by itself (`ledger-reaper watch`), or in a thread of the service ([watch] enabled).

After an error the watcher is created again from its state. It has a lock of its own, so that a service and a separate
watcher, or two services with the same name, never publish twice.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from streaming.audit.walk.suspects import LedgerReader
from streaming.beside import Beside, Work
from streaming.clients import (
    admin_for,
    broker_for,
    command_clients,
    metadata_stores_of,
    open_hints,
    open_store,
    open_trim_facts,
)
from streaming.clock import SystemClock
from streaming.config.combinations import watch_faults
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.live_store import require_live_store, stop_at_migration
from streaming.coordination.lock import WATCH, InstanceLock
from streaming.errors import ConfigError, RefusedError, StopRequestedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.metrics import exporting
from streaming.phase_one.deletable_ledgers import deletable_ledgers_on
from streaming.phase_one.watcher.marks.mark_removal import Tools
from streaming.phase_one.watcher.marks.marking import Marking
from streaming.phase_one.watcher.marks.marking_thread import MarkingThread
from streaming.phase_one.watcher.marks.signs import SignCollector
from streaming.phase_one.watcher.pulsar_publication import PulsarPublication
from streaming.phase_one.watcher.request_outbox import RequestOutbox
from streaming.phase_one.watcher.scan import ZnodeScan
from streaming.phase_one.watcher.unlisted import UnlistedLedgers, broker_sessions
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.phase_one.watcher.watcher import Parts, StillNames, Watcher
from streaming.ports import ChangeHints, MetadataStore, TopicAdmin
from streaming.prometheus import table
from streaming.prometheus.health import Health
from streaming.prometheus.registry import Registry
from streaming.prometheus.server import serving
from streaming.prometheus.table import Group
from streaming.spark.jars import versions
from streaming.state.notes.watcher_note import note, noted
from streaming.state.watched import Watched
from streaming.sweep.pace import Pace
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT

log = logging.getLogger("ledger-reaper")

_TICK_S = 1.0
_AGAIN_S = (1.0, 5.0, 15.0, 60.0)  # between an error and the next try; the last pause repeats
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True)
class Connections:
    """Functions that open the watcher's connections. The caller closes them."""

    store: Callable[[Settings], MetadataStore] = open_store
    hints: Callable[[Settings, Sequence[str]], ChangeHints] = open_hints
    admin: Callable[[Settings], AbstractContextManager[TopicAdmin]] = admin_for


def watch(settings: Settings, stop: threading.Event, listener: socket.socket | None = None) -> None:
    """Watch until stop is set. Raises ConfigError, SafetyError, FencedError; retries after temporary errors.

    listener: listens for Prometheus; None: no metrics are served.
    """
    health = Health()
    metrics = WatchMetrics(Registry(Group.PROCESS), health)
    metrics.not_watching("starting: the watcher does not watch yet")
    with contextlib.ExitStack() as stack:
        stack.enter_context(serving(metrics.registry, health, listener))
        if settings.metrics.otlp_endpoint:
            stack.enter_context(exporting(metrics.registry, health, settings.metrics.otlp_endpoint))
        _watch(settings, stop, metrics)


def _watch(settings: Settings, stop: threading.Event, metrics: WatchMetrics) -> None:
    if faults := watch_faults(settings.topics):
        raise ConfigError("; ".join(faults))
    try:
        with contextlib.closing(open_store(settings)) as store:
            require_live_store(store, partial(metadata_stores_of, settings), sleep=stop.wait)
    except StopRequestedError:
        return
    except UnavailableError as error:  # ZooKeeper or the brokers may only be late
        log.warning("the watcher starts without what it needs, and asks again: %s", error)
    repeat(lambda: watch_once(settings, metrics, stop, Connections()), metrics, stop)


def watching(settings: Settings, registry: Registry) -> Beside:
    """Return the watcher's thread, not started yet. It logs and retries after every error; the service continues."""
    stop = threading.Event()
    metrics = WatchMetrics(registry)

    def run() -> None:
        while not stop.is_set():
            repeat(lambda: watch_once(settings, metrics, stop, Connections()), metrics, stop)

    def on_failure(error: Exception) -> None:
        metrics.count(table.WATCH_FAILURES)
        log.error("ALARM: the watcher does not run; next try in a minute: %s", error, exc_info=error)

    return Beside(Work(name="watch", run=run, every_s=_AGAIN_S[-1], leave_s=_LEAVE_S, on_failure=on_failure), stop)


def repeat(
    once: Callable[[], None],
    metrics: WatchMetrics,
    stop: threading.Event,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Call `once` again after each temporary error, with growing pauses. Raises other errors."""
    failures = 0
    while not stop.is_set():
        metrics.beat()  # also while ZooKeeper is away
        started_s = monotonic()
        try:
            once()
        except StopRequestedError:
            return
        except (UnavailableError, RefusedError) as error:
            metrics.count(table.WATCH_FAILURES)
            log.warning("the watcher starts again: %s", error)
            if monotonic() - started_s > _AGAIN_S[-1]:
                failures = 0  # it ran for a while before this error
            stop.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
            failures += 1


def watch_once(settings: Settings, metrics: WatchMetrics, stop: threading.Event, connections: Connections) -> None:
    """Watch until stop is set.

    Raises SafetyError if another watcher of this name runs, or if the state belongs to another cluster or instance.
    """
    over = threading.Event()  # another watcher may have the lock
    with contextlib.ExitStack() as stack:
        store = connections.store(settings)
        stack.callback(store.close)
        name = settings.service.name + WATCH
        # a lock of its own: a service and a separate watcher, or two services with the same name, never publish twice
        stack.enter_context(InstanceLock(store, settings.zookeeper.own_root, name, on_lost=over.set, stop=stop))
        stop_at_migration(store)
        _hold(settings, store, connections.admin)
        _identify(settings, metrics)
        hints = connections.hints(settings, (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT))
        stack.callback(hints.close)
        parts = parts_of(settings, store, hints, metrics, lambda: stop.is_set() or over.is_set())
        if settings.watch.mark_ahead:
            thread = stack.enter_context(_marking(settings, metrics))
            parts = replace(parts, signs=SignCollector(thread.hand_over))
        watcher = Watcher(parts, settings.watch.poll_seconds, stop)
        count = f"{len(parts.watched.nodes)} are known"
        first = "this is the first start, and the audit finds what has leaked before"
        log.info("watching the names in topics, cursors and schemas; %s", first if parts.watched.is_new else count)
        metrics.not_watching("")
        stack.callback(metrics.not_watching, "the watcher does not watch now; its log names the reason")

        def check() -> None:
            metrics.beat()
            stop_at_migration(store)

        take_turns(watcher, settings.state_dir, stop, over, check)


def take_turns(
    watcher: Watcher, state_dir: str, stop: threading.Event, over: threading.Event, check: Callable[[], None]
) -> None:
    """Let the watcher take a turn per second until stop is set, and write a note after each scan.

    Raises UnavailableError if `over` is set: another watcher may have the lock. A stop may raise StopRequestedError.

    check: raises an error if the watcher may not take its next turn.
    """
    scans = -1
    try:
        while not stop.is_set() and not over.is_set():
            check()
            watcher.turn()
            if scans != watcher.scans:
                scans = watcher.scans
                note(state_dir, watcher.note())
            stop.wait(_TICK_S)
    except StopRequestedError:
        if stop.is_set():
            raise
    if over.is_set() and not stop.is_set():
        raise UnavailableError("the ZooKeeper session of the watcher's lock has ended")


def _marking(settings: Settings, metrics: WatchMetrics) -> MarkingThread:
    marking = Marking(settings.watch.poll_seconds, settings.two_phase.send_delay_seconds, metrics)
    return MarkingThread(marking, lambda: _tools_of(settings), metrics, SystemClock().now_ms, _LEAVE_S)


@contextlib.contextmanager
def _tools_of(settings: Settings) -> Iterator[Tools]:
    """Open the marking's clients; the watcher's own connections must not wait for the marking."""
    with (
        command_clients(settings) as clients,
        deletable_ledgers_on(settings, clients.store) as marks,
        contextlib.closing(open_trim_facts(settings)) as facts,
    ):
        yield Tools(marks, facts, lambda: broker_sessions(clients.store))


def _hold(
    settings: Settings, store: MetadataStore, open_admin: Callable[[Settings], AbstractContextManager[TopicAdmin]]
) -> None:
    """Refuse another cluster's state. Without a broker, BookKeeper's instance id is enough, if it is known.

    Raises SafetyError, ConfigError, UnavailableError.
    """
    try:
        with open_admin(settings) as admin:
            identity.hold(identity.of_cluster(settings, store, admin), settings.state_dir)
    except UnavailableError:
        known = identity.known(settings.state_dir)
        if known is None or known.instance_id != identity.instance_id_of(store, settings.zookeeper.ledgers_root):
            raise


def _identify(settings: Settings, metrics: WatchMetrics) -> None:
    """Name the cluster in the metrics, unless a service has done so, and show the last scan of an earlier run."""
    known = identity.known(settings.state_dir)
    if not metrics.registry.is_identified and known is not None:
        metrics.registry.identify(settings.service.name, settings.metrics.cluster or known.pulsar_cluster)
        metrics.registry.set(table.BUILD_INFO, 1, *versions())
    metrics.recall(noted(settings.state_dir))


def parts_of(
    settings: Settings,
    store: MetadataStore,
    hints: ChangeHints,
    metrics: WatchMetrics,
    has_stopped: Callable[[], bool],
) -> Parts:
    """Open the state, and create a watcher's parts. Raises ConfigError, UnavailableError, SafetyError."""
    clock, root = SystemClock(), settings.zookeeper.ledgers_root
    pace = Pace(settings.watch.reads_per_second)
    watched = Watched(settings.state_dir)
    named = StillNames(watched)
    reader = LedgerReader(store, identity.read_layout(store, root), root, pace)
    loader = InUseLoader(store, broker_for(settings) if settings.safety.ask_broker else None, clock)
    delay_ms = settings.two_phase.send_delay_seconds * 1000
    return Parts(
        watched=watched,
        scan=ZnodeScan(store, pace, has_stopped),
        hints=hints,
        unlisted=UnlistedLedgers(store, reader, loader, named, settings.watch.unlisted_after_seconds * 1000),
        outbox=RequestOutbox(watched, PulsarPublication(settings), named, delay_ms),
        metrics=metrics,
        clock=clock,
    )
