"""An audit of transaction-buffer snapshots: two passes, and the findings that both agree on.

Each pass reads indexes before segments, requests the topics afterwards, and judges. A finding of the second pass alone
is TOO_YOUNG.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.audit import audit_columns as a
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import Completeness
from streaming.audit.checks.twice import WAITING
from streaming.audit.ledger_audit import stages_at, tools_for
from streaming.audit.output import FINDINGS, Output
from streaming.audit.phase_progress import Phases
from streaming.audit.result import AuditResult
from streaming.audit.stages import PhaseTools, Stages
from streaming.clients import admin_settings, clients_for, newest_zxid
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.coordination.identity import instance_id_of
from streaming.errors import ReaperError
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit import snapshot_joins
from streaming.snapshots.audit.advice import NOT_LOADED
from streaming.snapshots.audit.facts import NamespaceTask, SchemaTask, SegmentsTopicTask, TopicTask
from streaming.snapshots.audit.snapshot_messages import ReadTask, loaded, namespaces_with_snapshots
from streaming.snapshots.audit.snapshot_owners import SnapshotOwnersTask
from udfs import columns as c
from udfs.snapshots.topic_findings import SnapshotClass, SnapshotReason
from udfs.snapshots.values import Fault

GRAVE = (SnapshotClass.MISSING, SnapshotClass.DANGER)
_IDENTITY = (a.CLASS, c.REASON, a.NAMESPACE, c.TOPIC_NAME, s.KIND, s.KEY, s.LEDGER, s.ENTRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAudit:
    """One run. It works in <output>/.work-<id> and removes that at its end; only its findings stay."""

    spark: SparkSession
    settings: Settings
    options: AuditOptions
    output: Output
    phases: Phases
    clock: Clock
    only_loaded: bool = False  # skip namespaces with a snapshot topic that no broker has loaded: a read would load it

    def run(self) -> AuditResult:
        """Run both passes. Raises UnavailableError and the like; then the previous audit's findings stay."""
        started_ms = self.clock.now_ms()
        with stages_at(self.spark, self.output, started_ms) as (audit_id, stages):
            return self._run(stages, audit_id, started_ms)

    def _run(self, stages: Stages, audit_id: str, started_ms: int) -> AuditResult:
        tools = tools_for(self.settings, self.options, self.phases, stages, Completeness(listed={}))
        zxid_start = newest_zxid(self.settings)
        with self.phases.phase("Finding namespaces with snapshots") as phase:
            namespaces, problems = namespaces_with_snapshots(tools.store, self.options.filters)
            tools.completeness.problems += problems
            tools.completeness.listed["namespaces"] = len(namespaces)
            phase.processed(len(namespaces), "namespaces")
        findings = first = self._pass(tools, namespaces, "First pass", 1)
        suspicious = [row[0] for row in first.select(a.NAMESPACE).distinct().collect()]
        if suspicious:
            # Brokers write during the reads, so a pass may meet a topic between two writes: a segment whose index is
            # not written yet, or a ledger that was trimmed after its last commit.
            self.phases.wait(WAITING, self.options.recheck_seconds)
            findings = agreed(first, self._pass(tools, sorted(suspicious), "Second pass", 2))
        if self.options.verify_only:
            findings = findings.where(F.col(a.CLASS).isin([str(each) for each in GRAVE]))
        zxid_end = newest_zxid(self.settings)
        stages.keep(FINDINGS, findings.orderBy(*_IDENTITY))
        self.output.replace(FINDINGS, f"{stages.folder}/{FINDINGS}")
        return AuditResult(
            audit_id=audit_id,
            instance_id=instance_id_of(tools.store, self.settings.zookeeper.ledgers_root),
            started_ms=started_ms,
            ended_ms=self.clock.now_ms(),
            certificate=tools.completeness.certificate(zxid_start, zxid_end),
            totals={**tools.completeness.listed, **totals(self.output.load(self.spark, FINDINGS))},
            in_use=(),
        )

    def _loaded(self, tools: PhaseTools, namespaces: Sequence[str]) -> list[str]:
        """Return the namespaces that can be read without loading a topic; in the second pass they may be fewer."""
        by_loading = loaded(tools.store, clients_for(self.settings).broker, namespaces)
        tools.completeness.problems += by_loading.problems
        if left_out := len(by_loading.left_out):
            tools.completeness.listed[NOT_LOADED] = tools.completeness.listed.get(NOT_LOADED, 0) + left_out
        return by_loading.namespaces

    def _pass(self, tools: PhaseTools, namespaces: Sequence[str], name: str, number: int) -> DataFrame:
        if self.only_loaded:
            namespaces = self._loaded(tools, namespaces)
        if not namespaces:
            return self.spark.createDataFrame([], from_arrow_schema(s.FINDING))
        stages, listed = tools.stages, tools.completeness.listed
        locations = tools.locations([(each, None) for each in namespaces])
        with self.phases.phase(f"{name}: reading snapshots") as phase:
            messages = stages.keep(
                f"messages-{number}", locations.mapInArrow(ReadTask(self.settings), from_arrow_schema(s.MESSAGE))
            )
            tools.note((), messages)
            listed["messages"] = max(messages.count(s.KIND), listed.get("messages", 0))
            phase.processed(messages.count(s.KIND), "messages")
        with self.phases.phase(f"{name}: checking topics") as phase:
            topics = snapshot_joins.owners_of(messages.rows)
            task = SnapshotOwnersTask(self.settings)
            owners = stages.keep(f"owners-{number}", topics.mapInArrow(task, from_arrow_schema(s.OWNER)))
            segments = stages.keep(
                f"segments-{number}",
                locations.mapInArrow(SegmentsTopicTask(self.settings), from_arrow_schema(s.SEGMENTS_TOPIC)),
            )
            listed["topics"] = max(owners.count(c.TOPIC_NAME), listed.get("topics", 0))
            phase.processed(owners.count(c.TOPIC_NAME), "topics")
        with self.phases.phase(f"{name}: judging"):
            findings = self._findings(messages.rows, owners.rows, segments.rows, locations)
            return stages.keep(f"findings-{number}", findings).rows

    def _findings(self, messages: DataFrame, owners: DataFrame, segments: DataFrame, locations: DataFrame) -> DataFrame:
        schema = from_arrow_schema(s.FINDING)
        topic_task = TopicTask(*self._brokers())
        of_topics = snapshot_joins.topics(messages, owners, segments).mapInArrow(topic_task, schema)
        of_namespaces = snapshot_joins.namespaces(messages, segments).mapInArrow(NamespaceTask(), schema)
        of_schemas = locations.mapInArrow(SchemaTask(self.settings), schema)
        return of_topics.unionByName(of_namespaces).unionByName(of_schemas).unionByName(message_findings(messages))

    def _brokers(self) -> tuple[int, bool | None]:
        """Return how many bytes a message may have (0: not known), and whether brokers write segments."""
        with closing(SnapshotAdmin(admin_settings(self.settings))) as admin:
            try:
                is_segmented, most_bytes = admin.broker_settings()
            except ReaperError:
                return 0, None
        return most_bytes, is_segmented


