"""Starts the service, watches it, and stops it without losing a request; streaming.assembly builds its parts."""

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from streaming.assembly import Assembly, Process, build_service
from streaming.beside import Beside, Work
from streaming.clients import admin_for, clients_for
from streaming.config.settings import Settings
from streaming.coordination.exclusive import require_brokers_store, require_superuser
from streaming.deletion.instance import Identity, Instance, begin_instance
from streaming.deletion.service import LedgerDeletionService
from streaming.deletion.supervision.board import Board
from streaming.deletion.supervision.idle import is_idle, only_retries_wait, stuck
from streaming.deletion.supervision.operator_action import OperatorAction
from streaming.deletion.supervision.supervisor import Checks, Supervisor
from streaming.errors import StopRequestedError
from streaming.metrics import Metrics
from streaming.prometheus import table
from streaming.prometheus.server import serving
from streaming.prometheus.table import Group
from streaming.queries.checkpoints import refuse_changes, refuse_other_writer, what_is_left
from streaming.queries.first_batch import fix_first_batches
from streaming.queries.names import queries_of
from streaming.queries.short_names import adopt_short_name
from streaming.signals import on_signals
from streaming.spark import classes
from streaming.spark.jars import versions
from streaming.spark.java_errors import raise_failure
from streaming.spark.jvm_signals import jvm_signals
from streaming.spark.s3a import faults_named
from streaming.spark.session import batches_of_messages, end, has_ended
from streaming.topics.existing import require_listed
from streaming.topics.setup import ensure_topics
from streaming.topics.sizes import require_room_for_copies
from udfs.requests.lanes import ALL_LANES, Lanes

log = logging.getLogger("ledger-reaper")

_UPKEEP_S = 0.5
_MOST_FAILURES = 4  # with --until-idle, a query (or the retries) is given up after more failures in a row


def run(
    settings: Settings,
    take_spark: Callable[[], SparkSession],
    listener: socket.socket | None,
    *,
    until_idle: bool = False,
    config: str = "",
) -> None:
    """Run the service until a signal stops it, or, with until_idle, until no request is waiting.

    Args:
        take_spark: waits until Spark has started. It is called only after the lock is held and all checks have passed.
        listener: listens for Prometheus and probes; closed at the end. None: nothing is served.
        config: the configuration file, for the log.

    Returns normally after a clean stop. Raises ReaperError or a subclass; with until_idle, SafetyError if all requests
    that are left wait for the operator.
    """
    stop, metrics = threading.Event(), Metrics()
    metrics.registry.open(Group.PROCESS)
    metrics.starting("it does not read requests yet")
    try:
        with serving(metrics.registry, metrics.health, listener) as server:
            _run(settings, take_spark, Process(stop, metrics, server), until_idle=until_idle, config=config)
    except StopRequestedError:
        log.info("stopped before the service started")


def _run(
    settings: Settings, take_spark: Callable[[], SparkSession], process: Process, *, until_idle: bool, config: str
) -> None:
    stop, metrics = process.stop, process.metrics
    with (
        on_signals(partial(_on_signal, stop)),
        faults_named(settings.checkpoints),
        begin_instance(settings, clients_for(settings), admin_for(settings), stop, config) as instance,
    ):
        refuse_other_writer(settings)
        metrics.registry.identify(settings.service.name, settings.metrics.cluster or instance.pulsar_cluster)
        metrics.registry.set(table.BUILD_INFO, 1, *versions())
        retry_partitions, dead_letter_partitions = ensure_topics(instance.admin, settings, stop)
        partition = f"{settings.topics.retry}-partition-0"
        instance.admin.internal_stats(partition)  # loads it, so that its broker can be compared with ZooKeeper
        require_superuser(instance.clients.broker)
        require_brokers_store(instance.clients.store, instance.clients.broker, partition)
        require_listed(instance.clients.store, settings)
        for topic in (settings.topics.retry, settings.topics.dead_letter):
            require_room_for_copies(settings.pulsar, f"{topic}-partition-0")
        if settings.topics.lanes is Lanes.ONE:
            instance.ownership.release([ALL_LANES])  # an earlier configuration may have had lanes
        # deletion.lanes.owned releases topics of the pattern: there may be thousands
        instance.ownership.release_gone(
            instance.admin.partitions,
            besides=lambda topic: topic in settings.topics.claims or settings.topics.is_matched(topic),
        )
        for query in queries_of(settings):
            adopt_short_name(settings, query)
        refuse_changes(settings, instance.admin.partitions)
        fix_first_batches(settings, instance.admin, queries_of(settings))
        spark = _taken(take_spark, stop)
        try:
            spark.conf.set(*batches_of_messages())
            if process.server is not None:
                process.server.spark_ui = spark.sparkContext.uiWebUrl or ""
            who = Identity(instance.rules, retry_partitions, dead_letter_partitions)
            service = build_service(spark, settings, instance, who, process)
            with jvm_signals(partial(_on_signal, stop)), classes.kept():
                try:
                    service.outbox.publish_again()
                except StopRequestedError:
                    raise
                except Exception as error:
                    raise_failure("of what was left to publish", error)
                _work(spark, settings, service, instance, until_idle=until_idle)
        finally:
            if process.server is not None:
                process.server.spark_ui = ""
            end(spark)


