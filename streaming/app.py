"""Puts the parts together, starts the queries, watches them, and stops them without losing a request.

Only this module starts, stops and awaits anything; streaming.queries.running does so for it with the queries.
"""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.adapters.pulsar.entries import tells_last
from streaming.clients import admin_for, clients_for, reader_for
from streaming.clock import Clock, StartedClock
from streaming.config.listening import not_served
from streaming.config.policies import limits_of
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.agreed_clock import AgreedClock, PacedClock
from streaming.coordination.exclusive import require_brokers_store, require_superuser
from streaming.deletion.board import Board
from streaming.deletion.chunk import ChunkSweep
from streaming.deletion.copies import PulsarCopies
from streaming.deletion.fair_lock import FairLock
from streaming.deletion.fallback import Fallback
from streaming.deletion.follow_up import FollowUp
from streaming.deletion.gate import Gate
from streaming.deletion.idle import is_idle, only_retries_wait, stuck
from streaming.deletion.instance import Identity, Instance, begin_instance, coordination_of
from streaming.deletion.operator_action import OperatorAction
from streaming.deletion.outages import Outages
from streaming.deletion.outbox import Outbox
from streaming.deletion.owners import OwnersInUse
from streaming.deletion.retries import DueLoop, Retries
from streaming.deletion.service import LedgerDeletionService
from streaming.deletion.tenants import HeldTenants
from streaming.deletion.upkeep import BackgroundCall, Upkeep, tidy_up
from streaming.errors import ReaperError, SafetyError, StopRequestedError, UnavailableError
from streaming.in_use.baseline import Accepted, Baseline, accepted_path
from streaming.in_use.cache import InUseCache
from streaming.in_use.loader import InUseLoader
from streaming.in_use.missing import LossCheck
from streaming.in_use.watch import SourceWatch
from streaming.limits.blast_radius import BlastRadius
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.census import count_ledgers
from streaming.limits.last_hour import deletes_since
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.metrics import Metrics
from streaming.ports import MetadataStore, Pulsar
from streaming.queries.checkpoints import refuse_changes, root_of, what_is_left
from streaming.queries.completion import Completion
from streaming.queries.fallback_reads import ReadRows
from streaming.queries.life import QueryTools
from streaming.queries.names import Query, queries_of
from streaming.queries.running import RunningQueries
from streaming.queries.short_names import adopt_short_name
from streaming.queries.slots import ReadSlots
from streaming.queries.streams import describe_jobs, stream
from streaming.reconcile.markers import Markers
from streaming.reconcile.messages import reconcile
from streaming.schemas import REQUESTS, RETRY, WAITING_RETRIES
from streaming.signals import on_signals
from streaming.spark import classes
from streaming.spark.connector_clients import ConnectorClients
from streaming.spark.failures import one_line, raise_failure
from streaming.spark.s3a import faults_named
from streaming.spark.session import MESSAGES_PER_BATCH, ROWS_PER_BATCH, has_ended
from streaming.spark.signals import jvm_signals
from streaming.spark.submitted import NO_UI
from streaming.state import journal
from streaming.state.parked_queries import ParkedQuery
from streaming.state.receipts import Receipts
from streaming.state.waiting import Waiting
from streaming.state.worked_off import WorkedOff
from streaming.topics.setup import PATIENCE_SECONDS, ensure_topics
from streaming.topics.sizes import require_room_for_copies
from udfs.blast_radius import Planned
from udfs.paths import tenant_of
from udfs.query_life import Rules
from udfs.units import HOUR_MS

log = logging.getLogger("ledger-reaper")

_POLL_S = 0.5
_MOST_FAILURES = 4  # with --until-idle, a lane that failed more often in a row is given up
_LAST_WORDS_S = 2.0  # how long a stop lets what is under way come to its end


