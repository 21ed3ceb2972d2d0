"""ZooKeeper's tree of znodes in memory. Any number of sessions (MemoryStore) may share it.

1. All operations of a transaction are checked before the first is done.
2. Permissions are checked in ZooKeeper's order: the parent's first, before the znode is searched.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock

from streaming.clock import Clock, ManualClock
from streaming.ports import GuardedDelete, GuardResult, GuardStatus, Znode
from udfs.formats.acl import ADMIN, CREATE, DELETE, OPEN, READ, WRITE, AclEntry

Identities = frozenset[tuple[str, str]]
ANYONE: Identities = frozenset({("world", "anyone")})


class NoNodeError(Exception):
    """There is no such znode (for create: no parent)."""


class NodeExistsError(Exception):
    """The znode exists already."""


class NoAuthError(Exception):
    """The ACL does not allow it."""


class BadVersionError(Exception):
    """The znode has another version."""


class NotEmptyError(Exception):
    """The znode has children."""


class NoChildrenForEphemeralsError(Exception):
    """An ephemeral znode can't be a parent."""


@dataclass(slots=True)
class Node:
    """A znode with its ACL and children."""

    znode: Znode
    acl: tuple[AclEntry, ...] = OPEN
    owner: int = 0  # the session id of an ephemeral znode
    children: set[str] = field(default_factory=set)


