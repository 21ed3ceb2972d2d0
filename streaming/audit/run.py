"""One audit, from listing to findings: the order of its phases.

That order is the proof that the audit calls no ledger in use an orphan:
1. It lists all ledgers and objects.
2. Then it reads what every topic refers to. What a topic named at the time of the listing, it either names still, or
   has given up since.
3. What no reference names is a suspect. The audit reads each suspect again, then its topic, and applies the rules by
   which the service deletes (udfs/judge.py). A suspect that is CLOSED and that its topic does not name afterwards is
   never named again.
4. After a pause it does 3 once more. Only what both looks agree on becomes an ORPHAN, or MISSING.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.audit import columns as a
from streaming.audit import join
from streaming.audit.certificate import Completeness, unjudged
from streaming.audit.findings import findings, in_use_by_namespace, totals, unjudged_by_namespace
from streaming.audit.looks.twice import look_twice
from streaming.audit.options import AuditOptions
from streaming.audit.place import FINDINGS, Place
from streaming.audit.progress import Phases
from streaming.audit.result import AuditResult
from streaming.audit.stages import PhaseTools, Stages
from streaming.audit.walk.objects import bucket_path, buckets_by_label
from streaming.audit.walk.phases import Walk
from streaming.clients import clients_for, newest_zxid
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.coordination.identity import instance_id_of, read_layout
from udfs.units import DAY_MS

_WORK = ".work-"


@dataclass(frozen=True, slots=True)
class Audit:
    """One run. It works in <place>/.work-<id> and removes that at its end; only its findings stay."""

    spark: SparkSession
    settings: Settings
    options: AuditOptions
    place: Place
    phases: Phases
    clock: Clock

    def run(self) -> AuditResult:
        """Run all phases. Raises UnavailableError and the like; the findings of the audit before it stay then."""
        started_ms = self.clock.now_ms()
        with stages_at(self.spark, self.place, started_ms) as (audit_id, stages):
            return self._run(stages, audit_id, started_ms)

    def _run(self, stages: Stages, audit_id: str, started_ms: int) -> AuditResult:
        tools, buckets = self._tools(stages), tuple(buckets_by_label(self.settings))
        walk = Walk(tools, buckets)
        zxid_start = newest_zxid(self.settings)
        listed, pairs = walk.ledgers_and_objects()
        references = walk.references()
        zxid_end = newest_zxid(self.settings)
        compared = _compared(tools, listed, references)
        suspects = tools.no_suspects()
        if not self.options.verify_only:
            suspects = walk.suspects(compared).unionByName(walk.suspect_objects(pairs, references))
        missing = _perhaps_missing(tools, buckets, references, compared, pairs)
        first, second = look_twice(tools, join.askable(suspects).unionByName(missing))
        stages.keep(FINDINGS, findings(suspects, first, second))
        self.place.replace(FINDINGS, f"{stages.folder}/{FINDINGS}")
        found = self.place.load(self.spark, FINDINGS)
        tools.completeness.problems += unjudged(unjudged_by_namespace(found), tools.completeness.problems)
        return AuditResult(
            audit_id,
            instance_id_of(tools.store, self.settings.zookeeper.ledgers_root),
            started_ms,
            self.clock.now_ms(),
            tools.completeness.certificate(zxid_start, zxid_end),
            totals(found, first, second, tools.completeness.listed),
            in_use_by_namespace(references),
        )

    def _tools(self, stages: Stages) -> PhaseTools:
        store = clients_for(self.settings).store
        layout = read_layout(store, self.settings.zookeeper.ledgers_root)
        return PhaseTools(self.settings, self.options, store, layout, self.phases, stages, Completeness())


@contextmanager
def stages_at(spark: SparkSession, place: Place, started_ms: int) -> Iterator[tuple[str, Stages]]:
    """An audit's id and its stages, in a work folder that goes at the end, with what killed audits left."""
    audit_id = audit_id_at(started_ms)
    for folder in left_behind(place.folders(), started_ms):
        place.remove(folder)
    stages = Stages(spark, place, f"{_WORK}{audit_id}")
    try:
        yield audit_id, stages
    finally:
        place.remove(stages.folder)


def audit_id_at(now_ms: int) -> str:
    """Name an audit by its start; the names sort as the times do."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z"


def left_behind(folders: Sequence[str], now_ms: int) -> list[str]:
    """Return the work folders that audits left when they were killed; one that is a day old is at work no more."""
    oldest = f"{_WORK}{audit_id_at(now_ms - DAY_MS)}"
    return [folder for folder in folders if folder.startswith(_WORK) and folder < oldest]


def _compared(tools: PhaseTools, listed: DataFrame, references: DataFrame) -> DataFrame:
    with tools.phases.phase("Comparing both lists") as phase:
        kept = tools.stages.keep("compared", join.one_sided(listed, references))
        phase.came_to(tools.completeness.listed["ledgers"], "ledgers")
    return kept.rows


def _perhaps_missing(
    tools: PhaseTools, buckets: Sequence[str], references: DataFrame, compared: DataFrame, pairs: DataFrame
) -> DataFrame:
    """References to what was not listed. A bucket that could not be listed proves nothing, so it is left out."""
    failed = {path for path, _detail in tools.completeness.problems}
    readable = [label for label in buckets if bucket_path(label) not in failed]
    only = buckets[0] if len(buckets) == 1 else ""
    elsewhere = join.offload_references(references, only).where(~F.col(a.STORE).isin([*buckets]))
    tools.completeness.listed["objects elsewhere"] = elsewhere.count()
    ledgers = join.unlisted(references, compared)
    objects = join.unlisted_objects(references, pairs, readable, only)
    return tools.stages.keep("unlisted", ledgers.unionByName(objects)).rows
