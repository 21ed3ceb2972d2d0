"""Reads every znode that refers to ledgers, in batches, and the znodes that a hint names."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from streaming.audit.walk.owner_listing import find_namespaces
from streaming.errors import StopRequestedError
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.sweep.jobs import Limiter
from udfs.phase_one.vanished_names import ZnodeKind, kind_of

Node = Znode | Unreadable | None
_OWNERS_PER_READ = 500
MOST_UNCLEAR = 1_000  # bounded, because a tenant may create any number


class ZnodeScan:
    """Reads from a store, no faster than its pace."""

    def __init__(self, store: MetadataStore, pace: Limiter, has_stopped: Callable[[], bool]) -> None:
        """Prepare to read; has_stopped() is called between two reads."""
        self._store = store
        self._pace = pace
        self._has_stopped = has_stopped
        self.unlisted: list[str] = []  # paths that the last complete scan could not list
        # Znodes of the last complete scan whose paths leave their kind open, for example of a topic in a V1 namespace
        # with the name `persistent`.
        self.unclear: list[str] = []

    def at(self, paths: Iterable[str]) -> Iterator[dict[str, Node]]:
        """Read the topics, cursors and schemas among the paths. Raises UnavailableError, StopRequestedError."""
        for batch in _batches(path for path in paths if kind_of(path) is not None):
            yield self._read(batch)

    def everything(self, known: Collection[str]) -> Iterator[dict[str, Node]]:
        """Read all listed znodes, and after them the known paths that were not listed. Raises like at()."""
        self.unlisted, self.unclear = [], []
        listed: set[str] = set()
        for nodes in self._listed():
            listed.update(nodes)
            yield nodes
        # A znode counts as gone only if ZooKeeper, asked for its path, answers that it does not exist: a listing
        # without the znode may be older than the znode, and a failed listing proves nothing.
        for paths in _batches(path for path in list(known) if path not in listed):
            yield self._read(paths)

    def _listed(self) -> Iterator[dict[str, Node]]:
        namespaces = find_namespaces(self._store)
        self.unlisted += [path for path, _why in namespaces.problems]
        for namespace in namespaces.paths:  # singly, because a namespace may have a million topics
            for owners in _batches(f"{namespace}/{name}" for name in self._children([namespace])[0]):
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


def _batches(paths: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(paths)
    while batch := list(islice(remaining, _OWNERS_PER_READ)):
        yield batch
