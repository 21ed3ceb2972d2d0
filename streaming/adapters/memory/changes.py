"""ChangeHints on a MemoryTree: reports changes as a persistent recursive watch does; a test can end the watch."""

from collections.abc import Sequence

from streaming.adapters.memory.tree import MemoryTree
from streaming.ports import ChangedPaths


class MemoryChanges:
    """ChangeHints in memory."""

    def __init__(self, tree: MemoryTree, roots: Sequence[str]) -> None:
        self._tree = tree
        self._roots = tuple(roots)
        self._paths: set[str] = set()
        self._is_set = False
        self.is_reachable = True  # False: ZooKeeper does not answer, and its watches have ended
        tree.listeners.append(self._on_event)

    def take(self) -> ChangedPaths:
        """Return the paths that changed since the last call; set missing watches."""
        is_new = self.is_reachable and not self._is_set
        self._is_set = self.is_reachable
        paths, self._paths = self._paths, set()
        return ChangedPaths(frozenset(paths), has_gap=is_new, is_watching=self._is_set)

    def drop(self) -> None:
        """Lose the watches, as after a lost connection; the next take() sets them again."""
        self._is_set = False

    def close(self) -> None:
        """Stop listening."""
        if self._on_event in self._tree.listeners:
            self._tree.listeners.remove(self._on_event)

    def _on_event(self, path: str) -> None:
        is_below = any(path == root or path.startswith(f"{root}/") for root in self._roots)
        if self._is_set and self.is_reachable and is_below:
            self._paths.add(path)
