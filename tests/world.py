"""A cluster in memory for sweeps, and its observer, which sees every delete with its time and its conditions."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from streaming.adapters.memory.store import Faults, MemoryStore
from streaming.adapters.memory.tree import ANYONE, Identities, MemoryTree
from streaming.clock import ManualClock
from streaming.in_use.loader import InUseLoader
from streaming.ports import GuardedDelete, GuardResult, GuardStatus, Znode
from streaming.state.journal import JournalEntry
from streaming.sweep.jobs import Job, SweepRules, Swept
from streaming.sweep.ledgers import Sweeper
from tests.builders import DAY_MS, MINUTE_MS, NOW_MS, ROOT, custom_of, metadata, put
from udfs.formats.ledger_metadata import serialize_v3
from udfs.paths import Layout, ledger_path
from udfs.records import BrokerView, LedgerState, PendingDelete, Presence, Reference, Verdict
from udfs.verdicts.judge import Policy

EPOCH = "/ledger-reaper/epoch"
POLICY = Policy(min_age_ms=5 * MINUTE_MS, above_newest_quarantine_ms=DAY_MS, absence_interval_ms=10 * MINUTE_MS)


def path_of(ledger_id: int) -> str:
    return ledger_path(Layout.HIERARCHICAL, ROOT, ledger_id)


@dataclass(frozen=True, slots=True)
class Removal:
    """A ledger znode that a guarded delete removed, and the delete's batch."""

    path: str
    znode: Znode
    batch: GuardedDelete
    at_ms: int


class ObservedTree(MemoryTree):
    """Reports every guarded delete at once. Brokers delete by remove()."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.removals: list[Removal] = []
        self.on_removal: Callable[[Removal], None] = lambda _removal: None
        self.deaf = False

    def remove_guarded(self, batch: GuardedDelete, who: Identities = ANYONE) -> GuardResult:
        """Run the batch; a deaf tree returns DELETED without a delete, like the stores of T11 (docs/promises.md)."""
        with self.lock:
            if self.deaf:
                return GuardResult(GuardStatus.DELETED)
            before = {path: self._nodes[path].znode for path, _version in batch.deletes if path in self._nodes}
            result = super().remove_guarded(batch, who)
            if result.status is GuardStatus.DELETED:
                for path, znode in before.items():
                    removal = Removal(path, znode, batch, self.clock.now_ms())
                    self.removals.append(removal)
                    self.on_removal(removal)
            return result

    def fork(self) -> "ObservedTree":
        """Return a copy of the tree with its own clock."""
        with self.lock:
            other = ObservedTree(ManualClock(self.clock.now_ms()))
            other._nodes = {path: replace(node, children=set(node.children)) for path, node in self._nodes.items()}
            return other


class MemoryJournal:
    """A journal in memory; the store's Faults count and fail its writes."""

    def __init__(self, faults: Faults) -> None:
        self.entries: list[JournalEntry] = []
        self.faults = faults

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Store entries; the faults may raise UnavailableError."""
        self.faults.step("journal", [entry.path for entry in entries])
        self.faults.effect(lambda: self.entries.extend(entries))


class ToldBroker:
    """A broker with scripted answers; other topics do not exist."""

    def __init__(self) -> None:
        self.topics: dict[str, BrokerView] = {}
        self.schemas: dict[str, BrokerView] = {}
        self.layouts: dict[str, BrokerView] = {}  # what brokers read of a segment in its layout
        self.asked: list[str] = []
        self.listed: list[str] = []  # topics to look up in the list of their namespace, unless they are loaded

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        """Return the views in order."""
        self.asked += managed_ledgers
        self.listed += [name for name in managed_ledgers if name not in existing]
        unloaded = BrokerView(presence=Presence.PRESENT, is_loaded=False)
        absent = {
            name: unloaded if name in existing else BrokerView(presence=Presence.GONE) for name in managed_ledgers
        }
        return [self.topics.get(name, absent[name]) for name in managed_ledgers]

    def layout_views(self, segments: Sequence[str]) -> list[BrokerView]:
        """Return the scripted views in order; other segments are in no layout."""
        return [self.layouts.get(name, BrokerView(presence=Presence.GONE)) for name in segments]

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Return the views in order."""
        self.asked += schema_ids
        return [self.schemas.get(name, BrokerView(presence=Presence.GONE)) for name in schema_ids]

    def require_answers(self) -> int:
        """Return 1: one broker answers."""
        return 1


def confirmed(asked: Sequence[tuple[PendingDelete, Reference]]) -> list[Verdict | None]:
    """Confirm every upload, as if tiered storage had both objects of each."""
    return [None] * len(asked)


@dataclass
class Bench:
    """A cluster with one instance of the service."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS - 30 * DAY_MS))
    policy: Policy = POLICY

    def __post_init__(self) -> None:
        self.tree = ObservedTree(self.clock)
        self.store = MemoryStore(self.tree)
        self.broker = ToldBroker()
        self.journal = MemoryJournal(self.store.faults)
        put(self.tree, EPOCH)
        put(self.tree, ROOT)
        self.epoch_version = self.tree.read(EPOCH).version

    def ledger(
        self, request: PendingDelete, *, state: LedgerState = LedgerState.CLOSED, data: bytes | None = None
    ) -> str:
        """Create the requested ledger; return its path."""
        path = path_of(request.ledger_id)
        put(self.tree, path, serialize_v3(metadata(custom_of(request), state=state)) if data is None else data)
        return path

    def owner(self, path: str, data: bytes) -> None:
        """Write an owner's znode."""
        put(self.tree, path, data)

    def age(self, milliseconds: int = 30 * DAY_MS) -> None:
        """Let time pass; by default until all ledgers are old enough."""
        self.clock.advance(milliseconds)

    def loader(self, *, ask_broker: bool = True) -> InUseLoader:
        return InUseLoader(self.store, self.broker if ask_broker else None, self.clock)

    def rules(self) -> SweepRules:
        return SweepRules(Layout.HIERARCHICAL, ROOT, (EPOCH, self.epoch_version), self.policy)

    def sweeper(self) -> Sweeper:
        return Sweeper(self.store, self.loader(), self.journal, self.clock, self.rules(), confirm=confirmed)

    def sweep(self, *requests: PendingDelete, cached: dict[str, Reference] | None = None) -> list[Swept]:
        """Sweep new requests."""
        return self.sweeper().sweep([Job(request) for request in requests], cached or {})

    def left(self) -> set[str]:
        """Return the paths of all existing ledgers."""
        return {path for path in self.tree.paths() if "/L" in path}