def run(settings: Settings, begun: Callable[[], SparkSession], *, until_idle: bool = False, config: str = "") -> None:
    """Run the service until it is told to stop, or, with until_idle, until no request is waiting.

    Args:
        begun: waits until Spark has begun; it is called once the lock is held, and never where the start is refused
            before.
        config: the configuration file, for the log.

    Raises ReaperError's family: with until_idle SafetyError where all that is left waits for a person. Returns normally
    after a clean stop.
    """
    stop = threading.Event()
    try:
        _run(settings, begun, stop, until_idle=until_idle, config=config)
    except StopRequestedError:
        log.info("stopped before anything was begun")


def _run(
    settings: Settings, begun: Callable[[], SparkSession], stop: threading.Event, *, until_idle: bool, config: str
) -> None:
    with (
        on_signals(partial(_on_signal, stop)),
        faults_named(settings.checkpoints),
        begin_instance(settings, clients_for(settings), admin_for(settings), stop, config) as instance,
    ):
        retry_partitions, dead_letter_partitions = ensure_topics(instance.admin, settings, stop)
        partition = f"{settings.topics.retry}-partition-0"
        instance.admin.internal_stats(partition)  # loads it, so that its broker can be compared with ZooKeeper
        require_superuser(instance.clients.broker)
        require_brokers_store(instance.clients.store, instance.clients.broker, partition)
        for topic in (settings.topics.retry, settings.topics.dead_letter):
            require_room_for_copies(settings.pulsar, f"{topic}-partition-0")
        instance.ownership.release_gone(instance.admin.partitions, besides=settings.topics.owned)
        for query in queries_of(settings):
            adopt_short_name(settings, query)
        refuse_changes(settings, instance.admin.partitions)
        spark = _taken(begun, stop)
        try:
            spark.conf.set(ROWS_PER_BATCH, MESSAGES_PER_BATCH)
            who = Identity(instance.rules, retry_partitions, dead_letter_partitions)
            service = _service(spark, settings, instance, who, stop)
            with jvm_signals(partial(_on_signal, stop)), classes.kept():
                try:
                    service.outbox.publish_again()
                except StopRequestedError:
                    raise
                except Exception as error:
                    raise_failure("of what was left to publish", error)
                _work(spark, settings, service, instance, until_idle=until_idle)
        finally:
            spark.stop()


def _taken(begun: Callable[[], SparkSession], stop: threading.Event) -> SparkSession:
    """Wait for Spark. A signal to the whole process group ends its JVM too, and then we were told to stop."""
    try:
        return begun()
    except Exception:
        if stop.is_set():
            raise StopRequestedError from None
        raise


