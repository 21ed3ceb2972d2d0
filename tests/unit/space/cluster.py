"""A small cluster in memory, whose bytes the test decides."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streaming.adapters.memory.bookies import MemoryBookies
from streaming.adapters.memory.store import MemoryBroker, MemoryStore
from streaming.adapters.memory.trims import MemoryRetentionPolicies
from streaming.clock import ManualClock
from streaming.space.reading.measure import Scope, Sources, measure
from streaming.sweep.pace import Pace
from tests.builders import DAY_MS, HOUR_MS, NOW_MS, TOPIC, data_custom, list_znode, put
from udfs.formats.internal_stats import InternalStats, Position
from udfs.formats.ledger_metadata import serialize_v3
from udfs.formats.managed_ledger import AcknowledgedRange, LedgerInfo, ManagedCursorInfo, serialize_cursor
from udfs.paths import Layout, ledger_path, managed_ledger_path, topic_of
from udfs.records import LedgerMetadata, LedgerState
from udfs.space.causes import Cause
from udfs.space.space_report import Share, SpaceReport
from udfs.space.view import Filters

BOOKIES = ("bookie-0:3181", "bookie-1:3181")
ENTRY_BYTES = 40  # of a record beside its payload
OLD_MS = NOW_MS - 30 * DAY_MS


class Cluster:
    """The services that `space` reads."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.store = MemoryStore()
        self.broker = MemoryBroker()
        self.policies = MemoryRetentionPolicies()
        self.bookies = MemoryBookies()
        self.bookies.addresses = dict.fromkeys(BOOKIES, "")
        self.length: dict[int, int] = {}
        self.tree = self.store.tree
        put(self.tree, "/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
        put(self.tree, "/managed-ledgers")
        put(self.tree, "/schemas")
        put(self.tree, "/admin/clusters/standalone")

    def ledger(
        self,
        ledger_id: int,
        length: int = 1_000,
        *,
        custom: Mapping[str, bytes] | None = None,
        state: LedgerState = LedgerState.CLOSED,
        bookies: Sequence[str] = BOOKIES,
        entries: int = 10,
    ) -> None:
        """Create a ledger."""
        is_closed = state is LedgerState.CLOSED
        metadata = LedgerMetadata(
            state=state,
            length_bytes=length if is_closed else 0,
            last_entry_id=entries - 1 if is_closed else -1,
            ctime_ms=OLD_MS,
            custom_metadata=data_custom() if custom is None else custom,
        )
        put(self.tree, path_of(ledger_id), serialize_v3(metadata, bookies=bookies))
        self._age(path_of(ledger_id))
        self.length[ledger_id] = length if is_closed else 0

    def _age(self, path: str) -> None:
        node = self.tree._nodes[path]
        node.znode = replace(node.znode, ctime_ms=OLD_MS, mtime_ms=OLD_MS)

    def topic(self, *ledgers: int | LedgerInfo, name: str = TOPIC, missing: Sequence[int] = ()) -> None:
        """Create a topic's list; BookKeeper gets the ledgers that are given by their id."""
        infos = [info(each) if isinstance(each, int) else each for each in ledgers]
        for each in ledgers:
            if isinstance(each, int) and each not in missing:
                self.ledger(each, custom=data_custom(name))
        put(self.tree, managed_ledger_path(name), list_znode(*infos))

    def cursor(
        self,
        cursor: str,
        position: Position,
        *,
        name: str = TOPIC,
        ledger: int = -1,
        acknowledged: Sequence[AcknowledgedRange] = (),
        properties: Mapping[str, int] | None = None,
        cursor_properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a cursor; without a ledger, its znode is exact."""
        znode = ManagedCursorInfo(
            cursors_ledger_id=ledger,
            mark_delete_ledger_id=position[0],
            mark_delete_entry_id=position[1],
            last_active_ms=OLD_MS,
            properties=properties or {},
            cursor_properties=cursor_properties or {},
        )
        put(self.tree, f"{managed_ledger_path(name)}/{cursor}", serialize_cursor(znode, acknowledged=acknowledged))

    def load(
        self, cursors: Mapping[str, Position], *, name: str = TOPIC, ledgers: Sequence[int] = (), size: int = 0
    ) -> InternalStats:
        """Let a broker have a topic loaded; the last of its ledgers has this size."""
        stats = InternalStats(
            ledgers=tuple((each, 10) for each in ledgers),
            cursors=cursors,
            pending_adds=0,
            sizes={each: size if each == ledgers[-1] else 1_000 for each in ledgers},
        )
        self.broker.stats[name] = stats
        return stats

    def measure(self, *, asks: bool = True, bookies: Sequence[str] = (), **filters: str) -> SpaceReport:
        """Measure the cluster."""
        sources = Sources(
            store=self.store,
            bookies=self.bookies,
            stats=self.broker if asks else None,
            policies=self.policies if asks else None,
            clock=self.clock,
        )
        wanted = Scope(ledgers_root="/ledgers", min_age_ms=HOUR_MS, bookies=bookies, filters=Filters(**filters))
        return measure(sources, wanted, Pace(0))


def info(ledger_id: int, *, size: int = 1_000, closed_ms: int = OLD_MS) -> LedgerInfo:
    """Return an entry of a list as a broker writes it when it closes the ledger."""
    return LedgerInfo(ledger_id=ledger_id, entries=10, size_bytes=size, timestamp_ms=closed_ms)


def path_of(ledger_id: int) -> str:
    """Return the path of a ledger's znode."""
    return ledger_path(Layout.HIERARCHICAL, "/ledgers", ledger_id)


def bytes_by(report: SpaceReport, topic: str = TOPIC) -> dict[Cause, int]:
    """Return the bytes of one copy by cause, of one topic."""
    sums: dict[Cause, int] = {}
    for share in report.shares:
        if share.topic == topic_of(topic):
            sums[share.cause] = sums.get(share.cause, 0) + share.one_copy
    return sums


def share_of(report: SpaceReport, cause: Cause) -> Share:
    """Return the only share with a cause."""
    (share,) = [share for share in report.shares if share.cause is cause]
    return share


def stored_once(report: SpaceReport) -> int:
    """Return the bytes of one copy of everything that BookKeeper stores."""
    return sum(share.one_copy for share in report.shares if share.cause not in (Cause.MISSING, Cause.TIERED))
