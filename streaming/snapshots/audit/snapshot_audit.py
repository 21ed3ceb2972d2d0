"""An audit of transaction-buffer snapshots: two passes, and the findings that both agree on.

Each pass reads indexes, then segments, then checks the topics that they belong to, and judges. A finding of the second
pass alone is TOO_YOUNG.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.audit import audit_columns as a
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import Completeness
from streaming.audit.checks.twice import WAITING
from streaming.audit.cluster_label import cluster_label
from streaming.audit.ledger_audit import audit_id_at, tools_for
from streaming.audit.output import FINDINGS, Output
from streaming.audit.phase_progress import Phases
from streaming.audit.result import AuditResult
from streaming.audit.stages import Engine, PhaseTools
from streaming.audit.tables import Rows
from streaming.clients import admin_settings, clients_for, newest_zxid
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.coordination.identity import instance_id_of
from streaming.coordination.live_store import require_no_migration
from streaming.errors import ReaperError
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit import snapshot_joins
from streaming.snapshots.audit.advice import NOT_LOADED
from streaming.snapshots.audit.facts import NamespaceTask, SchemaTask, SegmentsTopicTask, TopicTask
from streaming.snapshots.audit.snapshot_messages import ReadTask
from streaming.snapshots.audit.snapshot_owners import SnapshotOwnersTask
from streaming.snapshots.audit.snapshot_report import GRAVE, totals
from streaming.snapshots.snapshot_namespaces import loaded, namespaces_with_snapshots
from udfs import columns as c
from udfs.snapshots.topic_findings import SnapshotClass, SnapshotReason
from udfs.snapshots.values import Fault

_TOPICS_AT_ONCE = 200
_NAMESPACES_AT_ONCE = 20
_IDENTITY = (a.CLASS, c.REASON, a.NAMESPACE, c.TOPIC_NAME, s.KIND, s.KEY, s.LEDGER, s.ENTRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAudit:
    """One run. Only its findings are kept."""

    engine: Engine
    settings: Settings
    options: AuditOptions
    output: Output
    phases: Phases
    clock: Clock
    only_loaded: bool = False  # skip namespaces with a snapshot topic that no broker has loaded: a read would load it

    def run(self) -> AuditResult:
        """Run both passes. Raises UnavailableError and the like; then the previous audit's findings stay."""
        started_ms = self.clock.now_ms()
        tools = tools_for(self.settings, self.options, self.phases, self.engine, Completeness(listed={}))
        zxid_start = newest_zxid(self.settings)
        with self.phases.phase("Finding namespaces with snapshots") as phase:
            namespaces, problems = namespaces_with_snapshots(tools.store, self.options.filters)
            tools.completeness.problems += problems
            tools.completeness.listed["namespaces"] = len(namespaces)
            phase.processed(len(namespaces), "namespaces")
        findings = first = self._pass(tools, namespaces, "First pass")
        distinct = f"SELECT DISTINCT {a.NAMESPACE} FROM rows"
        suspicious = [row[a.NAMESPACE] for row in first.select(distinct).fetched()]
        if suspicious:
            # Brokers write during the reads, so a pass may meet a topic between two writes: a segment whose index is
            # not written yet, or a ledger that was trimmed after its last commit.
            self.phases.wait(WAITING, self.options.recheck_seconds)
            findings = agreed(first, self._pass(tools, sorted(suspicious), "Second pass"))
        if self.options.verify_only:
            findings = findings.where(f"list_contains($grave, {a.CLASS})", grave=[str(each) for each in GRAVE])
        zxid_end = newest_zxid(self.settings)
        found = tools.tables.keep(findings.select(f"FROM rows ORDER BY {', '.join(_IDENTITY)}"))
        require_no_migration(tools.store)
        self.output.save(FINDINGS, found)
        return AuditResult(
            audit_id=audit_id_at(started_ms),
            instance_id=instance_id_of(tools.store, self.settings.zookeeper.ledgers_root),
            cluster=cluster_label(self.settings, tools.store),
            started_ms=started_ms,
            ended_ms=self.clock.now_ms(),
            certificate=tools.completeness.certificate(zxid_start, zxid_end),
            totals={**tools.completeness.listed, **totals(found)},
            in_use=(),
        )

    def _loaded(self, tools: PhaseTools, namespaces: Sequence[str]) -> list[str]:
        """Return the namespaces that can be read without loading a topic; in the second pass they may be fewer."""
        by_loading = loaded(tools.store, clients_for(self.settings).broker, namespaces)
        tools.completeness.problems += by_loading.problems
        if left_out := len(by_loading.left_out):
            tools.completeness.listed[NOT_LOADED] = tools.completeness.listed.get(NOT_LOADED, 0) + left_out
        return by_loading.namespaces

    def _pass(self, tools: PhaseTools, namespaces: Sequence[str], name: str) -> Rows:
        if self.only_loaded:
            namespaces = self._loaded(tools, namespaces)
        if not namespaces:
            return tools.tables.of([], s.FINDING)
        listed = tools.completeness.listed
        locations = tools.locations([(each, None) for each in namespaces])
        with self.phases.phase(f"{name}: reading snapshots") as phase:
            messages = tools.run(phase, ReadTask(self.settings), locations, s.MESSAGE, at_once=1)
            tools.note((), messages)
            listed["messages"] = max(messages.count(s.KIND), listed.get("messages", 0))
            phase.processed(messages.count(s.KIND), "messages")
        with self.phases.phase(f"{name}: checking topics") as phase:
            topics = tools.tables.keep(snapshot_joins.owners_of(messages))
            owners = tools.run(phase, SnapshotOwnersTask(self.settings), topics, s.OWNER, at_once=_TOPICS_AT_ONCE)
            task = SegmentsTopicTask(self.settings)
            segments = tools.run(phase, task, locations, s.SEGMENTS_TOPIC, at_once=_NAMESPACES_AT_ONCE)
            listed["topics"] = max(owners.count(c.TOPIC_NAME), listed.get("topics", 0))
            phase.processed(owners.count(c.TOPIC_NAME), "topics")
        with self.phases.phase(f"{name}: judging") as phase:
            of_topics = snapshot_joins.topics(messages, owners, segments)
            of_namespaces = snapshot_joins.namespaces(messages, segments)
            found = [
                tools.run(phase, task, tools.tables.keep(rows), s.FINDING, at_once=_NAMESPACES_AT_ONCE)
                for task, rows in (
                    (TopicTask(*self._brokers()), of_topics),
                    (NamespaceTask(), of_namespaces),
                    (SchemaTask(self.settings), locations),
                )
            ]
            return tools.tables.keep(message_findings(messages).and_also(*found))

    def _brokers(self) -> tuple[int, bool | None]:
        """Return how many bytes a message may have (0: not known), and whether brokers write segments."""
        with closing(SnapshotAdmin(admin_settings(self.settings))) as admin:
            try:
                is_segmented, most_bytes = admin.broker_settings()
            except ReaperError:
                return 0, None
        return most_bytes, is_segmented