class MemoryTree:
    """Znodes by path. Every method is atomic; versions and times change as in ZooKeeper."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.lock = RLock()
        self._clock = clock or ManualClock(1_700_000_000_000)
        self._nodes = {"/": Node(Znode(data=b"", version=0, ctime_ms=0, mtime_ms=0))}
        self._sessions = 0
        # called with each path that is created, changed or deleted
        self.listeners: list[Callable[[str], None]] = []

    def new_session(self) -> int:
        """Return a session id."""
        with self.lock:
            self._sessions += 1
            return self._sessions

    def paths(self) -> list[str]:
        """Return every path, sorted. For assertions."""
        with self.lock:
            return sorted(self._nodes)

    def read(self, path: str, who: Identities = ANYONE) -> Znode:
        """Return the znode. Raises NoNodeError, NoAuthError."""
        with self.lock:
            node = self._node(path)
            _require(node, READ, who)
            return node.znode

    def children(self, path: str, who: Identities = ANYONE) -> list[str]:
        """Return the names of the children, in any order. Raises NoNodeError, NoAuthError."""
        with self.lock:
            node = self._node(path)
            _require(node, READ, who)
            return list(node.children)

    def acl(self, path: str, who: Identities = ANYONE) -> tuple[AclEntry, ...]:
        """Return the ACL. Raises NoNodeError, NoAuthError."""
        with self.lock:
            node = self._node(path)
            _require(node, READ | ADMIN, who)
            return node.acl

    def set_acl(self, path: str, acl: Sequence[AclEntry], who: Identities | None = None) -> None:
        """Change the ACL. Raises NoNodeError, NoAuthError.

        Args:
            who: None has all permissions.
        """
        with self.lock:
            node = self._node(path)
            if who is not None:
                _require(node, ADMIN, who)
            node.acl = tuple(acl)
            node.znode = replace(node.znode, acl_version=node.znode.acl_version + 1)

    def create(
        self, path: str, data: bytes, *, acl: Sequence[AclEntry] = OPEN, owner: int = 0, who: Identities = ANYONE
    ) -> None:
        """Create a znode. Raises NoNodeError, NoAuthError, NodeExistsError, NoChildrenForEphemeralsError."""
        with self.lock:
            parent = self._node(parent_of(path))
            _require(parent, CREATE, who)
            if path in self._nodes:
                raise NodeExistsError(path)
            if parent.owner:
                raise NoChildrenForEphemeralsError(path)
            now_ms = self._clock.now_ms()
            self._nodes[path] = Node(
                Znode(data=bytes(data), version=0, ctime_ms=now_ms, mtime_ms=now_ms, is_ephemeral=owner != 0),
                tuple(acl),
                owner,
            )
            parent.children.add(_name(path))
            self._notify(path)

    def write(self, path: str, data: bytes, version: int = -1, *, who: Identities = ANYONE) -> int:
        """Write data and return the new version. Raises NoNodeError, NoAuthError, BadVersionError."""
        with self.lock:
            node = self._node(path)
            _require(node, WRITE, who)
            _require_version(node, version)
            new_version, now_ms = node.znode.version + 1, self._clock.now_ms()
            node.znode = replace(node.znode, data=bytes(data), version=new_version, mtime_ms=now_ms)
            self._notify(path)
            return new_version

    def check(self, path: str, version: int, who: Identities = ANYONE) -> None:
        """Raise NoNodeError, NoAuthError or BadVersionError unless the znode has this version."""
        with self.lock:
            node = self._node(path)
            _require(node, READ, who)
            _require_version(node, version)

    def remove(self, path: str, version: int = -1, who: Identities = ANYONE) -> None:
        """Delete a znode. Raises NoNodeError, NoAuthError, BadVersionError, NotEmptyError."""
        with self.lock:
            self._judge_removal(path, version, who, set())
            self._drop(path)

    def remove_guarded(self, batch: GuardedDelete, who: Identities = ANYONE) -> GuardResult:
        """Run the batch as one transaction."""
        with self.lock:
            failed = self._failed_check(batch.checks, who) or self._failed_removal(batch.deletes, who)
            if failed is not None:
                return failed
            for path, _version in batch.deletes:
                self._drop(path)
            return GuardResult(GuardStatus.DELETED)

    def end_session(self, session: int) -> None:
        """Delete the session's ephemeral znodes."""
        with self.lock:
            for path in [path for path, node in self._nodes.items() if node.owner == session]:
                self._drop(path)

    def _failed_check(self, checks: Sequence[tuple[str, int]], who: Identities) -> GuardResult | None:
        for path, version in checks:
            try:
                self.check(path, version, who)
            except NoAuthError:
                return GuardResult(GuardStatus.REFUSED, path)
            except (NoNodeError, BadVersionError):
                return GuardResult(GuardStatus.CHECK_FAILED, path)
        return None

    def _failed_removal(self, deletes: Sequence[tuple[str, int]], who: Identities) -> GuardResult | None:
        gone: set[str] = set()
        for path, version in deletes:
            try:
                self._judge_removal(path, version, who, gone)
            except tuple(_DELETE_FAILURES) as error:
                return GuardResult(_DELETE_FAILURES[type(error)], path)
            gone.add(path)
        return None

    def _judge_removal(self, path: str, version: int, who: Identities, gone: set[str]) -> None:
        """Raise the error that ZooKeeper would return.

        Args:
            gone: paths that the same transaction has removed before.
        """
        _require(self._node(parent_of(path)), DELETE, who)
        if path in gone:
            raise NoNodeError(path)
        node = self._node(path)
        _require_version(node, version)
        if node.children and len(node.children) > Counter(map(parent_of, gone))[path]:
            raise NotEmptyError(path)

    def _drop(self, path: str) -> None:
        del self._nodes[path]
        self._nodes[parent_of(path)].children.discard(_name(path))
        self._notify(path)

    def _notify(self, path: str) -> None:
        for listener in self.listeners:
            listener(path)

    def _node(self, path: str) -> Node:
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        return node


_DELETE_FAILURES = {
    NoNodeError: GuardStatus.GONE,
    BadVersionError: GuardStatus.CHANGED,
    NotEmptyError: GuardStatus.NOT_EMPTY,
    NoAuthError: GuardStatus.REFUSED,
}


def parent_of(path: str) -> str:
    """Return the parent's path."""
    return path.rpartition("/")[0] or "/"


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _require(node: Node, permission: int, who: Identities) -> None:
    if not any(entry.perms & permission and (entry.scheme, entry.id) in who for entry in node.acl):
        raise NoAuthError


def _require_version(node: Node, version: int) -> None:
    if version not in (-1, node.znode.version):
        raise BadVersionError
