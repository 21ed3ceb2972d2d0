"""Reads the owners of ledgers from ZooKeeper, batch by batch: topics with their cursors, and schemas."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.space.reading.unread import Unread
from streaming.sweep.pace import Pace
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT
from udfs.units import MIB

CHANGE_EVENTS = "__change_events"
_DOMAIN = "/persistent"
_NAMESPACES_PER_READ = 32
_FIRST_AT_ONCE, _MOST_AT_ONCE = 64, 1_000  # owners of a batch
_AIM_BYTES = 16 * MIB  # of znodes in a batch; a topic's list may have megabytes

Node = Znode | Unreadable


@dataclass(frozen=True, slots=True)
class TopicZnodes:
    """A topic's list, and its cursors by encoded name."""

    path: str
    listed: Node
    cursors: dict[str, Node] | Unreadable


@dataclass(slots=True)
class OwnerBatch:
    """Owners that were read together."""

    topics: list[TopicZnodes] = field(default_factory=list)
    schemas: list[tuple[str, Node]] = field(default_factory=list)


class OwnerReading:
    """Reads owners. `change_events` has the topics named __change_events of the namespaces that were listed so far."""

    def __init__(self, store: MetadataStore, pace: Pace) -> None:
        self._store, self._pace = store, pace
        self.change_events: dict[str, list[str]] = {}  # tenant/ns -> managed ledgers

    def batches(
        self, folders: Sequence[str], unread: Unread, includes: Callable[[str], bool] = lambda _path: True
    ) -> Iterator[OwnerBatch]:
        """Read the owners in folders (`find_namespaces`) whose paths `includes` returns True for.

        Raises UnavailableError.
        """
        waiting: list[str] = []
        size = _FIRST_AT_ONCE
        for start in range(0, len(folders), _NAMESPACES_PER_READ):
            listed = self._listed(folders[start : start + _NAMESPACES_PER_READ], unread)
            waiting += filter(includes, listed)
            is_last = start + _NAMESPACES_PER_READ >= len(folders)
            while len(waiting) >= size or (waiting and is_last):
                paths, waiting = waiting[:size], waiting[size:]
                batch, read_bytes = self._batch(paths)
                yield batch
                size = max(1, min(2 * size, _AIM_BYTES * len(paths) // max(1, read_bytes), _MOST_AT_ONCE))

    def read(self, paths: Sequence[str]) -> OwnerBatch:
        """Read the owners at these paths; those that do not exist are left out. Raises UnavailableError."""
        return self._batch(paths)[0]

    def lists(self, paths: Sequence[str]) -> list[Node | None]:
        """Read topics' lists once more, in order; None: there is no such topic any more. Raises UnavailableError."""
        return self._read(paths)

    def _listed(self, folders: Sequence[str], unread: Unread) -> list[str]:
        self._pace.wait_for(len(folders))
        paths: list[str] = []
        for folder, names in zip(folders, self._store.children_many(folders), strict=True):
            if isinstance(names, Unreadable):
                unread.add_path(folder, names.detail)
                continue
            paths += [f"{folder}/{name}" for name in names or ()]
            if folder.endswith(_DOMAIN):
                namespace = folder.removeprefix(f"{MANAGED_LEDGERS_ROOT}/").removesuffix(_DOMAIN)
                events = [f"{namespace}{_DOMAIN}/{name}" for name in names or () if name.startswith(CHANGE_EVENTS)]
                self.change_events[namespace] = events
        return paths

    def _batch(self, paths: Sequence[str]) -> tuple[OwnerBatch, int]:
        """Return the owners, and the size of their znodes."""
        nodes = {path: node for path, node in zip(paths, self._read(paths), strict=True) if node is not None}
        topics = [path for path in nodes if not path.startswith(f"{SCHEMAS_ROOT}/")]
        self._pace.wait_for(len(topics))
        children = dict(zip(topics, self._store.children_many(topics), strict=True))
        names = {path: each for path, each in children.items() if isinstance(each, list)}
        cursor_paths = [f"{path}/{name}" for path, each in names.items() for name in each]
        found = dict(zip(cursor_paths, self._read(cursor_paths), strict=True))
        batch = OwnerBatch(schemas=[(path, node) for path, node in nodes.items() if path not in children])
        for path in topics:
            unlisted = children[path]
            if isinstance(unlisted, Unreadable):
                batch.topics.append(TopicZnodes(path, nodes[path], unlisted))
                continue
            # a cursor that is gone by now was deleted, and so was a topic whose cursors are gone
            cursors = {name: node for name in unlisted or () if (node := found[f"{path}/{name}"]) is not None}
            batch.topics.append(TopicZnodes(path, nodes[path], cursors))
        return batch, sum(len(node.data) for node in (*nodes.values(), *found.values()) if isinstance(node, Znode))

    def _read(self, paths: Sequence[str]) -> list[Node | None]:
        self._pace.wait_for(len(paths))
        return self._store.read_many(paths)
