"""Implements MetadataStore on ZooKeeper: bulk reads by multiRead, deletes by transactions that contain their checks."""

import os
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, cast

from kazoo.exceptions import (
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.protocol.serialization import Create, Delete, GetACL, SetACL, SetData
from kazoo.security import ACL, Id

from streaming.adapters.zookeeper.deletes import delete_guarded
from streaming.adapters.zookeeper.reads import CHILDREN, DATA, BulkRead, Sizes
from streaming.adapters.zookeeper.zookeeper_client import ZooKeeperClientSettings
from streaming.adapters.zookeeper.zookeeper_session import AnsweredError, ZooKeeperSession
from streaming.errors import RefusedError
from streaming.ports import GuardedDelete, GuardResult, Unreadable, Znode, refuse_ledgers
from udfs.formats.acl import CREATOR, OPEN, AclEntry, acl_bytes, acl_entries

__all__ = ["ZooKeeperClientSettings", "ZooKeeperStore", "close_all", "store_for"]

_EPHEMERAL_FLAG = 1


class ZooKeeperStore:
    """MetadataStore on ZooKeeper. Connects when first used. Thread-safe, and usable in a forked child."""

    def __init__(self, settings: ZooKeeperClientSettings, *, sizes: Sizes | None = None) -> None:
        self._session = ZooKeeperSession(settings)
        self._sizes = sizes or Sizes()
        self._own_acl = _wire(CREATOR if settings.has_credentials else OPEN)
        self.is_identified = settings.has_credentials

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Read znodes in the order of paths; None: does not exist. Raises UnavailableError if any can't be asked."""
        return cast(list[Znode | Unreadable | None], self._bulk(DATA, paths))

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        """List the children of each path, in the order of paths; None: does not exist. Raises UnavailableError."""
        return cast(list[list[str] | Unreadable | None], self._bulk(CHILDREN, paths))

    def delete_guarded(self, batches: Sequence[GuardedDelete]) -> list[GuardResult]:
        """Run each batch as one transaction, pipelined; return a result per batch, in order. Never raises."""
        return delete_guarded(self._session, batches)

    def create(
        self, path: str, data: bytes, *, acl: bytes | None = None, parents: bool = False, ephemeral: bool = False
    ) -> bool:
        """Create a znode; return False if it exists. Raises UnavailableError (it may exist now), RefusedError.

        Args:
            acl: None gives all rights to this client alone, or to everybody if there are no credentials.
            parents: create missing ancestors with the same ACL and no data.
            ephemeral: ZooKeeper deletes the znode when the session ends.
        """
        wire_acl = _wire(acl_entries(acl)) if acl is not None else self._own_acl
        request = Create(self._session.absolute(path), data, wire_acl, _EPHEMERAL_FLAG if ephemeral else 0)
        try:
            self._session.call(request)
        except AnsweredError as error:
            if error.code == NodeExistsError.code:
                return False
            if error.code == NoNodeError.code and parents and path.count("/") > 1:
                self.create(path.rpartition("/")[0], b"", acl=acl, parents=True)
                return self.create(path, data, acl=acl, ephemeral=ephemeral)
            raise _refused("create", path, error) from error
        return True

    def acl_of(self, path: str) -> bytes | None:
        """Return the znode's ACL in the form that create() takes; None if the znode does not exist.

        Raises UnavailableError, RefusedError.
        """
        try:
            entries, _stat = self._session.call(GetACL(self._session.absolute(path)))
        except AnsweredError as error:
            if error.code == NoNodeError.code:
                return None
            raise _refused("read the ACL of", path, error) from error
        return acl_bytes(AclEntry(entry.perms, entry.id.scheme, entry.id.id) for entry in entries)

    def close_to_others(self, path: str) -> bool:
        """Set the default ACL of create() on one of our own znodes; return False if it is gone.

        Raises SafetyError for a ledger's znode, UnavailableError (it may be closed now), RefusedError.
        """
        refuse_ledgers(path)
        try:
            self._session.call(SetACL(self._session.absolute(path), self._own_acl, -1))
        except AnsweredError as error:
            if error.code == NoNodeError.code:
                return False
            raise _refused("change the ACL of", path, error) from error
        return True

    def set_data(self, path: str, data: bytes, *, version: int = -1) -> int | None:
        """Write data and return the new version; None if the version does not match or there is no such znode.

        Raises UnavailableError (it may be written now), RefusedError.
        """
        try:
            stat = self._session.call(SetData(self._session.absolute(path), data, version))
        except AnsweredError as error:
            if error.code in (BadVersionError.code, NoNodeError.code):
                return None
            raise _refused("write", path, error) from error
        return int(stat.version)

    def delete(self, path: str) -> bool:
        """Delete one of our own znodes; return False if it was gone.

        Raises SafetyError for a ledger's znode, UnavailableError (it may be gone now), RefusedError (no permission, or
        it has children).
        """
        refuse_ledgers(path)
        try:
            self._session.call(Delete(self._session.absolute(path), -1))
        except AnsweredError as error:
            if error.code == NoNodeError.code:
                return False
            raise _refused("delete", path, error) from error
        return True

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        """Register a callback, called once from another thread when this session's ephemeral znodes may be gone."""
        self._session.when_ended(callback)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _bulk(self, operation: int, paths: Sequence[str]) -> list[Any]:
        return BulkRead(self._session, self._sizes, operation, paths).run()


_stores: dict[ZooKeeperClientSettings, ZooKeeperStore] = {}
_stores_lock = Lock()


def store_for(settings: ZooKeeperClientSettings) -> ZooKeeperStore:
    """Return this process's store for these settings, the same for every batch and thread."""
    with _stores_lock:
        if settings not in _stores:
            _stores[settings] = ZooKeeperStore(settings)
        return _stores[settings]


def close_all() -> None:
    """End the sessions of all stores that store_for returned; its next call opens a new session."""
    with _stores_lock:
        stores = list(_stores.values())
        _stores.clear()
    for store in stores:
        store.close()


def _forget_parent() -> None:
    global _stores_lock  # noqa: PLW0603  a lock that another thread of the parent held at the fork is never released
    _stores_lock = Lock()
    _stores.clear()


os.register_at_fork(after_in_child=_forget_parent)


def _wire(entries: Iterable[AclEntry]) -> list[ACL]:
    return [ACL(entry.perms, Id(entry.scheme, entry.id)) for entry in entries]


def _refused(what: str, path: str, error: AnsweredError) -> RefusedError:
    reasons = {
        NoAuthError.code: "no permission; check our credentials and the ACL of the znode and of its parent",
        NoNodeError.code: "its parent does not exist",
        InvalidACLError.code: "it accepts none of our credentials as an identity; check zookeeper.digest_file, "
        "sasl_mechanism and tls_cert_file (a certificate counts only if the server requests it)",
    }
    reason = reasons.get(error.code, f"error {error.code}")
    return RefusedError(f"ZooKeeper did not {what} {path}: {reason}")