def _taken(take_spark: Callable[[], SparkSession], stop: threading.Event) -> SparkSession:
    """Wait for Spark. A signal to the whole process group also ends its JVM; that is a stop and no failure."""
    try:
        return take_spark()
    except Exception:
        if stop.is_set():
            raise StopRequestedError from None
        raise


def _work(
    spark: SparkSession, settings: Settings, service: LedgerDeletionService, instance: Instance, *, until_idle: bool
) -> None:
    stop, admin = service.gate.stop, instance.admin
    board = Board(settings.state_dir, service.outages.metrics)
    board.clear()
    assembly = Assembly(
        spark=spark,
        settings=settings,
        service=service,
        instance=instance,
        board=board,
        most_failures=_MOST_FAILURES if until_idle else None,
    )
    due = assembly.due_loop()
    due.start()
    queries = assembly.queries()
    lanes = assembly.lanes()
    upkeep = assembly.upkeep(queries, lanes)
    duties = Beside(Work(name="upkeep", run=upkeep.do_what_is_due, every_s=_UPKEEP_S))
    metrics = service.outages.metrics
    supervisor = Supervisor(
        queries=queries, lanes=lanes, due=due, upkeep=duties, find_gaps=upkeep.find_gaps, beat=metrics.health.beat
    )
    accepted = service.follow_up.watch.accepted
    operator = OperatorAction(
        state_dir=settings.state_dir,
        gate=service.gate,
        waiting=service.retries.waiting,
        due=due,
        accepted=accepted,
        clock=service.clock,
    )
    try:
        queries.start()
        if lanes is not None:
            lanes.start()
        metrics.starting("")
        log.info("reading %s", ", ".join((*settings.topics.requests, settings.topics.retry)))
        with contextlib.ExitStack() as stack:
            besides = [stack.enter_context(beside) for beside in assembly.companions(lanes)]

            def may_end() -> bool:
                # a run until idle also waits for an audit that runs or is due
                return until_idle and not any(beside.is_busy for beside in besides if beside.keeps_from_ending)

            def only_retries() -> bool:
                return only_retries_wait(settings, admin, queries, due, lanes)

            checks = Checks(
                is_idle=lambda: may_end() and is_idle(settings, admin, queries, due, lanes),
                stuck=lambda: stuck(settings, admin, queries, lanes),
                needs_operator=lambda: operator.why(only_retries) if may_end() else "",
                is_spark_over=partial(has_ended, spark),
            )
            supervisor.watch(stop, checks)
    finally:
        stop.set()
        metrics.health.end("the service stops, or has failed; its log names the reason")
        supervisor.stop(spark)
        if supervisor.was_idle and not supervisor.failed:
            board.clear()  # it may still show a query as parked although the fallback has processed its messages
        cut_short = ["waiting retries"] if due.was_cut_short or due.is_alive else []
        left = what_is_left(settings, queries.running, was_idle=supervisor.was_idle, cut_short=cut_short)
        log.info("stopped; %s", left)
    supervisor.raise_failure(service.outages.fatal)


def _on_signal(stop: threading.Event, number: int) -> None:
    """Request a stop after SIGTERM or SIGINT; the work ends before its next effect. A second signal changes nothing."""
    if not stop.is_set():
        log.info("%s: stopping; an unfinished batch runs again at the next start", signal.Signals(number).name)
        stop.set()
