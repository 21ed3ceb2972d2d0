"""The audit from listing to findings: the only module of it that runs Spark jobs and waits.

Phase order is the proof that no ledger in use is called an orphan (docs/decisions/0028): 1. ledgers are listed, 2. then
references are read, 3. what no reference names is looked at, ledger first, owner after, by the sweep's judge,
4. and again after a pause. Each phase is written down before the next begins: Spark would read lazily else.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.adapters.zookeeper.session import newest_zxid
from streaming.audit import columns as a
from streaming.audit import join
from streaming.audit.audited import Audited, Share
from streaming.audit.certificate import MAX_PROBLEMS, Certificate, blocked_paths, whole_errors
from streaming.audit.looks.ledgers import LookTask
from streaming.audit.options import AuditOptions
from streaming.audit.place import FINDINGS, Place
from streaming.audit.progress import Phases
from streaming.audit.stages import Kept, Stages
from streaming.audit.walk.listing import ListTask, Problem, find_folders
from streaming.audit.walk.objects import PREFIXES, ClaimObjectsTask, ListObjectsTask, bucket_path, buckets_by_label
from streaming.audit.walk.owners import OwnersTask, find_namespaces
from streaming.audit.walk.references import ReferenceTask
from streaming.audit.walk.suspects import ClaimTask
from streaming.clients import clients_for, zookeeper_settings
from streaming.clock import Clock
from streaming.config.policies import policy_of
from streaming.config.settings import Settings
from streaming.coordination.identity import instance_id_of, read_layout
from streaming.queries.transforms import tasks_for
from udfs import columns as c
from udfs.audit import NOT_FINDINGS, FindingClass
from udfs.judge import Policy
from udfs.records import LedgerType
from udfs.units import DAY_MS

_DRIVER_ROWS = MAX_PROBLEMS  # one more is no longer believed
_SHARES = 500
_WORK = ".work-"
SECOND_LOOK_WAITS = "Waiting before the second look (--recheck-seconds)"


@dataclass(frozen=True, slots=True)
class Audit:
    """One run. Its stages stand in <place>/.work-<id> while it runs; its findings are what stays."""

    spark: SparkSession
    settings: Settings
    options: AuditOptions
    place: Place
    phases: Phases
    clock: Clock

    def run(self) -> Audited:
        """List, compare, look twice. Raises UnavailableError and the like; then there are no new findings."""
        started_ms = self.clock.now_ms()
        audit_id = audit_id_at(started_ms)
        for folder in left_behind(self.place.folders(), started_ms):
            self.place.remove(folder)
        stages = Stages(self.spark, self.place, f"{_WORK}{audit_id}")
        try:
            return _Run(self, stages, audit_id, started_ms).run()
        finally:
            self.place.remove(stages.folder)


def audit_id_at(now_ms: int) -> str:
    """Ids sort as the times do."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z"


def left_behind(folders: Sequence[str], now_ms: int) -> list[str]:
    """Stages of audits that were killed; after a day none is still at work."""
    oldest = f"{_WORK}{audit_id_at(now_ms - DAY_MS)}"
    return [folder for folder in folders if folder.startswith(_WORK) and folder < oldest]


