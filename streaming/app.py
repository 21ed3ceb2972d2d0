"""Puts the parts together, starts the queries, watches them, and stops them without losing a request.

Only this module and streaming.lanes, on its word, start, stop and await anything.
"""

import contextlib
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from secrets import token_hex

from pyspark.sql import SparkSession

from streaming import identity, journal, own_znodes
from streaming.accounts import accounts_of
from streaming.adapters.clients import Clients, admin_for, clients_for
from streaming.adapters.coordination import AgreedClock, Epoch, InstanceLock, Pause, read_own
from streaming.adapters.pulsar_admin import PulsarAdmin
from streaming.believed import Accepted, Believed, accepted_path
from streaming.breaker import BlastRadius, Breaker, breaker_path, limits_of
from streaming.care import Beside, Care
from streaming.census import count_ledgers
from streaming.checkpoints import is_unfinished, location_of, refuse_changes, root_of
from streaming.clock import Clock, SystemClock
from streaming.config import Settings
from streaming.dead_letter_care import expire
from streaming.due import DueLoop
from streaming.errors import ReaperError, StopRequestedError, UnavailableError
from streaming.idle import is_idle
from streaming.in_use import InUseCache, InUseLoader
from streaming.lanes import Lanes
from streaming.metrics import Metrics
from streaming.one_cluster import require_brokers_store, require_exclusive_bookkeeper
from streaming.ports import MetadataStore, Znode
from streaming.queries import Query, stream
from streaming.recall import deletes_since
from streaming.receipts import Receipts
from streaming.s3a import faults_named
from streaming.service import Guards, Identity, LedgerDeletionService, translated
from streaming.session import Jars, jvm_signals, start
from streaming.signals import signals_told
from streaming.source_watch import SourceWatch
from streaming.sweep import SweepRules
from streaming.topics import ensure_topics
from streaming.waiting import Waiting
from streaming.worker import REQUESTS, RETRY
from udfs.blast_radius import HOUR_MS, Planned
from udfs.judge import Policy

log = logging.getLogger("ledger-reaper")

_DAY_MS = 24 * 3600 * 1000
_POLL_S = 0.5
_LAST_WORDS_S = 2.0
# what Spark's text of a failed query begins with, after the cause: positions and plan
_QUERY_AND_PLAN = "=== Streaming Query ==="
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): (.*)")
# Scala's own timeout, "Futures timed out after", is Spark's waiting for itself
_PULSAR_AWAY = re.compile(
    r"\S*\b(ConnectException|PulsarClientException|PulsarAdminException|TimeoutException)\b(?!: Futures timed out)"
)


@dataclass(slots=True)
class Instance:
    """What makes this process the one that may delete: lock, epoch, and the clients behind them."""

    clients: Clients
    admin: PulsarAdmin
    epoch: Epoch
    pause: Pause
    rules: SweepRules
    secret: bytes


def run(settings: Settings, jars: Callable[[], Jars], *, until_idle: bool = False) -> None:
    """Run the service until it is told to stop, or, with until_idle, until no request is waiting.

    Raises ReaperError's family; returns normally after a clean stop.
    """
    stop = threading.Event()
    try:
        _run(settings, jars, stop, until_idle=until_idle)
    except StopRequestedError:
        log.info("stopped before anything was begun")


def _run(settings: Settings, jars: Callable[[], Jars], stop: threading.Event, *, until_idle: bool) -> None:
    with signals_told(partial(_told, stop)), faults_named(settings.checkpoints), _instance(settings, stop) as instance:
        retry_partitions, dead_letter_partitions = ensure_topics(instance.admin, settings, stop)
        require_brokers_store(instance.clients.store, instance.clients.broker, f"{settings.topics.retry}-partition-0")
        refuse_changes(settings, instance.admin.partitions)
        spark = start(settings, jars())
        try:
            who = Identity(instance.rules, instance.secret, retry_partitions, dead_letter_partitions)
            service = _service(spark, settings, instance, who, stop)
            with jvm_signals(partial(_told, stop)):
                try:
                    service.publish_again()
                except StopRequestedError:
                    raise
                except Exception as error:
                    _raise_failure("of what was left to publish", error)
                _work(spark, settings, service, instance.admin, until_idle=until_idle)
        finally:
            spark.stop()


@contextlib.contextmanager
def _instance(settings: Settings, stop: threading.Event) -> Iterator[Instance]:
    require_exclusive_bookkeeper(settings)
    clients = clients_for(settings)
    admin = admin_for(settings)
    store, root, name = clients.store, settings.zookeeper.own_root, settings.service.name
    cluster = identity.read_identity(store, settings.zookeeper.ledgers_root, ",".join(sorted(admin.clusters())), name)
    with _alone(store, root, name, stop):
        for directory in (root_of(settings), settings.state.dir):
            identity.hold(cluster, directory)
        if opened := own_znodes.close(store, root):
            log.warning("closed to others, who could have changed them until now: %s", ", ".join(opened))
        epoch = Epoch.bump(store, root, name)
        log.info("epoch %s of instance %s on cluster %s", epoch.version, name, cluster.instance_id)
        rules = SweepRules(
            layout=identity.read_layout(store, settings.zookeeper.ledgers_root),
            ledgers_root=settings.zookeeper.ledgers_root,
            epoch=(epoch.path, epoch.version),
            policy=policy_of(settings),
        )
        yield Instance(clients, admin, epoch, Pause(store, root), rules, _secret(store, f"{root}/{own_znodes.SECRET}"))


