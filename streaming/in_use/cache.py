"""The driver's cache of references: what each owner refers to, kept for a while.

A cached reference is only a hint: the delete checks the owner's znode version (streaming.sweep.ledgers). So an old one
costs time, but never deletes anything that is in use.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

from streaming.clock import Clock
from streaming.in_use.loader import InUseLoader
from udfs.records import Presence, Reference

# Measured with tracemalloc (bench/sizes.py): key and object headers of a Reference; a check, beside its path's letters.
_ENTRY_OVERHEAD_BYTES = 600
_CHECK_BYTES = 150
_OFFLOAD_BYTES = 200


@dataclass(slots=True)
class CacheCounts:
    """How many keys were, since the start, answered from the cache, read the first time, read again, found stale."""

    hits: int = 0
    misses: int = 0
    refreshes: int = 0
    stale: int = 0


@dataclass(slots=True)
class InUseCache:
    """References by key, read again when older than refresh_ms; above max_bytes the least recently used are dropped."""

    loader: InUseLoader
    clock: Clock
    refresh_ms: int
    max_bytes: int
    counts: CacheCounts = field(default_factory=CacheCounts)
    _entries: OrderedDict[str, Reference] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def references(self, keys: Iterable[str]) -> dict[str, Reference]:
        """Return the references of `keys`; read those that are missing or old. Raises UnavailableError.

        Keys that don't fit into the cache are left out: the executors read those themselves.
        """
        with self._lock:
            wanted = list(dict.fromkeys(keys))
            oldest_ms = self.clock.now_ms() - self.refresh_ms
            due = [key for key in wanted if not self._is_fresh(key, oldest_ms)]
            self.counts.hits += len(wanted) - len(due)
            for key, reference in self.loader.load(due).items() if due else ():
                self._put(key, reference)
            return {key: self._touch(key) for key in wanted if key in self._entries}

    def forget(self, keys: Iterable[str]) -> None:
        """Drop keys that an executor found to be out of date."""
        with self._lock:
            for key in keys:
                if key in self._entries:
                    self.counts.stale += 1
                    self._drop(key)

    @property
    def size_bytes(self) -> int:
        """Estimated memory of all entries."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def _is_fresh(self, key: str, oldest_ms: int) -> bool:
        entry = self._entries.get(key)
        if entry is None:
            self.counts.misses += 1
            return False
        if entry.read_at_ms < oldest_ms or entry.presence is not Presence.PRESENT:
            self.counts.refreshes += 1
            return False
        return True

    def _put(self, key: str, reference: Reference) -> None:
        self._drop(key)
        self._entries[key] = reference
        self._bytes += estimated_bytes(reference)
        while self._bytes > self.max_bytes and self._entries:
            self._drop(next(iter(self._entries)))

    def _touch(self, key: str) -> Reference:
        self._entries.move_to_end(key)
        return self._entries[key]

    def _drop(self, key: str) -> None:
        gone = self._entries.pop(key, None)
        if gone is not None:
            self._bytes -= estimated_bytes(gone)


def estimated_bytes(reference: Reference) -> int:
    """What a reference takes in memory, about."""
    checks = sum(_CHECK_BYTES + len(path) for path, _version in reference.checks)
    ids = len(reference.in_use) + len(reference.given_up)
    return _ENTRY_OVERHEAD_BYTES + checks + 8 * ids + _OFFLOAD_BYTES * len(reference.offloads)
