"""Builds the service's parts and connects them; it starts none of them."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.adapters.pulsar.doorbell.doorbell import Doorbell
from streaming.adapters.pulsar.readers.last_message import last_message, reports_last_message
from streaming.beside import Beside
from streaming.clients import reader_for
from streaming.clock import Clock, StartedClock
from streaming.config.policies import limits_of
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.agreed_clock import AgreedClock, PacedClock
from streaming.deletion.chunks.chunk import ChunkSweep, OwnersInUse
from streaming.deletion.chunks.follow_up import FollowUp
from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.deletion.chunks.outbox import Outbox, PulsarCopies
from streaming.deletion.fair_lock import FairLock
from streaming.deletion.fallback import Fallback
from streaming.deletion.gate import Gate, Outages
from streaming.deletion.instance import Identity, Instance, coordination_of
from streaming.deletion.lanes.owned import OwnedLanes
from streaming.deletion.lanes.progress import LaneProgress
from streaming.deletion.lanes.reader import LaneReader
from streaming.deletion.lanes.slow import SLOW_CHUNK_ROWS, SLOW_LANES
from streaming.deletion.retries import DueLoop, Retries
from streaming.deletion.service import LedgerDeletionService
from streaming.deletion.supervision.board import Board
from streaming.deletion.supervision.facts import Waits, facts_of, reading
from streaming.deletion.supervision.holds import HoldWatch
from streaming.deletion.supervision.upkeep import Upkeep, tidy_up
from streaming.in_use.baseline import Accepted, Baseline, accepted_path
from streaming.in_use.cache import InUseCache
from streaming.in_use.loader import InUseLoader
from streaming.in_use.missing import LossCheck
from streaming.in_use.source_watch import SourceWatch
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.census import count_ledgers
from streaming.limits.enforcement import BlastRadius
from streaming.limits.last_hour import deletes_since
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.metrics import Metrics, exporting
from streaming.ports import MetadataStore, Pulsar
from streaming.prometheus import table
from streaming.prometheus.server import MetricsServer
from streaming.queries.checkpoints import root_of
from streaming.queries.delivery.completion import Completion
from streaming.queries.delivery.fallback_reads import ReadRows
from streaming.queries.delivery.lane_reads import LaneRows
from streaming.queries.delivery.slots import ReadSlots
from streaming.queries.delivery.source_batches import SourceBatches
from streaming.queries.former_queries import positions_of_queries
from streaming.queries.life import QueryTools
from streaming.queries.names import Query
from streaming.queries.running import RunningQueries
from streaming.queries.streams import coalesced, describe_jobs, read_source, read_stream, register_source, stream
from streaming.reconcile.accounting import reconcile
from streaming.reconcile.gaps import Reconciliation
from streaming.reconcile.markers import Markers
from streaming.schemas import REQUESTS, RETRY, WAITING_RETRIES
from streaming.spark.connector_clients import ConnectorClients
from streaming.spark.installed import has_connector
from streaming.spark.java_errors import one_line
from streaming.spark.submitted import NO_UI
from streaming.state import journal
from streaming.state.notes.lost_entries import LostEntries
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.state.notes.worked_off import WorkedOff
from streaming.state.receipts import Receipts, newest_positions
from streaming.state.waiting import Waiting
from streaming.sweep.measured import Measures, MeasuresParam
from streaming.topics.existing import matching_topics
from streaming.topics.setup import PATIENCE_SECONDS
from udfs.blast_radius import Planned
from udfs.formats.internal_stats import Position
from udfs.query_life import Rules
from udfs.units import HOUR_MS

log = logging.getLogger("ledger-reaper")


@dataclass(frozen=True, slots=True)
class Process:
    """The parts that live as long as the service's process."""

    stop: threading.Event
    metrics: Metrics
    server: MetricsServer | None  # None: no metrics are served