def _service(
    spark: SparkSession, settings: Settings, instance: Instance, who: Identity, stop: threading.Event
) -> LedgerDeletionService:
    metrics, store = Metrics(), instance.clients.store
    agreed = AgreedClock(store, settings.zookeeper.own_root, settings.service.name)
    clock = PacedClock(agreed)
    loader = InUseLoader(store, instance.clients.broker if settings.safety.ask_broker else None, clock)
    in_use = settings.in_use
    cache = InUseCache(loader, clock, in_use.refresh_seconds * 1000, in_use.max_cache_mib * 1024 * 1024)
    receipts = Receipts(spark, settings.state_dir)
    identity.hold_state(receipts.table_id, root_of(settings))
    instance.ownership.hold_state(receipts.table_id, settings.state_dir)
    if settings.metrics.port >= 0:
        address = settings.metrics.address
        try:
            port = metrics.serve(address, settings.metrics.port)
        except OSError as error:
            raise not_served(settings.metrics, error) from error
        log.info("metrics: http://%s:%s/metrics", address, port)
    log.info("Spark UI: %s", spark.sparkContext.uiWebUrl or NO_UI)
    coordination = coordination_of(settings, instance, agreed)
    watch = _source_watch(settings, instance)
    watch.recall(now_ms=clock.now_ms())
    # an hour is an hour, whatever a clock does
    blast_radius = _blast_radius(settings, store, StartedClock(clock.now_ms()))
    describe, lock, outages = partial(describe_jobs, spark), FairLock(stop), Outages(stop, metrics, log.info)
    trigger_s = settings.service.trigger_seconds
    gate = Gate(coordination, blast_radius, metrics, clock, log.warning, stop, settings.state_dir, trigger_s)
    targets = {
        settings.topics.retry: who.retry_partitions,
        settings.topics.dead_letter: who.dead_letter_partitions,
    }
    waiting = Waiting(spark, settings.state_dir, clock=clock)
    copies, epoch = PulsarCopies(settings, targets), who.rules.epoch[1]
    holds = TenantHolds(store, tenant_holds_path(settings.zookeeper.own_root, settings.service.name))
    tenants = HeldTenants(holds, metrics, log.warning)
    slots = ReadSlots(stop, lambda: spark.sparkContext.defaultParallelism)
    read = ReadRows(spark, settings, slots)
    missing = LossCheck(loader, settings.state_dir, instance.rules.layout, settings.zookeeper.ledgers_root)
    return LedgerDeletionService(
        receipts,
        sweep=ChunkSweep(spark, settings, who, receipts, OwnersInUse(cache, watch, gate, tenants), gate, describe),
        outbox=Outbox(receipts, copies, coordination, blast_radius, gate, outages, epoch),
        follow_up=FollowUp(receipts, cache, watch, missing, tenants, blast_radius.breaker, outages, metrics, log.info),
        retries=Retries(waiting, receipts, lock, gate, outages, metrics, clock, describe),
        gate=gate,
        outages=outages,
        lock=lock,
        clock=clock,
        describe=describe,
        chunk_rows=settings.service.chunk_rows,
        max_request_bytes=settings.service.max_request_bytes,
        completed=Completion(spark, settings, instance.admin, read, slots, outages.wait_through),
        note=WorkedOff(settings.state_dir).note,
        slots=slots,
    )


def _source_watch(settings: Settings, instance: Instance) -> SourceWatch:
    zookeeper = settings.zookeeper
    accepted = Accepted(instance.clients.store, accepted_path(zookeeper.own_root, settings.service.name))
    return SourceWatch(Baseline(instance.rules.policy), accepted.read, settings.state_dir, log=log.info)


def _blast_radius(settings: Settings, store: MetadataStore, clock: Clock) -> BlastRadius:
    zookeeper = settings.zookeeper
    breaker = Breaker(store, breaker_path(zookeeper.own_root, settings.service.name))
    state_dir = settings.state_dir

    def journaled(query: str, batch_id: int, since_ms: int) -> Planned:
        return journal.started(state_dir, RETRY if query == RETRY else REQUESTS, batch_id, since_ms=since_ms)

    def census() -> int:
        return count_ledgers(store, zookeeper.ledgers_root)

    radius = BlastRadius(
        limits=limits_of(settings.limits), breaker=breaker, census=census, clock=clock, journaled=journaled
    )
    radius.recall(deletes_since(state_dir, store, clock.now_ms() - HOUR_MS))
    return radius


