"""The Spark jobs of the walk: list ledgers and objects, read references, and read the metadata of unreferenced ledgers.

The audit calls them in the order that ledger_audit.py proves; the other modules have each job's work on one znode or
object.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.certificate import whole_errors
from streaming.audit.stages import PhaseTools
from streaming.audit.walk.bucket_listing import PREFIXES, ClaimObjectsTask, ListObjectsTask
from streaming.audit.walk.listing import ListTask, find_folders
from streaming.audit.walk.owner_listing import OwnersTask, find_namespaces
from streaming.audit.walk.reference_scan import ReferenceTask
from streaming.audit.walk.suspects import ClaimTask
from udfs import columns as c


@dataclass(frozen=True, slots=True)
class Walk:
    """The walk of an audit."""

    tools: PhaseTools
    buckets: tuple[str, ...]  # labels (columns.STORE) of the buckets that may be listed

    def ledgers_and_objects(self) -> tuple[DataFrame, DataFrame]:
        """List ledgers (audit_columns.LISTED) and objects as pairs (reference_join.pairs_of)."""
        # at the same time: both only have to be listed before the references are read
        with ThreadPoolExecutor(2) as pool:
            # so that each thread's Spark jobs carry its own phase's name
            ledgers, pairs = (pool.submit(inheritable_thread_target(phase)) for phase in (self._ledgers, self._pairs))
            return ledgers.result(), pairs.result()

    def references(self) -> DataFrame:
        """Read every reference of every topic and schema (columns.REFERENCE)."""
        tools, listed = self.tools, self.tools.completeness.listed
        with tools.phases.phase("Listing topics and schemas") as phase:
            namespaces = find_namespaces(tools.store)
            locations = tools.locations([(path, None) for path in namespaces.paths])
            owners = tools.stages.keep(
                "owners", locations.mapInArrow(OwnersTask(tools.settings), from_arrow_schema(a.LOCATION))
            )
            listed["owners"] = owners.count(a.PATH) - owners.count(c.DETAIL)
            phase.processed(listed["owners"], "topics and schemas")
        with tools.phases.phase("Reading references") as phase:
            task = ReferenceTask(tools.settings, tools.reads_per_second)
            spread = owners.rows.repartition(tools.tasks_of(listed["owners"]))
            read = tools.stages.keep("references", spread.mapInArrow(task, from_arrow_schema(a.REFERENCE)))
            tools.note(namespaces.problems, read)
            listed["references"] = read.count(c.LEDGER_ID)
            phase.processed(listed["references"], "references")
        return read.rows

    def suspects(self, compared: DataFrame) -> DataFrame:
        """Read the metadata of each ledger that no reference names (columns.SUSPECT): it names the owner."""
        tools, completeness = self.tools, self.tools.completeness
        with tools.phases.phase("Reading unreferenced ledgers") as phase:
            task = ClaimTask(tools.settings, tools.layout, tools.reads_per_second)
            ids = reference_join.unreferenced(compared)
            completeness.listed["unreferenced"] = ids.count()
            spread = ids.repartition(tools.tasks_of(completeness.listed["unreferenced"]))
            suspects = tools.stages.keep("suspects", spread.mapInArrow(task, from_arrow_schema(a.SUSPECT)))
            phase.processed(completeness.listed["unreferenced"], "ledgers")
            completeness.errors = whole_errors(completeness.listed, suspects.count(c.REFERENCE_KEY))
        return suspects.rows

    def suspect_objects(self, pairs: DataFrame, references: DataFrame) -> DataFrame:
        """Read the index of each pair of objects that no reference names (columns.SUSPECT): it names the owner."""
        tools = self.tools
        unreferenced = reference_join.unreferenced_pairs(pairs, references)
        if not tools.completeness.listed["objects"] or unreferenced.isEmpty():
            return tools.no_suspects()
        with tools.phases.phase("Reading unreferenced objects"):
            claimed = unreferenced.mapInArrow(ClaimObjectsTask(tools.settings), from_arrow_schema(a.SUSPECT))
            return tools.stages.keep("suspect-objects", claimed).rows

    def _ledgers(self) -> DataFrame:
        tools, listed = self.tools, self.tools.completeness.listed
        with tools.phases.phase("Listing ledgers") as phase:
            folders = find_folders(tools.store, tools.settings.zookeeper.ledgers_root, tools.layout)
            task = ListTask(tools.settings, tools.reads_per_second)
            locations = tools.locations([(path, None) for path in folders.paths])
            kept = tools.stages.keep("ledgers", locations.mapInArrow(task, from_arrow_schema(a.LISTED)))
            tools.note(folders.problems, kept)
            listed["ledgers"] = kept.count(c.LEDGER_ID)
            phase.processed(listed["ledgers"], "ledgers")
        return kept.rows

    def _pairs(self) -> DataFrame:
        tools, listed = self.tools, self.tools.completeness.listed
        schema = from_arrow_schema(a.OBJECT)
        if not self.buckets:
            return reference_join.pairs_of(tools.spark.createDataFrame([], schema))
        with tools.phases.phase("Listing objects") as phase:
            locations = tools.locations([(label, prefix) for label in self.buckets for prefix in PREFIXES])
            kept = tools.stages.keep("objects", locations.mapInArrow(ListObjectsTask(tools.settings), schema))
            tools.note((), kept)
            listed["objects"] = kept.count(c.UUID)
            phase.processed(listed["objects"], "objects")
        return tools.stages.keep("pairs", reference_join.pairs_of(kept.rows)).rows
