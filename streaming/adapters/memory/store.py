"""Fakes of MetadataStore and Broker that behave like the services, so that tests of promises need no service.

A test can make them fail: at the n-th effect (before or after it took place, or as a crash), for one path, or always.
It can also let another actor run between any two steps. tests/contract runs the same tests on them and on the real
services.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from streaming.adapters.memory.faults import CrashError, Faults
from streaming.adapters.memory.tree import (
    ANYONE,
    BadVersionError,
    Identities,
    MemoryTree,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    parent_of,
)
from streaming.errors import ForbiddenError, RefusedError, UnavailableError
from streaming.ports import GuardedDelete, GuardResult, GuardStatus, Unreadable, Znode, refuse_ledgers
from udfs.formats.acl import ALL, OPEN, AclEntry, acl_bytes, acl_entries
from udfs.formats.internal_stats import InternalStats
from udfs.paths import checked_schema_id, managed_ledger_name, segment_of
from udfs.records import BrokerView, Presence

__all__ = ["CrashError", "Faults", "MemoryBroker", "MemoryStore"]

_T = TypeVar("_T")


class MemoryStore:
    """MetadataStore in memory: a session on a MemoryTree, which other sessions may share."""

    def __init__(self, tree: MemoryTree | None = None, *, identities: Identities = ANYONE) -> None:
        self.tree = tree or MemoryTree()
        self.faults = Faults()
        self.unreadable: set[str] = set()  # paths whose znodes are too large to be read
        self._who = identities | ANYONE
        self.is_identified = bool(identities - ANYONE)
        self._own_acl = tuple(AclEntry(ALL, *identity) for identity in sorted(identities - ANYONE)) or OPEN
        self._session = self.tree.new_session()
        self._closed = False
        self._on_end: list[Callable[[], None]] = []

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Read znodes in the order of paths; None: does not exist. Raises UnavailableError."""
        self._step("read_many", paths)
        return [self._readable(path, lambda path: self.tree.read(path, self._who)) for path in paths]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        """List the children of each path, in the order of paths; None: does not exist. Raises UnavailableError."""
        self._step("children_many", paths)
        return [self._readable(path, lambda path: self.tree.children(path, self._who)) for path in paths]

    def delete_guarded(self, batches: Sequence[GuardedDelete]) -> list[GuardResult]:
        """Run each batch as one transaction, and return their results in the same order."""
        return [self._guarded(batch) for batch in batches]

    def create(
        self, path: str, data: bytes, *, acl: bytes | None = None, parents: bool = False, ephemeral: bool = False
    ) -> bool:
        """Create a znode; return False if it exists. Raises UnavailableError, RefusedError."""
        self._step("create", [path])
        entries = self._acl(acl)
        if parents and parent_of(path) != "/":
            self._create_ancestors(parent_of(path), acl)
        owner = self._session if ephemeral else 0
        try:
            self.faults.effect(lambda: self.tree.create(path, data, acl=entries, owner=owner, who=self._who))
        except NodeExistsError:
            return False
        except (NoNodeError, NoAuthError, NoChildrenForEphemeralsError) as error:
            raise RefusedError(f"can't create {path}: {type(error).__name__}") from error
        return True

    def acl_of(self, path: str) -> bytes | None:
        """Return the znode's ACL in the form that create() takes; None if the znode does not exist.

        Raises UnavailableError, RefusedError.
        """
        self._step("acl_of", [path])
        try:
            return acl_bytes(self.tree.acl(path, self._who))
        except NoNodeError:
            return None
        except NoAuthError as error:
            raise RefusedError(f"no permission to read the ACL of {path}") from error

    def close_to_others(self, path: str) -> bool:
        """Set the default ACL of create() on one of our own znodes; return False if it is gone. Raises like delete."""
        refuse_ledgers(path)
        self._step("close_to_others", [path])
        try:
            self.faults.effect(lambda: self.tree.set_acl(path, self._own_acl, self._who))
        except NoNodeError:
            return False
        except NoAuthError as error:
            raise RefusedError(f"no permission to change the ACL of {path}") from error
        return True

    def set_data(self, path: str, data: bytes, *, version: int = -1) -> int | None:
        """Write data and return the new version; None if the version does not match or there is no such znode."""
        self._step("set_data", [path])
        versions: list[int] = []
        try:
            self.faults.effect(lambda: versions.append(self.tree.write(path, data, version, who=self._who)))
        except (NoNodeError, BadVersionError):
            return None
        except NoAuthError as error:
            raise RefusedError(f"no permission to write {path}") from error
        return versions[0]

    def delete(self, path: str) -> bool:
        """Delete one of our own znodes; return False if it was gone.

        Raises SafetyError, RefusedError, UnavailableError.
        """
        refuse_ledgers(path)
        self._step("delete", [path])
        try:
            self.faults.effect(lambda: self.tree.remove(path, who=self._who))
        except NoNodeError:
            return False
        except (NoAuthError, NotEmptyError) as error:
            raise RefusedError(f"can't delete {path}: {type(error).__name__}") from error
        return True

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        """Register a callback, called once when the session has ended."""
        self._on_end.append(callback)

    def expire_session(self) -> None:
        """Let the session expire: delete its ephemeral znodes, start a new session, call the callbacks."""
        self.tree.end_session(self._session)
        self._session = self.tree.new_session()
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()

    def close(self) -> None:
        """End the session; every later call raises UnavailableError."""
        self.tree.end_session(self._session)
        self._closed = True
        self._on_end.clear()

    def _step(self, operation: str, paths: Sequence[str]) -> None:
        if self._closed:
            raise UnavailableError("this session was closed")
        self.faults.step(operation, paths)

    def _readable(self, path: str, read: Callable[[str], _T]) -> _T | Unreadable | None:
        if path in self.unreadable:
            return Unreadable("too large")
        try:
            return read(path)
        except NoNodeError:
            return None
        except NoAuthError:
            return Unreadable("no permission to read it")

    def _guarded(self, batch: GuardedDelete) -> GuardResult:
        results: list[GuardResult] = []
        try:
            self._step("delete_guarded", [path for path, _version in batch.deletes])
            self.faults.effect(lambda: results.append(self.tree.remove_guarded(batch, self._who)))
        except UnavailableError:
            return GuardResult(GuardStatus.UNKNOWN)
        return results[0]

    def _acl(self, given: bytes | None) -> Sequence[AclEntry]:
        return self._own_acl if given is None else acl_entries(given)

    def _create_ancestors(self, path: str, acl: bytes | None) -> None:
        if parent_of(path) != "/":
            self._create_ancestors(parent_of(path), acl)
        try:
            self.tree.create(path, b"", acl=self._acl(acl), who=self._who)
        except NodeExistsError:
            return
        except NoAuthError as error:
            raise RefusedError(f"can't create {path}: no permission") from error