@dataclass(slots=True)
class _Running:
    """What runs until the service stops, and why it stopped.

    is_spark_over: whether Spark has ended though nobody asked us to stop, as its master may do.
    """

    queries: RunningQueries
    due: DueLoop
    upkeep: Upkeep
    background: BackgroundCall
    is_spark_over: Callable[[], bool] = lambda: False
    failed: Mapping[Query, Exception] = field(default_factory=dict)
    broken: Exception | None = None
    gaps: list[str] = field(default_factory=list)
    was_idle: bool = False
    left: str = ""

    def watch(
        self,
        stop: threading.Event,
        is_idle: Callable[[], bool],
        stuck: Callable[[], Mapping[Query, Exception]],
        needs_operator: Callable[[], str],
    ) -> None:
        """Look after all of it until stop is set, something fails, or nothing is left that goes on by itself.

        What may be left is what waits in lanes that are given up (stuck), and what waits for a person's word.
        """
        while not stop.wait(_POLL_S):
            if self.is_spark_over():  # no query can begin again; a lane would be parked for ever
                self.broken = UnavailableError(
                    "Spark has ended this application: its master removed it, or somebody did there; start again"
                )
                return
            self.failed = self.queries.check_once()
            if self.failed or not self.due.is_alive:
                self.broken = self.due.failure
                return
            if is_idle():
                if self.queries.look_up():
                    continue
                self.failed = stuck()
                log.info("idle: %s", _idle_words(self.failed))
                self.was_idle = True
                self.background.finish(lambda: self.gaps.extend(self.upkeep.find_gaps()))
                return
            if (left := needs_operator()) and not self.queries.look_up():
                self.left = left
                return
            self.background.begin(self.upkeep.do_what_is_due)

    def raise_failure(self, fatal: Sequence[Exception]) -> None:
        """Raise why it stopped, unless it was told to or was idle; what a person has to look at comes first."""
        if fatal:
            raise fatal[0]
        if self.left:
            raise SafetyError(f"what is left waits for a person: {self.left}")
        for failure in self.failed.values():
            raise failure
        raise_failure("of waiting retries", self.broken)
        self.background.check()
        if self.gaps:
            raise ReaperError(f"not accounted for: {'; '.join(self.gaps)}")


def _work(
    spark: SparkSession, settings: Settings, service: LedgerDeletionService, instance: Instance, *, until_idle: bool
) -> None:
    admin = instance.admin
    retries, stop, clock = service.retries, service.gate.stop, service.clock
    board = Board(settings.state_dir, service.outages.metrics)
    board.clear()
    most = _MOST_FAILURES if until_idle else None
    due = DueLoop(retries.waiting, service.process_due, retries.prune, clock, stop)
    due.most_failures, due.show = most, partial(_show_retries, settings, board, clock)
    retries.on_kept = due.wake
    due.start()
    read, can_end = ReadRows(spark, settings, service.slots), partial(tells_last, settings.pulsar, admin)
    fallback = Fallback(settings, admin, service, read, can_end)
    clients = ConnectorClients(spark)

    def start(query: Query) -> StreamingQuery:
        if query.topics[0] not in (*settings.topics.requests, settings.topics.retry, settings.topics.watch):
            service.slots.belongs_to(query.name, tenant_of(query.topics[0]))
        return stream(spark, settings, query, service.process, clients.new(query.name)).start()

    tools = QueryTools(
        admin=admin,
        start=start,
        restart=service.restart,
        fallback=fallback,
        show=board.show,
        slow_down=service.slots.slow_down,
        close_client=clients.close,
        forget=fallback.forget,
        tells_last=can_end,
        rules=Rules(patience_s=PATIENCE_SECONDS, most_failures=most),
        subscription=settings.topics.subscription,
    )
    queries = RunningQueries(settings, tools, instance.ownership)
    pulsar, markers = Pulsar(admin, reader_for(settings)), Markers()

    def log_holds() -> None:
        service.gate.log_hold()
        service.follow_up.tenants.now()

    upkeep = Upkeep(
        partial(tidy_up, settings, pulsar, service.receipts, service.lock, clock),
        lambda: reconcile(settings, pulsar, clock.now_ms(), matched=queries.matched, service=markers),
        service.outages.metrics,
        log_holds=log_holds,
    )
    accepted = service.follow_up.watch.accepted
    person = OperatorAction(settings.state_dir, service.gate, retries.waiting, due, accepted, clock)
    running = _Running(queries, due, upkeep, BackgroundCall(stop), partial(has_ended, spark))
    try:
        queries.start()
        log.info("reading %s", ", ".join((*settings.topics.requests, settings.topics.retry)))
        with (
            _audits(spark, settings) as is_auditing,
            _guards(settings),
            _watching(settings, service.outages.metrics),
        ):

            def only_retries() -> bool:
                return only_retries_wait(settings, admin, queries, due)

            running.watch(
                stop,
                lambda: until_idle and not is_auditing() and is_idle(settings, admin, queries, due),
                lambda: stuck(settings, admin, queries),
                lambda: person.why(only_retries) if until_idle and not is_auditing() else "",
            )
    finally:
        stop.set()
        _stop(spark, queries, due)
        running.background.join(_LAST_WORDS_S)
        if running.was_idle and not running.failed:
            board.clear()  # a lane may just have been begun again, and what it was parked for is worked off
        cut_short = ["waiting retries"] if due.was_cut_short or due.is_alive else []
        left = what_is_left(settings, queries.running, was_idle=running.was_idle, cut_short=cut_short)
        log.info("stopped; %s", left)
    running.raise_failure(service.outages.fatal)