def agreed(first: DataFrame, second: DataFrame) -> DataFrame:
    """Return the findings of the second pass; those that the first pass did not have become TOO_YOUNG."""
    names = list(_IDENTITY)
    seen = first.select(*names).distinct()
    once = second.join(seen, names, "left_anti").withColumn(a.CLASS, F.lit(str(SnapshotClass.TOO_YOUNG)))
    return second.join(seen, names, "left_semi").unionByName(once)


def totals(found: DataFrame) -> dict[str, dict[str, int]]:
    """Count each class of findings, with bytes and ids."""
    classes = {str(each): {"count": 0, "bytes": 0, "ids": 0} for each in SnapshotClass}
    counted = found.groupBy(a.CLASS).agg(
        F.count(F.lit(1)).alias("n"), F.sum(c.BYTES).alias("size"), F.sum(s.IDS).alias("ids")
    )
    for row in counted.collect():
        classes[row[a.CLASS]] = {"count": row["n"], "bytes": row["size"] or 0, "ids": row["ids"] or 0}
    return classes


def message_findings(messages: DataFrame) -> DataFrame:
    """Return the findings about messages that no broker wrote."""
    return _foreign(messages).unionByName(_blocking(messages)).unionByName(_doubtful(messages))


def _foreign(messages: DataFrame) -> DataFrame:
    is_unknown = F.col(s.FAULT) == str(Fault.UNKNOWN_SCHEMA)
    finding_class = F.when(is_unknown, str(SnapshotClass.UNKNOWN)).otherwise(str(SnapshotClass.FOREIGN))
    return _of_messages(snapshot_joins.foreign(messages), finding_class, F.col(s.FAULT))


def _blocking(messages: DataFrame) -> DataFrame:
    read = F.lit("no broker can decode it, and each that loads a topic of the namespace reads it: the topic is closed")
    return _at_load(snapshot_joins.blocking(messages), SnapshotReason.LOAD_BLOCKED, read)


def _doubtful(messages: DataFrame) -> DataFrame:
    read = F.lit("each broker that loads a topic of the namespace reads it, and closes the topic if it can't decode it")
    return _at_load(snapshot_joins.doubtful(messages), SnapshotReason.LOAD_IN_DOUBT, read)


def _at_load(messages: DataFrame, reason: SnapshotReason, what: Column) -> DataFrame:
    described = messages.withColumn(c.DETAIL, F.concat(what, F.lit(" ("), c.DETAIL, F.lit(")")))
    return _of_messages(described, F.lit(str(SnapshotClass.DANGER)), F.lit(str(reason)))


def _of_messages(messages: DataFrame, found: Column, reason: Column) -> DataFrame:
    """Return findings about messages; a message whose key names no topic counts for the system topic."""
    system = F.concat(F.lit("persistent://"), a.NAMESPACE, F.lit("/"), s.KIND)
    named = messages.withColumn(c.TOPIC_NAME, F.when(F.col(c.TOPIC_NAME) == "", system).otherwise(F.col(c.TOPIC_NAME)))
    return named.select(
        found.alias(a.CLASS),
        reason.alias(c.REASON),
        *(name for name in s.FINDING.names if name not in (a.CLASS, c.REASON)),
    )