@contextlib.contextmanager
def _alone(store: MetadataStore, root: str, name: str, stop: threading.Event) -> Iterator[None]:
    """Hold the instance's lock; what ends its session sets stop. Raises UnavailableError where no one else had set it.

    What the block itself raises comes first, unless it only stops.
    """
    lost: list[UnavailableError] = []

    def end() -> None:
        if not stop.is_set():
            lost.append(UnavailableError("the ZooKeeper session that the lock lives by is over; start again"))
            log.error("stopping: %s", lost[0])
            stop.set()

    try:
        with InstanceLock(store, root, name, on_lost=end, stop=stop):
            yield
    except StopRequestedError:
        if not lost:
            raise
    if lost:
        raise lost[0]


def policy_of(settings: Settings) -> Policy:
    """[safety] and [two_phase] as the judge takes them."""
    safety = settings.safety
    return Policy(
        min_age_ms=safety.min_age_seconds * 1000,
        above_newest_quarantine_ms=safety.above_newest_quarantine_seconds * 1000,
        absence_interval_ms=settings.two_phase.reconsume_later_seconds * 1000,
        open_quarantine_ms=safety.open_quarantine_days * _DAY_MS,
        max_shrink=safety.max_shrink,
        shrink_applies_above=safety.shrink_applies_above_ledgers,
    )


def _service(
    spark: SparkSession, settings: Settings, instance: Instance, who: Identity, stop: threading.Event
) -> LedgerDeletionService:
    clock = SystemClock()
    store = instance.clients.store
    loader = InUseLoader(store, instance.clients.broker if settings.safety.ask_broker else None, clock)
    cache = InUseCache(
        loader, clock, settings.in_use.refresh_seconds * 1000, settings.in_use.max_cache_mib * 1024 * 1024
    )
    receipts_table = Receipts(spark, settings.state.dir)
    identity.hold_state(receipts_table.table_id, root_of(settings))
    metrics = Metrics()
    if settings.metrics.port >= 0:
        log.info("metrics: http://127.0.0.1:%s/metrics", metrics.serve(settings.metrics.port))
    log.info("Spark UI: %s", spark.sparkContext.uiWebUrl)
    published = f"{settings.zookeeper.own_root}/instances/{settings.service.name}/published"
    store.create(published, b"", parents=True)

    def mark(text: str) -> None:
        store.set_data(published, text.encode())

    def known() -> str:
        node = read_own(store, published)
        return node.data.decode("utf-8", "replace") if node is not None else ""

    guards = Guards(
        still_mine=instance.epoch.still_mine,
        paused=instance.pause.reason,
        published=known,
        mark_published=mark,
        agreed_ms=AgreedClock(store, settings.zookeeper.own_root, settings.service.name).now_ms,
    )
    watch = _source_watch(settings, instance, loader)
    watch.recall(now_ms=clock.now_ms())
    return LedgerDeletionService(
        spark,
        settings,
        who,
        guards,
        cache,
        _blast_radius(settings, store, clock),
        receipts_table,
        watch,
        Waiting(spark, settings.state.dir),
        metrics,
        clock,
        log=lambda text: log.info("%s", text),
        stop=stop,
    )


def _source_watch(settings: Settings, instance: Instance, loader: InUseLoader) -> SourceWatch:
    zookeeper = settings.zookeeper
    accepted = Accepted(instance.clients.store, accepted_path(zookeeper.own_root, settings.service.name))
    return SourceWatch(
        Believed(instance.rules.policy),
        accepted.read,
        loader,
        settings.state.dir,
        instance.rules.layout,
        zookeeper.ledgers_root,
        log=lambda text: log.info("%s", text),
    )


def _blast_radius(settings: Settings, store: MetadataStore, clock: Clock) -> BlastRadius:
    zookeeper = settings.zookeeper
    breaker = Breaker(store, breaker_path(zookeeper.own_root, settings.service.name))
    state_dir = settings.state.dir

    def journaled(query: str, batch_id: int, since_ms: int) -> Planned:
        return journal.begun(state_dir, RETRY if query == RETRY else REQUESTS, batch_id, since_ms=since_ms)

    def census() -> int:
        return count_ledgers(store, zookeeper.ledgers_root)

    radius = BlastRadius(limits_of(settings.limits), breaker, census, clock, journaled)
    radius.recall(deletes_since(state_dir, store, clock.now_ms() - HOUR_MS))
    return radius