class MemoryBroker:
    """Broker in memory, of a version without scalable topics. Schemas and topics without a view are GONE.

    Exceptions: a topic that the caller knows to exist is PRESENT, and a segment is UNREADABLE.
    """

    def __init__(self) -> None:
        self.topics: dict[str, BrokerView] = {}
        self.schemas: dict[str, BrokerView] = {}
        self.stats: dict[str, InternalStats | Unreadable] = {}  # of loaded topics, by managed ledger
        self.is_refused = False  # True: our role is not a superuser
        self.faults = Faults()

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        """Look up each `tenant/ns/persistent/encoded`, in order. Never raises."""
        views = [self._view("views", self.topics, managed_ledger_name, name) for name in managed_ledgers]
        pairs = zip(managed_ledgers, views, strict=True)
        return [self._absent(name, existing) if view.presence is Presence.GONE else view for name, view in pairs]

    def layout_views(self, segments: Sequence[str]) -> list[BrokerView]:
        """Return UNREADABLE for each segment. Never raises."""
        return [BrokerView(presence=Presence.UNREADABLE, detail="HTTP 404: Not Found")] * len(segments)

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Look up each `tenant/ns/encoded`, in order. Never raises."""
        return [self._view("schema_views", self.schemas, checked_schema_id, name) for name in schema_ids]

    def internal_stats(self, managed_ledgers: Sequence[str]) -> list[InternalStats | Unreadable | None]:
        """Return `stats` of each topic, in order; None for other topics. Never raises."""
        try:
            self.faults.step("internal_stats", managed_ledgers)
        except UnavailableError as error:
            return [Unreadable(f"maybe loaded: {error}")] * len(managed_ledgers)
        return [self.stats.get(name) for name in managed_ledgers]

    def require_answers(self) -> int:
        """Return 1, the number of brokers. Raises ForbiddenError, UnavailableError."""
        if self.is_refused:
            raise ForbiddenError("the broker does not list the topics it has loaded: that needs a superuser's rights")
        self.faults.step("require_answers", [])
        return 1

    def _absent(self, name: str, existing: Collection[str]) -> BrokerView:
        if name in existing:
            return BrokerView(presence=Presence.PRESENT, is_loaded=False)
        if segment_of(name):
            return BrokerView(presence=Presence.UNREADABLE, detail="HTTP 404: Not Found")
        return BrokerView(presence=Presence.GONE, detail=f"{name} not found")

    def _view(
        self, operation: str, views: dict[str, BrokerView], checked: Callable[[str], str], name: str
    ) -> BrokerView:
        try:
            self.faults.step(operation, [name])
            return views.get(checked(name), BrokerView(presence=Presence.GONE, detail=f"{name} not found"))
        except UnavailableError as error:
            return BrokerView(presence=Presence.UNREADABLE, detail=str(error), is_unavailable=True)
        except ValueError as error:
            return BrokerView(presence=Presence.UNREADABLE, detail=str(error))
