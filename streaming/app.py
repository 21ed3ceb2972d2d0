"""Puts the parts together, starts the queries, watches them, and stops them without losing a request.

Only this module and streaming.queries.running, on its word, start, stop and await anything.
"""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from pyspark.sql import SparkSession

from streaming.clients import admin_for, clients_for, reader_for
from streaming.clock import Clock, SystemClock
from streaming.config.policies import limits_of
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.agreed_clock import AgreedClock
from streaming.coordination.exclusive import require_brokers_store
from streaming.coordination.own_znodes import read_own
from streaming.deletion.idle import is_idle
from streaming.deletion.instance import Instance, begin_instance
from streaming.deletion.retries import DueLoop
from streaming.deletion.service import Coordination, Identity, LedgerDeletionService
from streaming.deletion.upkeep import BackgroundCall, Upkeep
from streaming.dlq.expiry import expire
from streaming.errors import ReaperError, StopRequestedError, UnavailableError
from streaming.in_use.baseline import Accepted, Baseline, accepted_path
from streaming.in_use.cache import InUseCache
from streaming.in_use.loader import InUseLoader
from streaming.in_use.watch import SourceWatch
from streaming.limits.blast_radius import BlastRadius
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.census import count_ledgers
from streaming.limits.last_hour import deletes_since
from streaming.metrics import Metrics
from streaming.ports import MetadataStore, Pulsar, TopicAdmin
from streaming.queries.checkpoints import is_unfinished, location_of, refuse_changes, root_of
from streaming.queries.names import Query
from streaming.queries.running import RunningQueries
from streaming.queries.streams import stream
from streaming.reconcile.messages import reconcile
from streaming.schemas import REQUESTS, RETRY
from streaming.spark.failures import raise_failure
from streaming.spark.s3a import faults_named
from streaming.spark.session import Jars, start
from streaming.spark.signals import jvm_signals, on_signals
from streaming.state import journal
from streaming.state.receipts import Receipts
from streaming.state.waiting import Waiting
from streaming.topics.setup import ensure_topics
from udfs.blast_radius import Planned
from udfs.units import HOUR_MS

log = logging.getLogger("ledger-reaper")

_POLL_S = 0.5
_LAST_WORDS_S = 2.0


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
    with (
        on_signals(partial(_told, stop)),
        faults_named(settings.checkpoints),
        begin_instance(settings, clients_for(settings), admin_for(settings), stop) as instance,
    ):
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
                    raise_failure("of what was left to publish", error)
                _work(spark, settings, service, instance.admin, until_idle=until_idle)
        finally:
            spark.stop()


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

    guards = Coordination(
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
        Baseline(instance.rules.policy),
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
    spark: SparkSession, settings: Settings, service: LedgerDeletionService, admin: TopicAdmin, *, until_idle: bool
) -> None:
    due = DueLoop(service.waiting, service.work_off_due, service.prune_waiting, service.clock, service.stop)
    service.on_kept = due.wake
    due.start()
    lanes = RunningQueries(
        settings, admin, lambda query: stream(spark, settings, query, service.process).start(), service.begin_again
    )
    pulsar = Pulsar(admin, reader_for(settings))
    failed: Mapping[Query, Exception | None] = {}
    broken: Exception | None = None
    care = Upkeep(
        partial(_tidy, settings, service, pulsar),
        lambda: reconcile(settings, pulsar, service.clock.now_ms(), matched=lanes.matched, remembers=True),
        service.metrics,
    )
    beside = BackgroundCall(service.stop)
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
        raise_failure(query.name, failure)
    raise_failure("of waiting retries", broken)
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
    from streaming.audit.repeat.beside_service import auditing

    with auditing(spark, settings) as turns:
        yield lambda: turns.is_busy


def _tidy(settings: Settings, service: LedgerDeletionService, pulsar: Pulsar) -> None:
    try:
        service.maintain()
        expire(settings, pulsar, service.clock.now_ms())
    except ReaperError as error:
        log.warning("dead letters not expired, again later: %s", error)
    except StopRequestedError:
        return


def _stop(spark: SparkSession, lanes: RunningQueries, due: DueLoop) -> None:
    """What is under way has a moment to finish; then it is cut short, is not committed, and runs again."""
    is_over = due.join(_LAST_WORDS_S)
    lanes.stop()
    if not (lanes.join(_LAST_WORDS_S) and is_over):
        spark.sparkContext.cancelAllJobs()
        lanes.join()
        due.join(_LAST_WORDS_S)


def _told(stop: threading.Event, number: int) -> None:
    """SIGTERM and SIGINT ask for a stop between two effects; a second one is not needed."""
    if not stop.is_set():
        log.info("%s: stopping; an unfinished batch runs again at the next start", signal.Signals(number).name)
        stop.set()