def _work(
    spark: SparkSession, settings: Settings, service: LedgerDeletionService, admin: PulsarAdmin, *, until_idle: bool
) -> None:
    due = DueLoop(service.waiting, service.work_off_due, service.prune_waiting, service.clock, service.stop)
    service.on_kept = due.wake
    due.start()
    lanes = Lanes(
        settings, admin, lambda query: stream(spark, settings, query, service.process).start(), service.begin_again
    )
    failed: Mapping[Query, Exception | None] = {}
    broken: Exception | None = None
    care = Care(
        partial(_tidy, settings, service, admin),
        lambda: accounts_of(settings, admin, service.clock.now_ms(), matched=lanes.matched, remembers=True),
        service.metrics,
    )
    beside = Beside(service.stop)
    gaps: list[str] = []
    was_idle = False
    try:
        lanes.start()
        log.info("reading %s", ", ".join((*settings.topics.requests, settings.topics.retry)))
        with _audits(spark, settings) as is_auditing:
            while not service.stop.wait(_POLL_S):
                failed = lanes.turn()
                if failed or not due.is_alive:
                    broken = due.failure
                    break
                if until_idle and not is_auditing() and is_idle(settings, admin, lanes.running, due):
                    if lanes.look_up():
                        continue
                    log.info("idle: no request is waiting")
                    was_idle = True
                    beside.finish(lambda: gaps.extend(care.account()))
                    break
                beside.begin(care.turn)
    finally:
        service.stop.set()
        _stop(spark, lanes, due)
        beside.join(_LAST_WORDS_S)
        log.info("stopped; %s", _what_is_left(settings, lanes.running, was_idle=was_idle))
    if service.fatal:
        raise service.fatal[0]
    for query, failure in failed.items():
        _raise_failure(query.name, failure)
    _raise_failure("of waiting retries", broken)
    beside.check()
    if gaps:
        raise ReaperError(f"not accounted for: {'; '.join(gaps)}")


def _what_is_left(settings: Settings, queries: Iterable[Query], *, was_idle: bool) -> str:
    try:
        unfinished = [each.name for each in queries if is_unfinished(location_of(settings, each.name))]
    except UnavailableError as error:  # must not hide why it stopped
        return f"whether all was finished could not be read: {error}"
    if not unfinished:
        return "all finished"
    names = ", ".join(unfinished)
    # an empty first batch, mostly
    return f"all finished; a batch begun since runs again: {names}" if was_idle else f"abandoned, to run again: {names}"


@contextlib.contextmanager
def _audits(spark: SparkSession, settings: Settings) -> Iterator[Callable[[], bool]]:
    """Run the audits that [audit] asks for; yields whether one is running or due."""
    if not settings.audit.every_seconds:
        yield lambda: False
        return
    from streaming.audit.watch import auditing  # which takes the sweep's policy from this module

    with auditing(spark, settings) as turns:
        yield lambda: turns.is_busy


def _tidy(settings: Settings, service: LedgerDeletionService, admin: PulsarAdmin) -> None:
    try:
        service.maintain()
        expire(settings, admin, service.clock.now_ms())
    except ReaperError as error:
        log.warning("dead letters not expired, again later: %s", error)
    except StopRequestedError:
        return


def _stop(spark: SparkSession, lanes: Lanes, due: DueLoop) -> None:
    """What is under way has a moment to finish; then it is cut short, is not committed, and runs again."""
    is_over = due.join(_LAST_WORDS_S)
    lanes.stop()
    if not (lanes.join(_LAST_WORDS_S) and is_over):
        spark.sparkContext.cancelAllJobs()
        lanes.join()
        due.join(_LAST_WORDS_S)


def _raise_failure(lane: str, failure: Exception | None) -> None:
    if failure and not isinstance(failure, StopRequestedError) and "StopRequestedError" not in str(failure):
        ours = translated(failure)
        if isinstance(ours, ReaperError):
            raise ours
        cause = str(failure).partition(_QUERY_AND_PLAN)[0].strip()
        task = _LOST_TASK.search(cause)
        first = task[1] if task else cause
        if _PULSAR_AWAY.match(first):
            raise UnavailableError(f"query {lane}: Pulsar can't be reached, start again when it can: {first}")
        raise ReaperError(f"query {lane} failed: {cause}")


def _secret(store: MetadataStore, path: str) -> bytes:
    """The key that signs sightings; made once per cluster."""
    store.create(path, token_hex(32).encode(), parents=True)
    node = store.read_many([path])[0]
    if not isinstance(node, Znode):
        raise UnavailableError(f"{path} can't be read")
    return node.data


def _told(stop: threading.Event, number: int) -> None:
    """SIGTERM and SIGINT ask for a stop between two effects; a second one is not needed."""
    if not stop.is_set():
        log.info("%s: stopping; an unfinished batch runs again at the next start", signal.Signals(number).name)
        stop.set()