def _show_retries(settings: Settings, board: Board, clock: Clock, why: Exception | None, failures: int) -> None:
    """Tell that a pass over the waiting retries failed, or that passes go on."""
    if why is None:
        log.info("waiting retries are worked off again")
        board.show(WAITING_RETRIES, None)
    else:
        log.error("waiting retries are parked, and the topics go on. A pass failed: %s", one_line(why))
        board.show(
            WAITING_RETRIES,
            ParkedQuery(topic=settings.topics.retry, why=one_line(why), since_ms=clock.now_ms(), failures=failures),
        )


def _idle_words(given_up: Mapping[Query, Exception]) -> str:
    if not given_up:
        return "no request is waiting"
    topics = ", ".join(query.topics[0] for query in given_up)
    return f"no request is waiting but those of {topics}, which failed too often"


@contextlib.contextmanager
def _audits(spark: SparkSession, settings: Settings) -> Iterator[Callable[[], bool]]:
    """Run the audits that [audit] asks for; yields whether one is running or due."""
    if not settings.audit.every_seconds:
        yield lambda: False
        return
    from streaming.audit.repeat.beside_service import auditing

    # a session of its own, since an audit's rows are all small: its record batches are as large as they were configured
    with auditing(spark.newSession(), settings) as turns:
        yield lambda: turns.is_busy


@contextlib.contextmanager
def _guards(settings: Settings) -> Iterator[None]:
    """Move the guards of snapshots as [snapshots] asks for it. Nobody waits for them, --until-idle neither."""
    if not settings.snapshots.guard_every_seconds:
        yield
        return
    from streaming.snapshots.beside_service import guarding

    with guarding(settings):
        yield


@contextlib.contextmanager
def _watching(settings: Settings, metrics: Metrics) -> Iterator[None]:
    """Run the watcher, if [watch] asks for it."""
    if not settings.watch.enabled:
        yield
        return
    from streaming.phase_one.watcher.run import watching

    with watching(settings, metrics.registry):
        yield


def _stop(spark: SparkSession, queries: RunningQueries, due: DueLoop, *, last_words_s: float = _LAST_WORDS_S) -> None:
    """Let what is under way end in a moment; then cancel it. What is cancelled is not committed, and runs again."""
    is_over = due.join(last_words_s)
    queries.stop()
    if not (queries.join(last_words_s) and is_over):
        with contextlib.suppress(Exception):  # where Spark is over, it has no jobs
            spark.sparkContext.cancelAllJobs()
        queries.join()
        due.join(last_words_s)


def _on_signal(stop: threading.Event, number: int) -> None:
    """SIGTERM and SIGINT ask for a stop; the work ends before its next effect. A second signal changes nothing."""
    if not stop.is_set():
        log.info("%s: stopping; an unfinished batch runs again at the next start", signal.Signals(number).name)
        stop.set()
