"""Runs the watcher: by itself (`ledger-reaper watch`), or in a thread beside the service ([watch] enabled).

After an error the watcher is made anew from its state. The lock is of its own, so that a service and a watcher by
itself, or two services that share a name, never publish twice.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from streaming.adapters.pulsar.trims import PulsarTrimFacts
from streaming.adapters.zookeeper.changes import ZooKeeperChanges
from streaming.adapters.zookeeper.store import ZooKeeperStore
from streaming.audit.walk.suspects import LedgerReader
from streaming.clients import admin_for, admin_settings, broker_for, command_clients, zookeeper_settings
from streaming.clock import SystemClock
from streaming.config.combinations import watch_faults
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.lock import WATCH, InstanceLock
from streaming.errors import ConfigError, RefusedError, StopRequestedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.phase_one.marks import deletable_ledgers_on
from streaming.phase_one.watcher.ahead import Ahead
from streaming.phase_one.watcher.look import ZnodeLook
from streaming.phase_one.watcher.made import MadeLedgers, broker_sessions
from streaming.phase_one.watcher.marking import Marking, MarkingThread, Tools
from streaming.phase_one.watcher.metrics import WatchMetrics
from streaming.phase_one.watcher.outbox import Outbox
from streaming.phase_one.watcher.publication import PulsarPublication
from streaming.phase_one.watcher.watcher import Parts, StillNames, Watcher
from streaming.ports import ChangeHints, MetadataStore, TopicAdmin
from streaming.prometheus import serve
from streaming.state.watched import Watched
from streaming.state.watcher_note import note
from streaming.sweep.pace import Pace
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT

log = logging.getLogger("ledger-reaper")

_TICK_S = 1.0
_AGAIN_S = (1.0, 5.0, 15.0, 60.0)  # between an error and the next try, and for how long at most
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True)
class Doors:
    """How what the watcher talks to is opened. Whoever opens something closes it."""

    store: Callable[[Settings], MetadataStore] = lambda settings: ZooKeeperStore(zookeeper_settings(settings))
    hints: Callable[[Settings], ChangeHints] = lambda settings: ZooKeeperChanges(
        zookeeper_settings(settings), (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT)
    )
    admin: Callable[[Settings], AbstractContextManager[TopicAdmin]] = admin_for


def watch(settings: Settings, stop: threading.Event) -> None:
    """Watch until stop is set. Raises ConfigError, SafetyError, FencedError; what may pass is tried again."""
    if faults := watch_faults(settings.topics):
        raise ConfigError("; ".join(faults))
    metrics = WatchMetrics(registry := CollectorRegistry())
    if settings.metrics.port >= 0:
        address = settings.metrics.address
        log.info("metrics: http://%s:%s/metrics", address, serve(registry, address, settings.metrics.port))
    repeat(lambda: watch_once(settings, metrics, stop, Doors()), metrics, stop)


@contextlib.contextmanager
def watching(settings: Settings, registry: CollectorRegistry) -> Iterator[None]:
    """Watch in a thread until the block is left. Whatever goes wrong is logged and tried again; the service goes on."""
    stop = threading.Event()
    metrics = WatchMetrics(registry)

    def run() -> None:
        while not stop.is_set():
            try:
                repeat(lambda: watch_once(settings, metrics, stop, Doors()), metrics, stop)
            except Exception as error:
                metrics.failures.inc()
                log.error("ALARM: the watcher does not run, again in a minute: %s", error, exc_info=error)
                stop.wait(_AGAIN_S[-1])

    thread = threading.Thread(target=run, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_LEAVE_S)


def repeat(
    once: Callable[[], None],
    metrics: WatchMetrics,
    stop: threading.Event,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Do it again after each error that may pass, later and later. Raises the others."""
    failures = 0
    while not stop.is_set():
        began_s = monotonic()
        try:
            once()
        except StopRequestedError:
            return
        except (UnavailableError, RefusedError) as error:
            metrics.failures.inc()
            log.warning("the watcher begins anew: %s", error)
            if monotonic() - began_s > _AGAIN_S[-1]:
                failures = 0  # it had watched for a while
            stop.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
            failures += 1