def agreed(first: Rows, second: Rows) -> Rows:
    """Return the findings of the second pass; those that the first pass did not have become TOO_YOUNG."""
    names = ", ".join(_IDENTITY)
    once = (
        f"SELECT * REPLACE ('{SnapshotClass.TOO_YOUNG.value}' AS {a.CLASS}) FROM rows ANTI JOIN first USING ({names})"
    )
    both = second.select(f"FROM rows SEMI JOIN first USING ({names})", first=first)
    return both.and_also(second.select(once, first=first))


def message_findings(messages: Rows) -> Rows:
    """Return the findings about messages that no broker wrote."""
    return _foreign(messages).and_also(_blocking(messages), _doubtful(messages))


def _foreign(messages: Rows) -> Rows:
    unknown, others = SnapshotClass.UNKNOWN.value, SnapshotClass.FOREIGN.value
    found = f"CASE WHEN {s.FAULT} = '{Fault.UNKNOWN_SCHEMA.value}' THEN '{unknown}' ELSE '{others}' END"
    return _of_messages(snapshot_joins.foreign(messages), found, s.FAULT)


def _blocking(messages: Rows) -> Rows:
    read = "no broker can decode it, and each that loads a topic of the namespace reads it: the topic is closed"
    return _at_load(snapshot_joins.blocking(messages), SnapshotReason.LOAD_BLOCKED, read)


def _doubtful(messages: Rows) -> Rows:
    read = "each broker that loads a topic of the namespace reads it, and closes the topic if it can't decode it"
    return _at_load(snapshot_joins.doubtful(messages), SnapshotReason.LOAD_IN_DOUBT, read)


def _at_load(messages: Rows, reason: SnapshotReason, what: str) -> Rows:
    replaced = f"SELECT * REPLACE ($what || ' (' || {c.DETAIL} || ')' AS {c.DETAIL}) FROM rows"
    return _of_messages(messages.select(replaced, what=what), f"'{SnapshotClass.DANGER.value}'", f"'{reason.value}'")


def _of_messages(messages: Rows, found: str, reason: str) -> Rows:
    """Return findings about messages; a message whose key names no topic counts for the system topic."""
    system = f"'persistent://' || {a.NAMESPACE} || '/' || {s.KIND}"
    topic = f"CASE WHEN {c.TOPIC_NAME} = '' THEN {system} ELSE {c.TOPIC_NAME} END"
    columns = {a.CLASS: found, c.REASON: reason, c.TOPIC_NAME: topic}
    selected = ", ".join(f"{columns.get(name, name)} AS {name}" for name in s.FINDING.names)
    return messages.select(f"SELECT {selected} FROM rows")