class _Run:
    """The phases of one audit, and what they learn about its completeness."""

    def __init__(self, audit: Audit, stages: Stages, audit_id: str, started_ms: int) -> None:
        self._audit = audit
        self._stages = stages
        self._audit_id = audit_id
        self._started_ms = started_ms
        self._spark = audit.spark
        self._settings = audit.settings
        self._store = clients_for(audit.settings).store
        self._layout = read_layout(self._store, audit.settings.zookeeper.ledgers_root)
        self._parallelism = audit.spark.sparkContext.defaultParallelism
        self._tasks = max(audit.options.tasks, 4 * self._parallelism)
        self._reads_per_second = audit.options.reads_per_second / self._parallelism
        self._stores = tuple(buckets_by_label(audit.settings))
        self._problems: list[Problem] = []
        self._errors: tuple[str, ...] = ()
        self._listed: dict[str, int] = {"ledgers": 0, "unreferenced": 0, "objects": 0}

    def run(self) -> Audited:
        zookeeper = zookeeper_settings(self._settings)
        zxid_start = newest_zxid(zookeeper)
        listed, pairs = self._listed_both()
        references = self._references()
        zxid_end = newest_zxid(zookeeper)
        compared = self._compared(listed, references)
        suspects = self._none()
        if not self._audit.options.verify_only:
            suspects = self._suspects(compared)
            suspects = suspects.unionByName(self._object_suspects(pairs, references))
        first, second = self._look_twice(suspects, self._missing(references, compared, pairs))
        totals = self._findings(suspects, first, second)
        certificate = Certificate(zxid_start, zxid_end, self._listed, tuple(self._problems), self._errors)
        ended_ms = self._audit.clock.now_ms()
        return Audited(
            self._audit_id,
            instance_id_of(self._store, self._settings.zookeeper.ledgers_root),
            self._started_ms,
            ended_ms,
            certificate,
            totals,
            shares(references),
        )

    def _listed_both(self) -> tuple[DataFrame, DataFrame]:
        """Ledgers and objects side by side: the order that counts is that both come before the references."""
        with ThreadPoolExecutor(2) as pool:
            # so that each thread's Spark jobs carry its own phase's name
            ledgers, objects = (pool.submit(inheritable_thread_target(one)) for one in (self._ledgers, self._objects))
            return ledgers.result(), objects.result()

    def _ledgers(self) -> DataFrame:
        with self._audit.phases.phase("Listing ledgers") as phase:
            folders = find_folders(self._store, self._settings.zookeeper.ledgers_root, self._layout)
            task = ListTask(self._settings, self._reads_per_second)
            listed = self._places(folders.paths).mapInArrow(task, from_arrow_schema(a.LISTED))
            kept = self._stages.keep("ledgers", listed)
            self._note(folders.problems, kept)
            self._listed["ledgers"] = kept.count(c.LEDGER_ID)
            phase.came_to(self._listed["ledgers"], "ledgers")
        return kept.rows

    def _objects(self) -> DataFrame:
        task = ListObjectsTask(self._settings)
        prefixes = [(label, prefix) for label in self._stores for prefix in PREFIXES]
        schema = from_arrow_schema(a.OBJECT)
        if not prefixes:
            return join.pairs_of(self._spark.createDataFrame([], schema))
        with self._audit.phases.phase("Listing objects") as phase:
            kept = self._stages.keep("objects", self._place_rows(prefixes).mapInArrow(task, schema))
            self._note((), kept)
            self._listed["objects"] = kept.count(c.UUID)
            phase.came_to(self._listed["objects"], "objects")
        return self._stages.keep("pairs", join.pairs_of(kept.rows)).rows

    def _object_suspects(self, pairs: DataFrame, references: DataFrame) -> DataFrame:
        unreferenced = join.unreferenced_pairs(pairs, references)
        if not self._listed["objects"] or unreferenced.isEmpty():
            return self._none()
        with self._audit.phases.phase("Reading suspect objects"):
            claimed = unreferenced.mapInArrow(ClaimObjectsTask(self._settings), from_arrow_schema(a.SUSPECT))
            return self._stages.keep("suspect-objects", claimed).rows

    def _references(self) -> DataFrame:
        with self._audit.phases.phase("Listing topics and schemas") as phase:
            namespaces = find_namespaces(self._store)
            task = OwnersTask(self._settings)
            owners = self._places(namespaces.paths).mapInArrow(task, from_arrow_schema(a.PLACE))
            listed = self._stages.keep("owners", owners)
            self._listed["owners"] = listed.count(a.PATH) - listed.count(c.DETAIL)
            phase.came_to(self._listed["owners"], "topics and schemas")
        with self._audit.phases.phase("Reading references") as phase:
            reading = ReferenceTask(self._settings, self._reads_per_second)
            spread = listed.rows.repartition(tasks_for(self._listed["owners"], self._tasks))
            read = self._stages.keep("references", spread.mapInArrow(reading, from_arrow_schema(a.REFERENCE)))
            self._note(namespaces.problems, read)
            self._listed["references"] = read.count(c.LEDGER_ID)
            phase.came_to(self._listed["references"], "references")
        return read.rows

    def _compared(self, listed: DataFrame, references: DataFrame) -> DataFrame:
        with self._audit.phases.phase("Comparing") as phase:
            kept = self._stages.keep("compared", join.one_sided(listed, references))
            phase.came_to(self._listed["ledgers"], "ledgers")
        return kept.rows

    def _suspects(self, compared: DataFrame) -> DataFrame:
        with self._audit.phases.phase("Reading suspects") as phase:
            task = ClaimTask(self._settings, self._layout, self._reads_per_second)
            ids = join.unreferenced(compared)
            self._listed["unreferenced"] = ids.count()
            spread = ids.repartition(tasks_for(self._listed["unreferenced"], self._tasks))
            suspects = self._stages.keep("suspects", spread.mapInArrow(task, from_arrow_schema(a.SUSPECT)))
            phase.came_to(self._listed["unreferenced"], "ledgers")
            self._errors = whole_errors(self._listed, suspects.count(c.REFERENCE_KEY))
        return suspects.rows

    def _none(self) -> DataFrame:
        return self._spark.createDataFrame([], from_arrow_schema(a.SUSPECT))

    def _missing(self, references: DataFrame, compared: DataFrame, pairs: DataFrame) -> DataFrame:
        """References without what they refer to, as far as the stores could be listed."""
        failed = {path for path, _detail in self._problems}
        stores = [label for label in self._stores if bucket_path(label) not in failed]
        only = self._stores[0] if len(self._stores) == 1 else ""
        offloaded = join.offload_references(references, only)
        self._listed["objects elsewhere"] = offloaded.where(~F.col(a.STORE).isin([*self._stores])).count()
        missing = join.unlisted(references, compared)
        return self._stages.keep(
            "unlisted", missing.unionByName(join.unlisted_objects(references, pairs, stores, only))
        ).rows

    def _look_twice(self, suspects: DataFrame, missing: DataFrame) -> tuple[DataFrame, DataFrame]:
        first = self._look("Asking owners", join.askable(suspects).unionByName(missing), is_second=False)
        candidates = join.candidates(first)
        if candidates.isEmpty():
            return first, self._none()
        self._audit.phases.wait(SECOND_LOOK_WAITS, self._audit.options.recheck_seconds)
        return first, self._look("Asking again", candidates, is_second=True)

    def _look(self, name: str, suspects: DataFrame, *, is_second: bool) -> DataFrame:
        with self._audit.phases.phase(name) as phase:
            task = LookTask(
                self._settings,
                self._layout,
                audit_policy(self._settings, self._audit.options),
                blocked_paths(self._problems, self._errors),
                self._reads_per_second,
                is_second,
            )
            total = suspects.count()
            phase.came_to(total, "suspects")
            if not total:
                return self._none()
            grouped = join.by_owner(suspects, tasks_for(total, self._tasks))
            looked = grouped.mapInArrow(task, from_arrow_schema(a.SUSPECT))
            return self._stages.keep("second" if is_second else "first", looked).rows

    def _findings(self, suspects: DataFrame, first: DataFrame, second: DataFrame) -> dict[str, Any]:
        self._stages.keep(FINDINGS, join.findings(suspects, first, second))
        self._audit.place.replace(FINDINGS, f"{self._stages.folder}/{FINDINGS}")
        classes = {each: {"count": 0, "bytes": 0} for each in FindingClass if each not in NOT_FINDINGS}
        found = self._audit.spark.read.parquet(self._audit.place.spark_path(FINDINGS))
        for row in found.groupBy(a.CLASS).agg(F.count(F.lit(1)).alias("n"), F.sum(c.BYTES).alias("total")).collect():
            classes[FindingClass(row[a.CLASS])] = {"count": row["n"], "bytes": row["total"] or 0}
        looked = first.where(~F.col(a.CANDIDATE)).unionByName(second)
        is_ledger = F.col(c.LEDGER_TYPE) == str(LedgerType.LEDGER)
        used = looked.where(join.is_class(FindingClass.IN_USE) & is_ledger & ~F.col(a.IS_REFERENCE)).count()
        in_use = self._listed["ledgers"] - self._listed["unreferenced"] + used
        listed = {name: self._listed[name] for name in ("ledgers", "objects")}
        return listed | {"in_use": in_use} | {str(k): v for k, v in classes.items()}

    def _places(self, paths: tuple[str, ...]) -> DataFrame:
        return self._place_rows([(path, None) for path in paths])

    def _place_rows(self, places: Sequence[tuple[str, str | None]]) -> DataFrame:
        rows = self._spark.createDataFrame(list(places), from_arrow_schema(a.PLACE))
        return rows.repartition(self._slices(len(places)))

    def _slices(self, rows: int) -> int:
        return max(1, min(rows, self._tasks))

    def _note(self, found: tuple[Problem, ...], kept: Kept) -> None:
        self._problems += found
        if kept.count(a.PATH):
            for row in join.problems(kept.rows).limit(_DRIVER_ROWS + 1).collect():
                self._problems.append((row[a.PATH], row[c.DETAIL]))


def shares(references: DataFrame) -> tuple[Share, ...]:
    """The namespaces with the most bytes in use."""
    kind = F.when(F.col(a.IN_BOOKKEEPER), str(LedgerType.LEDGER)).otherwise(str(LedgerType.OFFLOAD_LEDGER))
    grouped = references.where(F.col(c.LEDGER_ID).isNotNull()).groupBy(a.NAMESPACE, c.COMPONENT, kind.alias("kind"))
    largest = grouped.agg(F.count(F.lit(1)).alias("n"), F.sum(c.BYTES).alias("total")).orderBy(F.desc("total"))
    return tuple(
        Share(row[a.NAMESPACE], row[c.COMPONENT], row["kind"], row["n"], row["total"] or 0)
        for row in largest.limit(_SHARES).collect()
    )


def audit_policy(settings: Settings, options: AuditOptions) -> Policy:
    """The sweep's patience, except that the two looks are as far apart as this audit's pause."""
    return replace(policy_of(settings), absence_interval_ms=options.recheck_seconds * 1000)
