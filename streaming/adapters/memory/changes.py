"""ChangeHints on a MemoryTree: tells of changes as a persistent recursive watch does, and loses them when told to."""

from collections.abc import Sequence

from streaming.adapters.memory.tree import MemoryTree
from streaming.ports import ChangedPaths


class MemoryChanges:
    """ChangeHints in memory. is_reachable False: ZooKeeper does not answer, and its watches are gone."""

    def __init__(self, tree: MemoryTree, roots: Sequence[str]) -> None:
        self._tree = tree
        self._roots = tuple(roots)
        self._paths: set[str] = set()
        self._is_set = False
        self.is_reachable = True
        tree.listeners.append(self._heard)

    def take(self) -> ChangedPaths:
        """Return what changed since the last call; sets the watches where there are none."""
        is_new = self.is_reachable and not self._is_set
        self._is_set = self.is_reachable
        paths, self._paths = self._paths, set()
        return ChangedPaths(frozenset(paths), has_gap=is_new, is_watching=self._is_set)

    def drop(self) -> None:
        """Lose the watches, as with a connection; the next take() sets them anew."""
        self._is_set = False

    def close(self) -> None:
        """Stop listening."""
        if self._heard in self._tree.listeners:
            self._tree.listeners.remove(self._heard)

    def _heard(self, path: str) -> None:
        is_below = any(path == root or path.startswith(f"{root}/") for root in self._roots)
        if self._is_set and self.is_reachable and is_below:
            self._paths.add(path)