def watch_once(settings: Settings, metrics: WatchMetrics, stop: threading.Event, doors: Doors) -> None:
    """Watch until stop is set. Raises SafetyError where another watcher of the name runs, or for another's state."""
    over = threading.Event()  # the lock may be another's
    with contextlib.ExitStack() as stack:
        store = doors.store(settings)
        stack.callback(store.close)
        name = settings.service.name + WATCH
        stack.enter_context(InstanceLock(store, settings.zookeeper.own_root, name, on_lost=over.set, stop=stop))
        _hold(settings, store, doors.admin)
        hints = doors.hints(settings)
        stack.callback(hints.close)
        parts = parts_of(settings, store, hints, metrics, lambda: stop.is_set() or over.is_set())
        if settings.watch.mark_ahead:
            thread = stack.enter_context(_marking(settings, metrics))
            parts = replace(parts, ahead=Ahead(thread.hand_over))
        watcher = Watcher(parts, settings.watch.poll_seconds, stop)
        how_many = f"{len(parts.watched.nodes)} are known"
        first = "this is the first start, and what has leaked before is the audit's"
        log.info("watching what topics, cursors and schemas name; %s", first if parts.watched.is_new else how_many)
        take_turns(watcher, settings.state_dir, stop, over)


def take_turns(watcher: Watcher, state_dir: str, stop: threading.Event, over: threading.Event) -> None:
    """Have the watcher take a turn a second until stop is set, and note what it sees.

    over: another may have the lock now. Then UnavailableError is raised; a stop raises StopRequestedError, or nothing.
    """
    looks = -1
    try:
        while not stop.is_set() and not over.is_set():
            watcher.turn()
            if looks != watcher.looks:
                looks = watcher.looks
                note(state_dir, watcher.note())
            stop.wait(_TICK_S)
    except StopRequestedError:
        if stop.is_set():
            raise
    if over.is_set() and not stop.is_set():
        raise UnavailableError("the ZooKeeper session that the watcher's lock lives by is over")


def _marking(settings: Settings, metrics: WatchMetrics) -> MarkingThread:
    marking = Marking(settings.watch.poll_seconds, settings.two_phase.send_delay_seconds, metrics)
    return MarkingThread(marking, lambda: _tools_of(settings), metrics, SystemClock().now_ms, _LEAVE_S)


@contextlib.contextmanager
def _tools_of(settings: Settings) -> Iterator[Tools]:
    """Open what marking talks to, beside the watcher's own connections, which must wait for nothing."""
    with (
        command_clients(settings) as clients,
        deletable_ledgers_on(settings, clients.store) as marks,
        contextlib.closing(PulsarTrimFacts(admin_settings(settings), broker_for(settings).is_loaded)) as facts,
    ):
        yield Tools(marks, facts, lambda: broker_sessions(clients.store))


def _hold(
    settings: Settings, store: MetadataStore, open_admin: Callable[[Settings], AbstractContextManager[TopicAdmin]]
) -> None:
    """Refuse another cluster's state. Without a broker, BookKeeper's name for itself is enough, if it is known.

    Raises SafetyError, ConfigError, UnavailableError.
    """
    try:
        with open_admin(settings) as admin:
            identity.hold(identity.of_cluster(settings, store, admin), settings.state_dir)
    except UnavailableError:
        known = identity.known_instance_id(settings.state_dir)
        if known != identity.instance_id_of(store, settings.zookeeper.ledgers_root):
            raise


def parts_of(
    settings: Settings,
    store: MetadataStore,
    hints: ChangeHints,
    metrics: WatchMetrics,
    has_stopped: Callable[[], bool],
) -> Parts:
    """Open the state, and put a watcher's parts together. Raises ConfigError, UnavailableError, SafetyError."""
    clock, root = SystemClock(), settings.zookeeper.ledgers_root
    pace = Pace(settings.watch.reads_per_second)
    watched = Watched(settings.state_dir)
    named = StillNames(watched)
    reader = LedgerReader(store, identity.read_layout(store, root), root, pace)
    loader = InUseLoader(store, broker_for(settings) if settings.safety.ask_broker else None, clock)
    delay_ms = settings.two_phase.send_delay_seconds * 1000
    return Parts(
        watched,
        ZnodeLook(store, pace, has_stopped),
        hints,
        MadeLedgers(store, reader, loader, named, settings.watch.unlisted_after_seconds * 1000),
        Outbox(watched, PulsarPublication(settings), named, delay_ms),
        metrics,
        clock,
    )
