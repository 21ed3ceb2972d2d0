"""Reads what owners refer to, in bulk: their znodes from ZooKeeper, and what their brokers say.

The two are united by udfs.references. What could not be read counts as in use.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from streaming.clock import Clock
from streaming.ports import Broker, MetadataStore, Unreadable, Znode
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import ManagedLedgerInfo, parse_managed_ledger
from udfs.paths import cursor_path, managed_ledger_path
from udfs.records import BrokerView, Presence, Reference
from udfs.references import (
    COMPACTION_CURSOR,
    KeyOwner,
    ZnodeRead,
    compacted_by_znodes,
    fixed_paths,
    owner_of,
    reference_of,
)
from udfs.units import MIB

_FIRST_AT_ONCE, _MOST_AT_ONCE = 64, 1024  # owners or znodes of a batch
_AIM_BYTES = 16 * MIB  # of znodes in a batch
_MOST_BYTES = 64 * MIB  # and one batch more; a topic may have any number of subscriptions, each with properties
_UNLISTED = "/*"  # stands for cursors of a topic that could not be listed: an error, unless the topic is absent as well


class _TooLargeError(Exception):
    """The znodes of a batch of owners take too much memory together."""


class InUseLoader:
    """Reads references, many at a time. broker None: brokers are not asked (safety.ask_broker = false)."""

    def __init__(self, store: MetadataStore, broker: Broker | None, clock: Clock) -> None:
        self._store = store
        self._broker = broker
        self._clock = clock

    def load(self, keys: Iterable[str]) -> dict[str, Reference]:
        """Read all keys now; an owner that can't be read is UNREADABLE. Raises UnavailableError if none could be.

        Tenants choose how large znodes are, so we read and parse them in batches, whose size follows what comes back.
        """
        left = list(dict.fromkeys(keys))
        found: dict[str, Reference] = {}
        size = _FIRST_AT_ONCE
        while left:
            batch = left[:size]
            try:
                references, read_bytes = self._load({key: owner_of(key) for key in batch})
            except _TooLargeError:  # by which no owner may spoil another one's reading
                size = len(batch) // 2
                continue
            left = left[size:]
            found |= references
            size = _next_size(len(batch), read_bytes)
        return found

    def _load(self, owners: Mapping[str, KeyOwner]) -> tuple[dict[str, Reference], int]:
        """Return the references of one batch, and the size of the znodes that they were read from."""
        now_ms = self._clock.now_ms()  # taken before the reads, so that a reference never seems newer than it is
        paths = self._paths(owners)
        seen = self._seen(paths)
        views = self._views(owners, paths, seen)
        references = {
            key: reference_of(key, [seen[path] for path in paths[key]], views.get(key), read_at_ms=now_ms)
            for key in owners
        }
        return references, sum(len(each.data or b"") for each in seen.values())

    def holding(self, checks: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return which of the (path, version) are true now; version -1: no such znode. Raises UnavailableError."""
        asked = list(dict.fromkeys(checks))
        nodes = self._store.read_many([path for path, _version in asked])
        return {check for check, node in zip(asked, nodes, strict=True) if _version_of(node) == check[1]}

    def ledgers(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Read the znodes of BookKeeper's ledgers, in order; None: no such ledger. Raises UnavailableError."""
        return self._store.read_many(paths)

    def lists(self, managed_ledgers: Iterable[str]) -> dict[str, ManagedLedgerInfo]:
        """Read topics' ledger lists in full; those that can't be read are left out. Raises UnavailableError."""
        names = list(dict.fromkeys(managed_ledgers))
        nodes = self._store.read_many([managed_ledger_path(name) for name in names])
        found = {name: _list_of(node) for name, node in zip(names, nodes, strict=True)}
        return {name: info for name, info in found.items() if info is not None}

    def compacted(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return the compacted ledger that each topic reads from now; -1: none; None: that can't be known.

        The cursor's znode of a loaded topic may still name one that the broker has replaced and deleted. We keep such a
        ledger for want of proof, but where it is gone no data is missing.
        """
        names = {key: owner_of(key).name for key in dict.fromkeys(keys)}
        if self._broker is None:
            return dict.fromkeys(names)
        views = _asked(names, self._broker.views)
        paths = {key: cursor_path(name, COMPACTION_CURSOR) for key, name in names.items() if not views[key].is_loaded}
        nodes = self._store.read_many(list(paths.values())) if paths else []
        found = {key: view.compacted_ledger for key, view in views.items() if view.presence is Presence.PRESENT}
        unloaded = {key: _compacted_by(node) for key, node in zip(paths, nodes, strict=True)}
        return {key: unloaded[key] if key in unloaded else found.get(key) for key in names}

    def _paths(self, owners: Mapping[str, KeyOwner]) -> dict[str, list[str]]:
        paths = {key: list(fixed_paths(owner)) for key, owner in owners.items()}
        many = [key for key, owner in owners.items() if owner.kind == "buckets"]
        roots = [managed_ledger_path(owners[key].name) for key in many]
        for key, children in zip(many, self._store.children_many(roots) if many else [], strict=True):
            if isinstance(children, list):
                paths[key] += [cursor_path(owners[key].name, name) for name in sorted(children)]
            else:
                paths[key].append(f"{managed_ledger_path(owners[key].name)}{_UNLISTED}")
        return paths

    def _seen(self, paths: Mapping[str, Sequence[str]]) -> dict[str, ZnodeRead]:
        wanted = list(dict.fromkeys(path for some in paths.values() for path in some))
        unlisted = [path for path in wanted if path.endswith(_UNLISTED)]
        asked = [path for path in wanted if not path.endswith(_UNLISTED)]
        seen = self._read(asked, is_one_owners=len(paths) == 1)
        for path in unlisted:
            topic = seen[path.removesuffix(_UNLISTED)]
            is_absent = topic.data is None and not topic.error
            seen[path] = ZnodeRead(path, error="" if is_absent else "its cursors could not be listed")
        return seen

    def _read(self, paths: Sequence[str], *, is_one_owners: bool) -> dict[str, ZnodeRead]:
        """Read znodes. Where one owner's are too large together, its last ones can't be read; else _TooLargeError."""
        seen: dict[str, ZnodeRead] = {}
        in_all, at, size = 0, 0, _FIRST_AT_ONCE
        while at < len(paths):
            if in_all > _MOST_BYTES:
                if not is_one_owners:
                    raise _TooLargeError
                error = f"the owner's znodes have more than {_MOST_BYTES // MIB} MiB"
                return seen | {path: ZnodeRead(path, error=error) for path in paths[at:]}
            some = paths[at : at + size]
            at += len(some)
            for path, node in zip(some, self._store.read_many(some), strict=True):
                seen[path] = znode_read(path, node)
            read_bytes = sum(len(seen[path].data or b"") for path in some)
            in_all += read_bytes
            size = _next_size(len(some), read_bytes)
        return seen

    def _views(
        self, owners: Mapping[str, KeyOwner], paths: Mapping[str, Sequence[str]], seen: Mapping[str, ZnodeRead]
    ) -> dict[str, BrokerView]:
        """Ask brokers about topics, and about schemas whose locator is absent: has the broker none either?

        Where we read a znode of the topic, brokers need not list its namespace. A compacted ledger is deleted only if
        they know the topic as well.
        """
        if self._broker is None:
            return {}
        topics = {key: owner.name for key, owner in owners.items() if owner.kind != "schema"}
        schemas = {
            key: owner.name
            for key, owner in owners.items()
            if owner.kind == "schema" and seen[paths[key][0]].data is None
        }
        compacted = {owner.name for owner in owners.values() if owner.kind == "compacted"}
        existing = {name for key, name in topics.items() if seen[paths[key][0]].data is not None} - compacted
        views = _asked(topics, partial(self._broker.views, existing=existing))
        return views | _asked(schemas, self._broker.schema_views)


def _next_size(size: int, read_bytes: int) -> int:
    """How many to read at once after a batch of this size and as many bytes; a small one does not promise much."""
    return max(1, min(2 * size, _MOST_AT_ONCE, _AIM_BYTES * size // max(1, read_bytes)))


def _asked(names: Mapping[str, str], ask: Callable[[Sequence[str]], list[BrokerView]]) -> dict[str, BrokerView]:
    distinct = list(dict.fromkeys(names.values()))
    views = dict(zip(distinct, ask(distinct) if distinct else [], strict=True))
    return {key: views[name] for key, name in names.items()}


def znode_read(path: str, node: Znode | Unreadable | None) -> ZnodeRead:
    """Return what was read at a path as udfs.references takes it."""
    if node is None:
        return ZnodeRead(path)
    if isinstance(node, Unreadable):
        return ZnodeRead(path, error=node.detail)
    return ZnodeRead(path, node.data, node.version)


def _version_of(node: Znode | Unreadable | None) -> int | None:
    """Return the znode's version; -1 where there is no znode; None where it could not be read."""
    if node is None:
        return -1
    return node.version if isinstance(node, Znode) else None


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
