"""The driver's cache of references."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

from streaming.clock import Clock
from streaming.in_use.loader import InUseLoader
from udfs.records import Presence, Reference

# measured with tracemalloc (bench/sizes.py)
_ENTRY_OVERHEAD_BYTES = 600  # the key, and the object headers of a Reference
_CHECK_BYTES = 150  # a check, without the characters of its path
_OFFLOAD_BYTES = 200


@dataclass(slots=True)
class CacheCounts:
    """How many keys were looked up since the start, by result."""

    hits: int = 0  # answered from the cache
    misses: int = 0  # read for the first time
    refreshes: int = 0  # read again
    stale: int = 0  # found to be out of date by an executor


@dataclass(slots=True, kw_only=True)
class InUseCache:
    """References by key. Thread-safe."""

    loader: InUseLoader
    clock: Clock
    refresh_ms: int  # older references are read again
    max_bytes: int  # above this size the least recently used references are dropped
    counts: CacheCounts = field(default_factory=CacheCounts)
    _entries: OrderedDict[str, Reference] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def references(self, keys: Iterable[str]) -> dict[str, Reference]:
        """Return the references of `keys`; read those that are missing or old. Raises UnavailableError.

        The result omits keys that don't fit into the cache; the executors read those themselves.
        """
        with self._lock:
            distinct = list(dict.fromkeys(keys))
            # a cached reference is only a hint: the delete checks the owner's znode version, so an outdated reference
            # costs time, but can't delete anything that is in use
            oldest_ms = self.clock.now_ms() - self.refresh_ms
            due = [key for key in distinct if not self._is_fresh(key, oldest_ms)]
            self.counts.hits += len(distinct) - len(due)
            for key, reference in self.loader.load(due).items() if due else ():
                self._put(key, reference)
            return {key: self._touch(key) for key in distinct if key in self._entries}

    def forget(self, keys: Iterable[str]) -> None:
        """Drop keys that an executor found to be out of date."""
        with self._lock:
            for key in keys:
                if key in self._entries:
                    self.counts.stale += 1
                    self._drop(key)

    @property
    def size_bytes(self) -> int:
        """The estimated memory of all entries."""
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
        dropped = self._entries.pop(key, None)
        if dropped is not None:
            self._bytes -= estimated_bytes(dropped)


def estimated_bytes(reference: Reference) -> int:
    """Estimate the memory that a reference takes."""
    checks = sum(_CHECK_BYTES + len(path) for path, _version in reference.checks)
    ids = len(reference.in_use) + len(reference.given_up)
    return _ENTRY_OVERHEAD_BYTES + checks + 8 * ids + _OFFLOAD_BYTES * len(reference.offloads)
