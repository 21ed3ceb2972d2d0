"""Reads, in bulk, which ledgers owners refer to, from the owners' znodes in ZooKeeper and from brokers.

An owner is a topic, a cursor or a schema. udfs.owners.references unites the two sources. Ledgers of an owner
that can't be read count as in use.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from streaming.clock import Clock
from streaming.ports import Broker, MetadataStore, Unreadable, Znode
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import ManagedLedgerInfo, parse_managed_ledger
from udfs.owners.references import (
    COMPACTION_CURSOR,
    KeyOwner,
    ZnodeRead,
    compacted_by_znodes,
    fixed_paths,
    owner_of,
    reference_of,
)
from udfs.owners.segment_witness import layout_of, with_layout
from udfs.paths import SegmentName, cursor_path, layout_path, managed_ledger_path, schema_path, segments_among
from udfs.records import BrokerView, Presence, Reference
from udfs.units import MIB
from udfs.verdicts.judge_segment import RemovalFacts, SegmentFacts

_FIRST_AT_ONCE, _MOST_AT_ONCE = 64, 1024  # owners or znodes of a batch
_AIM_BYTES = 16 * MIB  # of znodes in a batch
# Limit for the znodes of a batch of owners; at most one read exceeds it. A topic may have any number of subscriptions,
# each with properties, so the znodes of its cursors have no limit of their own.
_MOST_BYTES = 64 * MIB
# Ends a path that replaces those of a topic's cursors if they could not be listed. Reading it is an error, unless the
# topic's own znode is absent.
_UNLISTED = "/*"


class _TooLargeError(Exception):
    """The znodes of a batch of owners exceed _MOST_BYTES."""


class InUseLoader:
    """Reads references in batches.

    Args:
        broker: None if brokers are not asked (safety.ask_broker = false).
    """

    def __init__(self, store: MetadataStore, broker: Broker | None, clock: Clock) -> None:
        self._store = store
        self._broker = broker
        self._clock = clock

    def load(self, keys: Iterable[str]) -> dict[str, Reference]:
        """Read all keys now; an owner that can't be read is UNREADABLE.

        Raises UnavailableError if ZooKeeper leaves any read unanswered; then nothing is returned.
        """
        left = list(dict.fromkeys(keys))
        loaded: dict[str, Reference] = {}
        size = _FIRST_AT_ONCE
        while left:
            batch = left[:size]  # tenants decide the size of znodes, so the batch size follows the bytes that were read
            try:
                references, read_bytes = self._load({key: owner_of(key) for key in batch})
            except _TooLargeError:  # large znodes of an owner must not make the others unreadable
                size = len(batch) // 2
                continue
            left = left[size:]
            loaded |= references
            size = _next_size(len(batch), read_bytes)
        return loaded

    def _load(self, owners: Mapping[str, KeyOwner]) -> tuple[dict[str, Reference], int]:
        """Return the references of a batch, and the size of their znodes."""
        now_ms = self._clock.now_ms()  # taken before the reads, so that a reference never seems newer than it is
        paths = self._paths(owners)
        layouts = {key: path for key, owner in owners.items() if (path := layout_of(owner))}
        znodes = self._read_paths(paths, layouts.values())
        views = self._views(owners, paths, znodes)
        references = {
            key: reference_of(key, [znodes[path] for path in paths[key]], views.get(key), read_at_ms=now_ms)
            for key in owners
        }
        references |= {key: with_layout(references[key], znodes[path]) for key, path in layouts.items()}
        return references, sum(len(znode.data or b"") for znode in znodes.values())

    def holding(self, checks: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return the pairs (path, version) that are true now; version -1 means that there is no such znode.

        Raises UnavailableError.
        """
        distinct = list(dict.fromkeys(checks))
        nodes = self._store.read_many([path for path, _version in distinct])
        return {check for check, node in zip(distinct, nodes, strict=True) if _version_of(node) == check[1]}

    def ledgers(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Read the znodes of BookKeeper's ledgers, in the order of paths; None: no such ledger.

        Raises UnavailableError.
        """
        return self._store.read_many(paths)

    def lists(self, managed_ledgers: Iterable[str]) -> dict[str, ManagedLedgerInfo]:
        """Read topics' ledger lists in full; omits lists that are absent, unreadable or can't be parsed.

        Raises UnavailableError.
        """
        names = list(dict.fromkeys(managed_ledgers))
        nodes = self._store.read_many([managed_ledger_path(name) for name in names])
        infos = {name: _list_of(node) for name, node in zip(names, nodes, strict=True)}
        return {name: info for name, info in infos.items() if info is not None}

    def segments(self, managed_ledgers: Iterable[str]) -> dict[str, SegmentFacts]:
        """Read segments with the layouts of their topics, from ZooKeeper and from brokers. Raises UnavailableError."""
        return {name: facts.segment for name, facts in self.removals(managed_ledgers).items()}

    def removals(self, managed_ledgers: Iterable[str], *, ask: bool = True) -> dict[str, RemovalFacts]:
        """Read segments as segments() does, with what else a removal depends on. Raises UnavailableError.

        Args:
            managed_ledgers: of the segments.
            ask: ask brokers, if they are asked at all.
        """
        names = segments_among(managed_ledgers)
        views: Sequence[BrokerView | None] = [None] * len(names)
        if self._broker is not None and names and ask:
            views = self._broker.layout_views(list(names))
        paths = {name: _removal_paths(name, segment) for name, segment in names.items()}
        distinct = list(dict.fromkeys(path for each in paths.values() for path in each))
        # after the brokers, so that nothing that a broker has written by then is missed
        nodes = dict(zip(distinct, self._store.read_many(distinct) if distinct else [], strict=True))
        facts: dict[str, RemovalFacts] = {}
        for (name, segment), view in zip(names.items(), views, strict=True):
            own, layout, schema, folder = (znode_read(path, nodes[path]) for path in paths[name])
            changed_ms = max(_changed_ms(nodes[own.path]), _changed_ms(nodes[layout.path]))
            read = SegmentFacts(name=segment, own=own, layout=layout, last_change_ms=changed_ms, view=view)
            facts[name] = RemovalFacts(segment=read, schema=schema, folder=folder)
        return facts

    def compacted(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return, by key, the ledger from which the topic's broker serves compacted readers now.

        -1: there is no such ledger; None: unknown. Raises UnavailableError.
        """
        names = {key: owner_of(key).name for key in dict.fromkeys(keys)}
        if self._broker is None:
            return dict.fromkeys(names)
        views = _views_by_key(names, self._broker.views)
        # The cursor's znode of a loaded topic may still name a ledger that the broker has replaced and deleted, so only
        # the broker's answer counts for a loaded topic.
        paths = {key: cursor_path(name, COMPACTION_CURSOR) for key, name in names.items() if not views[key].is_loaded}
        nodes = self._store.read_many(list(paths.values())) if paths else []
        loaded = {
            key: view.compacted_ledger
            for key, view in views.items()
            if view.presence is Presence.PRESENT and not view.is_hidden
        }
        unloaded = {key: _compacted_by(node) for key, node in zip(paths, nodes, strict=True)}
        return {key: unloaded[key] if key in unloaded else loaded.get(key) for key in names}

    def _paths(self, owners: Mapping[str, KeyOwner]) -> dict[str, list[str]]:
        paths = {key: list(fixed_paths(owner)) for key, owner in owners.items()}
        bucket_keys = [key for key, owner in owners.items() if owner.kind == "buckets"]
        roots = [managed_ledger_path(owners[key].name) for key in bucket_keys]
        for key, children in zip(bucket_keys, self._store.children_many(roots) if roots else [], strict=True):
            if isinstance(children, list):
                paths[key] += [cursor_path(owners[key].name, name) for name in sorted(children)]
            else:
                paths[key].append(f"{managed_ledger_path(owners[key].name)}{_UNLISTED}")
        return paths

    def _read_paths(self, paths: Mapping[str, Sequence[str]], layouts: Iterable[str]) -> dict[str, ZnodeRead]:
        """Read the owners' znodes, and the layouts of the scalable topics to which segments among them belong."""
        distinct = list(dict.fromkeys([*layouts, *(path for each in paths.values() for path in each)]))
        unlisted = [path for path in distinct if path.endswith(_UNLISTED)]
        readable = [path for path in distinct if not path.endswith(_UNLISTED)]
        znodes = self._read(readable, of_one_owner=len(paths) == 1)
        for path in unlisted:
            topic = znodes[path.removesuffix(_UNLISTED)]
            is_absent = topic.data is None and not topic.error
            znodes[path] = ZnodeRead(path, error="" if is_absent else "its cursors could not be listed")
        return znodes

    def _read(self, paths: Sequence[str], *, of_one_owner: bool) -> dict[str, ZnodeRead]:
        """Read znodes up to _MOST_BYTES.

        Above that limit, a single owner's remaining znodes count as unreadable; for several owners it raises
        _TooLargeError.
        """
        znodes: dict[str, ZnodeRead] = {}
        total_bytes, at, size = 0, 0, _FIRST_AT_ONCE
        while at < len(paths):
            if total_bytes > _MOST_BYTES:
                if not of_one_owner:
                    raise _TooLargeError
                error = f"the owner's znodes have more than {_MOST_BYTES // MIB} MiB"
                return znodes | {path: ZnodeRead(path, error=error) for path in paths[at:]}
            batch = paths[at : at + size]
            at += len(batch)
            for path, node in zip(batch, self._store.read_many(batch), strict=True):
                znodes[path] = znode_read(path, node)
            read_bytes = sum(len(znodes[path].data or b"") for path in batch)
            total_bytes += read_bytes
            size = _next_size(len(batch), read_bytes)
        return znodes

    def _views(
        self, owners: Mapping[str, KeyOwner], paths: Mapping[str, Sequence[str]], znodes: Mapping[str, ZnodeRead]
    ) -> dict[str, BrokerView]:
        """Ask brokers about topics, and about schemas whose locator is absent."""
        if self._broker is None:
            return {}
        topics = {key: owner.name for key, owner in owners.items() if owner.kind != "schema"}
        schemas = {
            key: owner.name
            for key, owner in owners.items()
            if owner.kind == "schema" and znodes[paths[key][0]].data is None
        }
        # A topic whose znode was read exists, so brokers need not list its namespace. For a compacted ledger
        # they list it nevertheless: such a ledger is deleted only if the brokers know the topic as well.
        compacted = {owner.name for owner in owners.values() if owner.kind == "compacted"}
        existing = {name for key, name in topics.items() if any(znodes[path].data is not None for path in paths[key])}
        existing -= compacted
        views = _views_by_key(topics, partial(self._broker.views, existing=existing))
        return views | _views_by_key(schemas, self._broker.schema_views)


def _removal_paths(managed_ledger: str, segment: SegmentName) -> tuple[str, str, str, str]:
    """Return the znodes of a segment, its layout, the schema of that name, and the folder of the layout."""
    layout = layout_path(segment.topic)
    return managed_ledger_path(managed_ledger), layout, schema_path(segment.topic), layout.rpartition("/")[0]


def _next_size(size: int, read_bytes: int) -> int:
    """Return the size of the next batch. The size at most doubles, because a small batch predicts little."""
    return max(1, min(2 * size, _MOST_AT_ONCE, _AIM_BYTES * size // max(1, read_bytes)))


def _views_by_key(names: Mapping[str, str], ask: Callable[[Sequence[str]], list[BrokerView]]) -> dict[str, BrokerView]:
    distinct = list(dict.fromkeys(names.values()))
    views = dict(zip(distinct, ask(distinct) if distinct else [], strict=True))
    return {key: views[name] for key, name in names.items()}


def znode_read(path: str, node: Znode | Unreadable | None) -> ZnodeRead:
    """Convert a znode that was read to the form of udfs.owners.references."""
    if node is None:
        return ZnodeRead(path)
    if isinstance(node, Unreadable):
        return ZnodeRead(path, error=node.detail)
    return ZnodeRead(path, node.data, node.version)


def _version_of(node: Znode | Unreadable | None) -> int | None:
    """Return the znode's version; -1 if there is no znode; None if it could not be read."""
    if node is None:
        return -1
    return node.version if isinstance(node, Znode) else None


def _changed_ms(node: Znode | Unreadable | None) -> int:
    return max(node.ctime_ms, node.mtime_ms) if isinstance(node, Znode) else 0


def _compacted_by(cursor: Znode | Unreadable | None) -> int | None:
    if isinstance(cursor, Unreadable):
        return None
    try:
        return compacted_by_znodes([cursor.data] if cursor is not None else [])
    except FormatError:
        return None


def _list_of(node: Znode | Unreadable | None) -> ManagedLedgerInfo | None:
    if not isinstance(node, Znode):
        return None
    try:
        return parse_managed_ledger(node.data)
    except FormatError:
        return None