def build_service(
    spark: SparkSession, settings: Settings, instance: Instance, who: Identity, process: Process
) -> LedgerDeletionService:
    """Return the service that processes batches. Raises SafetyError, ConfigError, UnavailableError."""
    stop, metrics, store = process.stop, process.metrics, instance.clients.store
    agreed = AgreedClock(store, settings.zookeeper.own_root, settings.service.name)
    clock = PacedClock(agreed)
    loader = InUseLoader(store, instance.clients.broker if settings.safety.ask_broker else None, clock)
    in_use = settings.in_use
    cache = InUseCache(
        loader=loader,
        clock=clock,
        refresh_ms=in_use.refresh_seconds * 1000,
        max_bytes=in_use.max_cache_mib * 1024 * 1024,
    )
    receipts = Receipts(spark, settings.state_dir)
    identity.hold_state(receipts.table_id, root_of(settings))
    instance.ownership.hold_state(receipts.table_id, settings.state_dir)
    log.info("Spark UI: %s", spark.sparkContext.uiWebUrl or NO_UI)
    coordination = coordination_of(settings, instance, agreed)
    watch = _source_watch(settings, instance)
    watch.recall(now_ms=clock.now_ms())
    # the limits count by the hour, and a jump of a clock must not make such an hour longer or shorter
    blast_radius = _blast_radius(settings, store, StartedClock(clock.now_ms()))
    describe, lock, outages = (
        partial(describe_jobs, spark),
        FairLock(stop),
        Outages(stop=stop, metrics=metrics, log=log.info),
    )
    trigger_s = settings.service.trigger_seconds
    gate = Gate(
        coordination=coordination,
        blast_radius=blast_radius,
        metrics=metrics,
        clock=clock,
        log=log.warning,
        stop=stop,
        state_dir=settings.state_dir,
        poll_s=trigger_s,
    )
    targets = {
        settings.topics.retry: who.retry_partitions,
        settings.topics.dead_letter: who.dead_letter_partitions,
    }
    waiting = Waiting(spark, settings.state_dir, clock=clock)
    copies, epoch = PulsarCopies(settings, targets), who.rules.epoch[1]
    holds = TenantHolds(store, tenant_holds_path(settings.zookeeper.own_root, settings.service.name))
    tenants = HeldTenants(holds, metrics, log.warning)
    metrics.registry.set(table.RATE_LIMIT, settings.limits.deletes_per_second)
    slots = ReadSlots(stop, lambda: spark.sparkContext.defaultParallelism)
    missing = LossCheck(
        loader=loader,
        state_dir=settings.state_dir,
        layout=instance.rules.layout,
        ledgers_root=settings.zookeeper.ledgers_root,
    )
    service = LedgerDeletionService(
        receipts=receipts,
        sweep=ChunkSweep(
            spark=spark,
            settings=settings,
            identity=who,
            receipts=receipts,
            owners=OwnersInUse(cache, watch, gate, tenants),
            gate=gate,
            describe=describe,
            measures=spark.sparkContext.accumulator(Measures(), MeasuresParam()),
        ),
        outbox=Outbox(
            receipts=receipts,
            copies=copies,
            coordination=coordination,
            blast_radius=blast_radius,
            gate=gate,
            outages=outages,
            epoch=epoch,
        ),
        follow_up=FollowUp(
            receipts=receipts,
            cache=cache,
            watch=watch,
            missing=missing,
            tenants=tenants,
            breaker=blast_radius.breaker,
            outages=outages,
            metrics=metrics,
            log=log.info,
        ),
        retries=Retries(
            waiting=waiting,
            receipts=receipts,
            lock=lock,
            gate=gate,
            outages=outages,
            metrics=metrics,
            clock=clock,
            describe=describe,
        ),
        gate=gate,
        outages=outages,
        lock=lock,
        clock=clock,
        describe=describe,
        chunk_rows=settings.service.chunk_rows,
        most_rows={SLOW_LANES: min(SLOW_CHUNK_ROWS, settings.service.chunk_rows)},
        max_request_bytes=settings.service.max_request_bytes,
        note=WorkedOff(settings.state_dir).note,
        slots=slots,
    )
    if has_connector():
        service.completed = Completion(
            spark=spark,
            settings=settings,
            admin=instance.admin,
            read=ReadRows(spark, settings, slots),
            slots=slots,
            patiently=outages.wait_through,
        )
    else:
        service.messages = coalesced
        service.completed = SourceBatches(
            slots=slots,
            report=LostEntries(settings.state_dir).report,
            reading_seconds=settings.service.reading_seconds,
        )
    return service


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Builds what runs around the service, to be started by the caller."""

    spark: SparkSession
    settings: Settings
    service: LedgerDeletionService
    instance: Instance
    board: Board
    most_failures: int | None  # after more failures in a row, a query or the retries are given up; None: never

    def due_loop(self) -> DueLoop:
        """Return the loop over the waiting retries."""
        service = self.service
        retries = service.retries
        due = DueLoop(retries.waiting, service.process_due, retries.prune, service.clock, service.gate.stop)
        due.most_failures = self.most_failures
        due.show = partial(_show_retries, self.settings, self.board, service.clock)
        retries.on_kept = due.wake
        return due

    def queries(self) -> RunningQueries:
        """Return the queries."""
        settings, service = self.settings, self.service
        tools = self._connector_tools() if has_connector() else self._source_tools()
        beat = service.outages.metrics.health.beat
        read_in_passes = partial(matching_topics, self.instance.clients.store, settings)
        return RunningQueries(
            settings, tools, beat=beat, read_in_passes=read_in_passes, claimed=self.instance.ownership.owned
        )

    def _connector_tools(self) -> QueryTools:
        spark, settings, service, admin = self.spark, self.settings, self.service, self.instance.admin
        clients, can_plan = ConnectorClients(spark), partial(reports_last_message, settings.pulsar, admin)
        fallback = Fallback(
            settings=settings,
            admin=admin,
            service=service,
            read=ReadRows(spark, settings, service.slots),
            reports_last_message=can_plan,
        )

        def rows(query: Query) -> DataFrame:
            return read_stream(spark, settings, query.topics, clients.new(query.name))

        return replace(
            self._tools(rows),
            fallback=fallback,
            close_client=clients.close,
            forget=fallback.forget,
            reports_last_message=can_plan,
        )

    def _source_tools(self) -> QueryTools:
        spark, settings, batches = self.spark, self.settings, cast("SourceBatches", self.service.completed)
        register_source(spark)

        def rows(query: Query) -> DataFrame:
            gives_up = batches.gives_up(query.name)
            # a query whose trigger waits works, so a run until idle would not end
            return read_source(spark, settings, query.topics, gives_up=gives_up, waits=self.most_failures is None)

        def forget(query: Query) -> None:
            batches.forget(query.name)
            self.service.forget(query.name)

        tools = self._tools(rows)
        return replace(tools, forget=forget, rules=replace(tools.rules, has_fallback=False))

    def _tools(self, rows: Callable[[Query], DataFrame]) -> QueryTools:
        """Return what queries need with any source. rows: returns the unstarted stream of a query."""
        settings, service = self.settings, self.service

        def start(query: Query) -> StreamingQuery:
            return stream(rows(query), settings, query, service.process).start()

        return QueryTools(
            admin=self.instance.admin,
            start=start,
            restart=service.restart,
            show=self.board.show,
            slow_down=service.slots.slow_down,
            rules=Rules(patience_s=PATIENCE_SECONDS, most_failures=self.most_failures),
            subscription=settings.topics.subscription,
        )

    def lanes(self) -> LaneReader | None:
        """Return what reads the lanes, and topics that match the pattern; None if there can be none."""
        spark, settings, service = self.spark, self.settings, self.service
        if not settings.topics.has_passes:
            return None
        progress = LaneProgress(
            subscription=settings.topics.subscription,
            service=service,
            clock=service.clock,
            newest_receipts=partial(newest_positions, settings.state_dir, _is_in_lane(settings)),
            of_queries=partial(positions_of_queries, settings),
        )
        reader = LaneReader(
            existing=OwnedLanes(
                store=self.instance.clients.store, settings=settings, ownership=self.instance.ownership
            ),
            admin=self.instance.admin,
            progress=progress,
            bell=Doorbell(settings.pulsar, settings.topics.subscription),
            read=LaneRows(spark, settings, service.slots),
            read_one=ReadRows(spark, settings, service.slots),
            last_message=partial(last_message, settings.pulsar),
            show=self.board.show,
        )
        service.give_way[SLOW_LANES] = reader.let_passes_go_first
        return reader

    def upkeep(self, queries: RunningQueries, lanes: LaneReader | None) -> Upkeep:
        """Return the periodic duties."""
        settings, service, markers = self.settings, self.service, Markers()
        pulsar, clock = Pulsar(self.instance.admin, reader_for(settings)), service.clock

        def check_accounts(processed: Mapping[str, Position]) -> Reconciliation:
            markers.lanes, markers.waiting = processed, {} if lanes is None else lanes.waiting
            return reconcile(settings, pulsar, clock.now_ms(), unlisted=queries.unlisted, service=markers)

        return Upkeep(
            partial(tidy_up, settings, pulsar, table=service.receipts, lock=service.lock, clock=clock),
            partial(check_accounts, {}) if lanes is None else partial(lanes.progress.with_processed, check_accounts),
            service.outages.metrics,
        )

    def companions(self, lanes: LaneReader | None) -> Iterator[Beside]:
        """Yield what runs beside the service. Modules are loaded only if the configuration needs them."""
        settings, service = self.settings, self.service
        yield HoldWatch(
            gate=service.gate,
            pause=self.instance.pause,
            tenants=service.follow_up.tenants,
            metrics=service.outages.metrics,
            clock=service.clock,
        ).beside()
        pulsar = Pulsar(self.instance.admin, reader_for(settings))
        registry = service.outages.metrics.registry
        metrics = service.outages.metrics

        def waiting_lanes() -> list[str]:
            return [] if lanes is None else lanes.bell.not_listening

        waits = Waits(service.retries.waiting, waiting_lanes)
        yield reading(facts_of(settings, pulsar, waits, metrics, service.clock))
        if settings.topics.receipts:
            from streaming.deletion.lane_receipts import publishing

            yield publishing(settings, service.receipts, service.clock, registry)
        if settings.notify.webhook_file:
            from streaming.deletion.supervision.notices import notifying

            yield notifying(settings, metrics.health, registry.labels)
        if settings.metrics.otlp_endpoint:
            yield exporting(registry, metrics.health, settings.metrics.otlp_endpoint)
        if settings.audit.every_seconds:
            from streaming.audit.repeat.audit_thread import auditing

            yield auditing(settings)
        if settings.snapshots.guard_every_seconds:
            from streaming.snapshots.guard.guard_thread import guarding

            yield guarding(settings, registry)
        if settings.watch.enabled:
            from streaming.phase_one.watcher.watch_loop import watching

            yield watching(settings, registry)


def _is_in_lane(settings: Settings) -> Callable[[str], bool]:
    """Return a function that returns whether a partition is read in passes."""
    return lambda partition: settings.topics.is_read_in_passes(partition.rpartition("-partition-")[0])


def _show_retries(settings: Settings, board: Board, clock: Clock, why: Exception | None, failures: int) -> None:
    """Show that a pass over the waiting retries failed, or that passes succeed again."""
    if why is None:
        log.info("waiting retries are processed again")
        board.show(WAITING_RETRIES, None)
    else:
        log.error("waiting retries are parked, and other requests continue. A pass failed: %s", one_line(why))
        board.show(
            WAITING_RETRIES,
            ParkedQuery(topic=settings.topics.retry, why=one_line(why), since_ms=clock.now_ms(), failures=failures),
        )
