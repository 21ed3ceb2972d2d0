"""The phases of the walk: list ledgers and objects, read references, and read the metadata of unreferenced ledgers.

ledger_audit.py calls them, and proves that their order is safe. The other modules process single znodes and objects.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.certificate import whole_errors
from streaming.audit.stages import PhaseTools
from streaming.audit.tables import Rows
from streaming.audit.walk.bucket_listing import PREFIXES, ClaimObjectsTask, ListObjectsTask
from streaming.audit.walk.listing import ListTask, find_folders
from streaming.audit.walk.owner_listing import OwnersTask, find_namespaces
from streaming.audit.walk.reference_scan import ReferenceTask
from streaming.audit.walk.segments import unnamed_segments
from streaming.audit.walk.suspects import ClaimTask
from udfs import columns as c

# the rows that a process takes at once: enough for a bulk read, and few enough that all processes end together
_FOLDERS_AT_ONCE = 64
_OWNERS_AT_ONCE = 500
_LEDGERS_AT_ONCE = 5_000
_OBJECTS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Walk:
    """The walk of an audit."""

    tools: PhaseTools
    buckets: tuple[str, ...]  # labels (audit_columns.STORE) of the buckets that may be listed

    def ledgers_and_objects(self) -> tuple[Rows, Rows]:
        """List ledgers (audit_columns.LISTED) and objects as pairs (reference_join.pairs_of)."""
        # at the same time: both only have to be listed before the references are read
        with ThreadPoolExecutor(2) as pool:
            ledgers, pairs = pool.submit(self._ledgers), pool.submit(self._pairs)
            return ledgers.result(), pairs.result()

    def references(self) -> Rows:
        """Read every reference of every topic and schema (audit_columns.REFERENCE)."""
        tools, listed = self.tools, self.tools.completeness.listed
        with tools.phases.phase("Listing topics and schemas") as phase:
            namespaces = find_namespaces(tools.store)
            locations = tools.locations([(path, None) for path in namespaces.paths])
            owners = tools.run(phase, OwnersTask(tools.settings), locations, a.LOCATION, at_once=1)
            listed["owners"] = owners.count(a.PATH) - owners.count(c.DETAIL)
            phase.processed(listed["owners"], "topics and schemas")
        with tools.phases.phase("Reading references") as phase:
            task = ReferenceTask(tools.settings, tools.options.reads_per_second)
            read = tools.run(phase, task, owners, a.REFERENCE, at_once=_OWNERS_AT_ONCE)
            tools.note(namespaces.problems, read)
            listed["references"] = read.count(c.LEDGER_ID)
            phase.processed(listed["references"], "references")
        return read

    def suspects(self, compared: Rows) -> Rows:
        """Read the metadata, which names the owner, of each ledger that no reference names (audit_columns.SUSPECT)."""
        tools, completeness = self.tools, self.tools.completeness
        with tools.phases.phase("Reading unreferenced ledgers") as phase:
            task = ClaimTask(tools.settings, tools.layout, tools.options.reads_per_second)
            ids = reference_join.unreferenced(compared)
            suspects = tools.run(phase, task, ids, a.SUSPECT, at_once=_LEDGERS_AT_ONCE)
            phase.processed(completeness.listed["unreferenced"], "ledgers")
            completeness.errors = whole_errors(completeness.listed, suspects.count(c.REFERENCE_KEY))
        return suspects

    def unnamed_segments(self, references: Rows) -> Rows:
        """Return the references of segments that no layout names (audit_columns.SUSPECT); the checks decide."""
        tools = self.tools
        names = [row[a.MANAGED_LEDGER] for row in reference_join.segments(references).fetched()]
        if not names:
            return tools.no_suspects()
        with tools.phases.phase("Reading layouts of scalable topics") as phase:
            unnamed = unnamed_segments(tools.store, names)
            phase.processed(len(names), "segments")
        return reference_join.of_unnamed_segments(references, unnamed) if unnamed else tools.no_suspects()

    def suspect_objects(self, pairs: Rows, references: Rows) -> Rows:
        """Read the index, which names the owner, of each unreferenced pair of objects (audit_columns.SUSPECT)."""
        tools = self.tools
        unreferenced = tools.tables.keep(reference_join.unreferenced_pairs(pairs, references))
        if not unreferenced.count():
            return tools.no_suspects()
        with tools.phases.phase("Reading unreferenced objects") as phase:
            task = ClaimObjectsTask(tools.settings)
            return tools.run(phase, task, unreferenced, a.SUSPECT, at_once=_OBJECTS_AT_ONCE)

    def _ledgers(self) -> Rows:
        tools, listed = self.tools, self.tools.completeness.listed
        with tools.phases.phase("Listing ledgers") as phase:
            folders = find_folders(tools.store, tools.settings.zookeeper.ledgers_root, tools.layout)
            task = ListTask(tools.settings, tools.options.reads_per_second)
            locations = tools.locations([(path, None) for path in folders.paths])
            ledgers = tools.run(phase, task, locations, a.LISTED, at_once=_FOLDERS_AT_ONCE)
            tools.note(folders.problems, ledgers)
            listed["ledgers"] = ledgers.count(c.LEDGER_ID)
            phase.processed(listed["ledgers"], "ledgers")
        return ledgers

    def _pairs(self) -> Rows:
        tools, listed = self.tools, self.tools.completeness.listed
        if not self.buckets:
            return tools.tables.keep(reference_join.pairs_of(tools.tables.of([], a.OBJECT)))
        with tools.phases.phase("Listing objects") as phase:
            locations = tools.locations([(label, prefix) for label in self.buckets for prefix in PREFIXES])
            objects = tools.run(phase, ListObjectsTask(tools.settings), locations, a.OBJECT, at_once=1)
            tools.note((), objects)
            listed["objects"] = objects.count(c.UUID)
            phase.processed(listed["objects"], "objects")
        return tools.tables.keep(reference_join.pairs_of(objects))
