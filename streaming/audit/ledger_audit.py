"""One audit, from listing to findings: the order of its phases.

The order of the phases proves that no ledger in use is reported as an orphan:
1. All ledgers and objects are listed.
2. After that, the references of every topic are read.
3. A ledger that no reference names is a suspect. Each suspect is read again, and then its topic. The rules by which
   the service deletes (udfs/verdicts/judge.py) then decide.
4. After a pause, step 3 is repeated. Only a suspect on which both checks agree becomes an ORPHAN, or MISSING.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import Completeness, unjudged
from streaming.audit.checks.twice import check_twice
from streaming.audit.cluster_label import cluster_label
from streaming.audit.findings import findings, in_use_by_namespace, totals, unjudged_by_namespace
from streaming.audit.output import FINDINGS, Output
from streaming.audit.phase_progress import Phases
from streaming.audit.result import AuditResult
from streaming.audit.stages import Engine, PhaseTools
from streaming.audit.tables import Rows
from streaming.audit.walk.bucket_listing import bucket_path, buckets_by_label
from streaming.audit.walk.phases import Walk
from streaming.clients import metadata_stores_of, newest_zxid, process_store
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.coordination.identity import instance_id_of, read_layout
from streaming.coordination.live_store import require_live_store, require_no_migration


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One run. Only its findings remain."""

    engine: Engine
    settings: Settings
    options: AuditOptions
    output: Output
    phases: Phases
    clock: Clock

    def run(self) -> AuditResult:
        """Run all phases. Raises as AuditCommand.search; then the previous findings remain."""
        started_ms = self.clock.now_ms()
        tools = tools_for(self.settings, self.options, self.phases, self.engine, Completeness())
        buckets = tuple(buckets_by_label(self.settings))
        walk = Walk(tools, buckets)
        zxid_start = newest_zxid(self.settings)
        listed, pairs = walk.ledgers_and_objects()
        # after the listing: a topic still names each ledger that it named at the time of the listing, or has released
        # it since
        references = walk.references()
        zxid_end = newest_zxid(self.settings)
        compared = _compared(tools, listed, references)
        suspects = tools.no_suspects()
        if not self.options.verify_only:
            suspects = walk.suspects(compared).and_also(walk.suspect_objects(pairs, references))
            suspects = suspects.and_also(walk.unnamed_segments(references))
        missing = _possibly_missing(tools, buckets, references, compared, pairs)
        # if a suspect is CLOSED, and its topic, read after it, does not name it, the topic never names it again
        first, second = check_twice(tools, reference_join.askable(suspects).and_also(missing))
        found = tools.tables.keep(findings(suspects, first, second))
        tools.completeness.problems += unjudged(unjudged_by_namespace(found), tools.completeness.problems)
        # brokers write to another store from the end of a migration on, which may have been during this audit
        require_no_migration(tools.store)
        result = AuditResult(
            audit_id=audit_id_at(started_ms),
            instance_id=instance_id_of(tools.store, self.settings.zookeeper.ledgers_root),
            cluster=cluster_label(self.settings, tools.store),
            started_ms=started_ms,
            ended_ms=self.clock.now_ms(),
            certificate=tools.completeness.certificate(zxid_start, zxid_end),
            totals=totals(found, first, second, tools.completeness.listed),
            in_use=in_use_by_namespace(references),
        )
        # at the end, so that the findings of the previous audit remain if this one fails
        self.output.save(FINDINGS, found)
        return result


def tools_for(
    settings: Settings, options: AuditOptions, phases: Phases, engine: Engine, completeness: Completeness
) -> PhaseTools:
    """Return what the phases of one run share. Raises SafetyError if the cluster leaves ZooKeeper, UnavailableError."""
    store = process_store(settings)
    require_live_store(store, partial(metadata_stores_of, settings), sleep=engine.stop.wait)
    return PhaseTools(
        settings=settings,
        options=options,
        store=store,
        layout=read_layout(store, settings.zookeeper.ledgers_root),
        phases=phases,
        engine=engine,
        completeness=completeness,
    )


def audit_id_at(now_ms: int) -> str:
    """Return the name of an audit that starts now; names sort by time."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z"


def _compared(tools: PhaseTools, listed: Rows, references: Rows) -> Rows:
    with tools.phases.phase("Comparing both lists") as phase:
        compared = tools.tables.keep(reference_join.one_sided(listed, references))
        tools.completeness.listed["unreferenced"] = reference_join.unreferenced(compared).count()
        phase.processed(tools.completeness.listed["ledgers"], "ledgers")
    return compared


def _possibly_missing(tools: PhaseTools, buckets: Sequence[str], references: Rows, compared: Rows, pairs: Rows) -> Rows:
    """Return references to ledgers and objects that were not listed.

    References to objects count only for buckets that could be listed.
    """
    failed = {path for path, _detail in tools.completeness.problems}
    readable = [label for label in buckets if bucket_path(label) not in failed]
    only = buckets[0] if len(buckets) == 1 else ""
    elsewhere = reference_join.offload_references(references, only).where(
        f"NOT list_contains($buckets::VARCHAR[], {a.STORE})", buckets=[*buckets]
    )
    tools.completeness.listed["objects elsewhere"] = elsewhere.count()
    ledgers = reference_join.unlisted(references, compared)
    objects = reference_join.unlisted_objects(references, pairs, readable, only)
    return tools.tables.keep(ledgers.and_also(objects))
