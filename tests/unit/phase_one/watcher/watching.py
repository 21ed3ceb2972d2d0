"""A cluster in memory with a watcher that may crash at any of its effects, and is then started again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from streaming.adapters.memory.changes import MemoryChanges
from streaming.adapters.memory.store import MemoryBroker, MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.audit.walk.suspects import LedgerReader
from streaming.clock import ManualClock
from streaming.errors import UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.phase_one.watcher.marks.signs import SignCollector
from streaming.phase_one.watcher.request_outbox import Knows, OlderStateError, RequestOutbox, Send
from streaming.phase_one.watcher.scan import ZnodeScan
from streaming.phase_one.watcher.unlisted import UnlistedLedgers
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.phase_one.watcher.watcher import Parts, StillNames, Watcher
from streaming.prometheus.registry import Registry
from streaming.state.watched import Watched
from streaming.sweep.pace import Pace
from tests.builders import NOW_MS, ROOT, TOPIC, list_znode, put
from udfs.formats.internal_stats import Position
from udfs.paths import BROKERS, MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, Layout, ledger_path, managed_ledger_path
from udfs.records import PendingDelete
from udfs.requests.request_format import decode

DELAY_MS, PATIENCE_MS, POLL_S = 60_000, 3_600_000, 60.0
AT = managed_ledger_path(TOPIC)


class CrashedError(BaseException):
    """The process died here."""


@dataclass
class Crash:
    """Crashes at one of the counted effects: before it, or right after it."""

    at: int = -1
    is_after: bool = False
    effects: int = 0

    def effect(self, do: object) -> object:
        self.effects += 1
        assert callable(do)
        if self.effects == self.at and not self.is_after:
            raise CrashedError
        done = do()
        if self.effects == self.at:
            raise CrashedError
        return done


@dataclass
class MemoryPublication:
    """A request topic of two partitions. Each stored request is an effect."""

    crash: Crash
    topic: str = "persistent://pulsar/ledger-deletion/w"
    stored: dict[str, list[tuple[str, Send]]] = field(default_factory=dict)
    is_away: bool = False
    looked_up: int = 0

    def __post_init__(self) -> None:
        self.stored = self.stored or {f"{self.topic}-partition-{number}": [] for number in range(2)}

    def ends(self) -> dict[str, Position]:
        if self.is_away:
            raise UnavailableError("away")
        return {partition: (1, len(some) - 1) for partition, some in self.stored.items()}

    def send(self, partition: str, sender: str, sends: Sequence[Send], after: Position | None, knows: Knows) -> int:
        if self.is_away:
            raise UnavailableError("away")
        last = -1
        if after is not None:
            self.looked_up += 1
            behind = [each for of, each in self.stored[partition][after[1] + 1 :] if of == sender]
            if not all(knows(each.number, each.payload) for each in behind):
                raise OlderStateError(partition)
            last = max((each.number for each in behind), default=-1)
        left = [each for each in sends if each.number > last]
        for each in left:
            self.crash.effect(lambda each=each: self.stored[partition].append((sender, each)))
        return len(left)

    @property
    def requests(self) -> list[PendingDelete]:
        found = [decode(each.payload) for some in self.stored.values() for _sender, each in some]
        assert all(isinstance(each, PendingDelete) for each in found)
        return [each for each in found if isinstance(each, PendingDelete)]

    @property
    def ids(self) -> list[int]:
        return sorted(each.ledger_id for each in self.requests)


class World:
    """A tree with ledgers and topics, and a watcher that can be restarted on the same state."""

    def __init__(self, state: Path) -> None:
        self.state = str(state)
        self.clock = ManualClock(NOW_MS)
        self.tree = MemoryTree(self.clock)
        self.store = MemoryStore(self.tree)
        self.hints = MemoryChanges(self.tree, (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT))
        self.broker = MemoryBroker()
        self.crash = Crash()
        self.topic = MemoryPublication(self.crash)
        self.stop = Event()
        self.signs: SignCollector | None = None
        for folder in (ROOT, MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, BROKERS):
            put(self.tree, folder)

    def list(self, *ledgers: int, at: str = AT) -> None:
        """Write a topic's list."""
        put(self.tree, at, list_znode(*ledgers))

    def ledger(self, ledger_id: int, data: bytes = b"") -> None:
        put(self.tree, ledger_path(Layout.HIERARCHICAL, ROOT, ledger_id), data)

    def start(self, has_stopped: Callable[[], bool] | None = None) -> Watcher:
        """Start a watcher, as a process does."""
        self.hints.drop()
        watched = Watched(self.state)
        named = StillNames(watched)
        pace = Pace(0)
        reader = LedgerReader(self.store, Layout.HIERARCHICAL, ROOT, pace)
        loader = InUseLoader(self.store, self.broker, self.clock)
        self.parts = Parts(
            watched=watched,
            scan=ZnodeScan(self.store, pace, has_stopped or self.stop.is_set),
            hints=self.hints,
            unlisted=UnlistedLedgers(self.store, reader, loader, named, PATIENCE_MS),
            outbox=RequestOutbox(watched, self.topic, named, DELAY_MS),
            metrics=WatchMetrics(Registry()),
            clock=self.clock,
            signs=self.signs,
        )
        return Watcher(self.parts, POLL_S, self.stop, monotonic=lambda: self.clock.now_ms() / 1000)

    def turns(self, watcher: Watcher, seconds: int) -> None:
        """Let this many seconds pass, with a turn every ten seconds."""
        for _ in range(seconds // 10):
            watcher.turn()
            self.clock.advance(10_000)
