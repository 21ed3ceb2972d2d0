"""Reads every znode that refers to ledgers, in parts, and the znodes that a hint names.

A znode counts as gone only where ZooKeeper, asked for that very path, says that it is not there: a listing that lacks
it may be older than the znode, and one that could not be read says nothing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from streaming.audit.walk.owners import find_namespaces
from streaming.errors import StopRequestedError
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.sweep.jobs import Limiter
from udfs.phase_one.watched import ZnodeKind, kind_of

Node = Znode | Unreadable | None
_OWNERS_PER_READ = 500
MOST_UNCLEAR = 1_000  # a tenant may have any number


class ZnodeLook:
    """Reads through a store, no faster than its pace. has_stopped: asked between two reads.

    unlisted: what could not be listed in the last whole look. unclear: what that look found at paths that do not tell
    its kind, as that of a topic in a V1 namespace called `persistent`.
    """

    def __init__(self, store: MetadataStore, pace: Limiter, has_stopped: Callable[[], bool]) -> None:
        self._store = store
        self._pace = pace
        self._has_stopped = has_stopped
        self.unlisted: list[str] = []
        self.unclear: list[str] = []

    def at(self, paths: Iterable[str]) -> Iterator[dict[str, Node]]:
        """Read those of the paths that are topics, cursors or schemas. Raises UnavailableError, StopRequestedError."""
        for part in _parts(path for path in paths if kind_of(path) is not None):
            yield self._read(part)

    def everything(self, known: Collection[str]) -> Iterator[dict[str, Node]]:
        """Read all that there is, and the paths that are known and were not listed. Raises as at()."""
        self.unlisted, self.unclear = [], []
        seen: set[str] = set()
        for part in self._listed():
            seen.update(part)
            yield part
        for paths in _parts(path for path in list(known) if path not in seen):
            yield self._read(paths)

    def _listed(self) -> Iterator[dict[str, Node]]:
        namespaces = find_namespaces(self._store)
        self.unlisted += [path for path, _why in namespaces.problems]
        for namespace in namespaces.paths:  # one at a time, because one may hold a million topics
            for owners in _parts(f"{namespace}/{name}" for name in self._children([namespace])[0]):
                yield from self._with_cursors(owners)

    def _with_cursors(self, owners: Sequence[str]) -> Iterator[dict[str, Node]]:
        yield from self.at(self._clear(owners))
        topics = [path for path in owners if kind_of(path) is ZnodeKind.TOPIC]
        names = zip(topics, self._children(topics), strict=True)
        yield from self.at(self._clear(f"{topic}/{cursor}" for topic, cursors in names for cursor in cursors))

    def _clear(self, listed: Iterable[str]) -> Iterator[str]:
        for path in listed:
            if kind_of(path) is not None:
                yield path
            elif len(self.unclear) < MOST_UNCLEAR:
                self.unclear.append(path)

    def _children(self, paths: Sequence[str]) -> list[list[str]]:
        if not paths:
            return []
        self._wait(len(paths))
        listed = self._store.children_many(paths)
        self._pace.done()
        self.unlisted += [path for path, names in zip(paths, listed, strict=True) if isinstance(names, Unreadable)]
        return [names if isinstance(names, list) else [] for names in listed]

    def _read(self, paths: Sequence[str]) -> dict[str, Node]:
        self._wait(len(paths))
        nodes = self._store.read_many(paths)
        self._pace.done()
        return dict(zip(paths, nodes, strict=True))

    def _wait(self, reads: int) -> None:
        if self._has_stopped():
            raise StopRequestedError
        self._pace.wait_for(reads)


def _parts(paths: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(paths)
    while part := list(islice(rest, _OWNERS_PER_READ)):
        yield part
