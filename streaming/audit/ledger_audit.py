"""One audit, from listing to findings: the order of its phases.

The order of the phases proves that no ledger in use is reported as an orphan:
1. All ledgers and objects are listed.
2. After that, the references of every topic are read.
3. A ledger that no reference names is a suspect. Each suspect is read again, and then its topic. The rules by which
   the service deletes (udfs/verdicts/judge.py) then decide.
4. After a pause, step 3 is repeated. Only a suspect on which both checks agree becomes an ORPHAN, or MISSING.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import Completeness, unjudged
from streaming.audit.checks.twice import check_twice
from streaming.audit.findings import findings, in_use_by_namespace, totals, unjudged_by_namespace
from streaming.audit.output import FINDINGS, Output
from streaming.audit.phase_progress import Phases
from streaming.audit.result import AuditResult
from streaming.audit.stages import PhaseTools, Stages
from streaming.audit.walk.bucket_listing import bucket_path, buckets_by_label
from streaming.audit.walk.phases import Walk
from streaming.clients import clients_for, newest_zxid
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.coordination.identity import instance_id_of, read_layout
from udfs.units import DAY_MS

_WORK = ".work-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One run. It works in <output>/.work-<id>, which it removes at its end; only its findings remain."""

    spark: SparkSession
    settings: Settings
    options: AuditOptions
    output: Output
    phases: Phases
    clock: Clock

    def run(self) -> AuditResult:
        """Run all phases. Raises UnavailableError and the like; then the previous audit's findings remain."""
        started_ms = self.clock.now_ms()
        with stages_at(self.spark, self.output, started_ms) as (audit_id, stages):
            return self._run(stages, audit_id, started_ms)

    def _run(self, stages: Stages, audit_id: str, started_ms: int) -> AuditResult:
        tools = tools_for(self.settings, self.options, self.phases, stages, Completeness())
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
            suspects = walk.suspects(compared).unionByName(walk.suspect_objects(pairs, references))
        missing = _possibly_missing(tools, buckets, references, compared, pairs)
        # if a suspect is CLOSED, and its topic, read after it, does not name it, the topic never names it again
        first, second = check_twice(tools, reference_join.askable(suspects).unionByName(missing))
        stages.keep(FINDINGS, findings(suspects, first, second))
        # at the end, so that the findings of the previous audit remain if this one fails
        self.output.replace(FINDINGS, f"{stages.folder}/{FINDINGS}")
        loaded = self.output.load(self.spark, FINDINGS)
        tools.completeness.problems += unjudged(unjudged_by_namespace(loaded), tools.completeness.problems)
        return AuditResult(
            audit_id=audit_id,
            instance_id=instance_id_of(tools.store, self.settings.zookeeper.ledgers_root),
            started_ms=started_ms,
            ended_ms=self.clock.now_ms(),
            certificate=tools.completeness.certificate(zxid_start, zxid_end),
            totals=totals(loaded, first, second, tools.completeness.listed),
            in_use=in_use_by_namespace(references),
        )


def tools_for(
    settings: Settings, options: AuditOptions, phases: Phases, stages: Stages, completeness: Completeness
) -> PhaseTools:
    """Return what the phases of one run share. Raises UnavailableError."""
    store = clients_for(settings).store
    return PhaseTools(
        settings=settings,
        options=options,
        store=store,
        layout=read_layout(store, settings.zookeeper.ledgers_root),
        phases=phases,
        stages=stages,
        completeness=completeness,
    )


@contextmanager
def stages_at(spark: SparkSession, output: Output, started_ms: int) -> Iterator[tuple[str, Stages]]:
    """Yield an audit's id and its stages, whose work folder is removed at the end.

    Folders of killed audits (stale_folders) are removed first.
    """
    audit_id = audit_id_at(started_ms)
    # a killed audit leaves its folder, and no other run removes it
    for folder in stale_folders(output.folders(), started_ms):
        output.remove(folder)
    stages = Stages(spark, output, f"{_WORK}{audit_id}")
    try:
        yield audit_id, stages
    finally:
        output.remove(stages.folder)


def audit_id_at(now_ms: int) -> str:
    """Return the name of an audit that starts now; names sort by time."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z"


def stale_folders(folders: Sequence[str], now_ms: int) -> list[str]:
    """Return the work folders of killed audits: no audit that is a day old is still running."""
    oldest = f"{_WORK}{audit_id_at(now_ms - DAY_MS)}"
    return [folder for folder in folders if folder.startswith(_WORK) and folder < oldest]


def _compared(tools: PhaseTools, listed: DataFrame, references: DataFrame) -> DataFrame:
    with tools.phases.phase("Comparing both lists") as phase:
        kept = tools.stages.keep("compared", reference_join.one_sided(listed, references))
        phase.processed(tools.completeness.listed["ledgers"], "ledgers")
    return kept.rows


def _possibly_missing(
    tools: PhaseTools, buckets: Sequence[str], references: DataFrame, compared: DataFrame, pairs: DataFrame
) -> DataFrame:
    """Return references to ledgers and objects that were not listed.

    References to objects count only for buckets that could be listed.
    """
    failed = {path for path, _detail in tools.completeness.problems}
    readable = [label for label in buckets if bucket_path(label) not in failed]
    only = buckets[0] if len(buckets) == 1 else ""
    elsewhere = reference_join.offload_references(references, only).where(~F.col(a.STORE).isin([*buckets]))
    tools.completeness.listed["objects elsewhere"] = elsewhere.count()
    ledgers = reference_join.unlisted(references, compared)
    objects = reference_join.unlisted_objects(references, pairs, readable, only)
    return tools.stages.keep("unlisted", ledgers.unionByName(objects)).rows
