"""The storage of the model's brokers and bookies: ledgers, znodes, and the references of each znode."""

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from streaming.adapters.memory.tree import parent_of
from tests.builders import custom_of, exists, metadata, put
from tests.world import ObservedTree, path_of
from udfs.formats.ledger_metadata import serialize_v3
from udfs.records import LedgerState, PendingDelete


@dataclass
class Ledger:
    """A ledger in BookKeeper."""

    request: PendingDelete  # the valid request for its deletion
    is_open: bool
    has_entries: bool = True


class Storage:
    """Metadata and ledgers."""

    def __init__(self, tree: ObservedTree) -> None:
        self.tree = tree
        self.ledgers: dict[int, Ledger] = {}
        self.leaked: list[int] = []
        self.on_leak: Callable[[int], None] = lambda _ledger_id: None
        self.written: dict[str, frozenset[int]] = {}  # the ledgers that each znode refers to, from its writer
        self._births: Counter[str] = Counter()
        self._next_id = 1

    def recover_open_ledgers(self) -> None:
        """A bookie dies: its ledgers are re-replicated, which fences and closes open ledgers."""
        for ledger_id in self.ledgers:
            self.close(ledger_id)

    def replicate(self, ledger_id: int) -> None:
        """A bookie's copy is replicated again: the ledger's metadata gets a new version."""
        if exists(self.tree, path_of(ledger_id)):
            self.tree.write(path_of(ledger_id), self._znode(ledger_id))

    def seen(self, path: str) -> int | None:
        """Return a znode's version for a later compare-and-set, or None if the znode is absent.

        The version of a znode that is deleted and created again starts at 0, as in ZooKeeper.
        """
        return self.tree.read(path).version if exists(self.tree, path) else None

    def births(self, path: str) -> int:
        """Return how often the znode was created."""
        return self._births[path]

    def cas(self, path: str, seen: int | None, data: bytes, ids: set[int]) -> bool:
        """Write if the znode has the version that was seen, even if the znode was created again."""
        if self.seen(path) != seen:
            return False
        self.write(path, data)
        self.written[path] = frozenset(ids)
        return True

    def create(self, path: str, data: bytes, ids: Sequence[int]) -> None:
        self.write(path, data)
        self.written[path] = frozenset(ids)

    def write(self, path: str, data: bytes) -> None:
        """Write, with missing ancestors, as Pulsar's metadata store does."""
        created = path
        while not exists(self.tree, created):
            self._births[created] += 1
            created = parent_of(created)
        put(self.tree, path, data)

    def remove(self, path: str) -> None:
        if not exists(self.tree, path):
            return
        for child in self.tree.children(path):
            self.remove(f"{path}/{child}")
        self.tree.remove(path)
        self.written.pop(path, None)

    def make(self, request_for: Callable[[int], PendingDelete], *, is_open: bool) -> int:
        ledger_id, self._next_id = self._next_id, self._next_id + 1
        self.ledgers[ledger_id] = Ledger(request_for(ledger_id), is_open)
        put(self.tree, path_of(ledger_id), self._znode(ledger_id))
        return ledger_id

    def close(self, ledger_id: int) -> None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and ledger.is_open:
            ledger.is_open = False
            if exists(self.tree, path_of(ledger_id)):
                self.tree.write(path_of(ledger_id), self._znode(ledger_id))

    def _znode(self, ledger_id: int) -> bytes:
        ledger = self.ledgers[ledger_id]
        state = LedgerState.OPEN if ledger.is_open else LedgerState.CLOSED
        complete = metadata(custom_of(ledger.request), state=state)
        return serialize_v3(complete if ledger.has_entries else replace(complete, length_bytes=0, last_entry_id=-1))

    def delete(self, ledger_id: int, *, lost: bool) -> None:
        if ledger_id < 0:
            return
        if lost:
            self.leak({ledger_id})
        elif exists(self.tree, path_of(ledger_id)):
            self.tree.remove(path_of(ledger_id))

    def leak(self, ledger_ids: Set[int]) -> None:
        """Leave these ledgers undeleted; OPEN ledgers stay OPEN."""
        for ledger_id in sorted(ledger_ids - {-1}):
            self.leaked.append(ledger_id)
            self.on_leak(ledger_id)
