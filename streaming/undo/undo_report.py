"""Records of an undo: its selection and its results, for ledgers and for objects."""

from dataclasses import dataclass, field
from enum import StrEnum

NOT_CHECKED = "not known whether bookies still have its entries"  # the bookies and their faults follow
NO_ENTRIES_NAMED = "its metadata name no last entry (the ledger was OPEN, or is empty), so no bookie was asked"
NOT_READ = "and no bookie that can read control entries answered over HTTP"
NO_BOOKIE_READS = (
    "its metadata are back, but no bookie reads its first or its last entry for clients: either both are gone, or "
    "these bookies can't reach the one that has them"
)
STORED = "bookies still store its first and its last entry, and drop them at their next garbage collection"
GONE = "all bookies in its metadata have dropped its entries; nothing was put back"
HALF_STORED = "bookies still store only one of its first and its last entry: some entries are lost"
PARTLY_STORED = "bookies still store some of its entries, but neither its first nor its last: many entries are lost"


class Undone(StrEnum):
    """The outcome for one ledger's metadata."""

    PUT_BACK = "PUT_BACK"  # and read back: same bytes, same ACL; the detail describes the state of the entries
    TOO_LATE = "TOO_LATE"  # no bookie has its entries any more: nothing was put back
    UNREADABLE = "UNREADABLE"  # the metadata is back; no client can read the entries now, as the detail describes
    WOULD_PUT_BACK = "WOULD_PUT_BACK"  # dry run
    EXISTS = "EXISTS"  # never deleted, put back already, or created again: we leave it unchanged
    FAILED = "FAILED"  # the detail is the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """The result for one ledger or object."""

    ledger_id: int
    path: str
    owner: str
    deleted_ms: int  # when the journal was written, just before the delete
    status: Undone
    last_entry_id: int = -1
    detail: str = ""
    has_entries: bool | None = None  # whether bookies stored its first and last entry before the undo; None: unknown


@dataclass(slots=True)
class UndoReport:
    """The results of a run."""

    results: list[UndoResult] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)  # ledgers that a waiting request would delete again

    def count(self, status: Undone) -> int:
        """Count the results with this status."""
        return sum(1 for result in self.results if result.status is status)


@dataclass(frozen=True, slots=True)
class UndoSelection:
    """Selects the deletes that match every field that is set."""

    ledger_id: int | None = None
    topic: str = ""  # any form of its name; a partitioned topic selects all its partitions
    since_ms: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no field is set."""
        return self == UndoSelection()
