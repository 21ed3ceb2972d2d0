"""What the program needs of the outside, in its own words; adapters translate, fakes imitate.

Every port has an adapter named by technology and a fake in streaming.adapters.memory.store; both pass
the same tests (tests/contract). "Unknown" is an exception (UnavailableError), never a default.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from udfs.records import BrokerView, StoredObject, UnfinishedUpload


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode as read: raw bytes, data version, creation and change time (ms).

    acl_version counts changes of its ACL: 0 means the ACL is the one it was created with.
    """

    data: bytes
    version: int
    ctime_ms: int
    mtime_ms: int
    acl_version: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """This one path could not be read (rights, size); the others could."""

    detail: str


@dataclass(frozen=True, slots=True)
class GuardedDelete:
    """Delete all of `deletes` (path, version), but only if every one of `checks` still has its version."""

    checks: tuple[tuple[str, int], ...]
    deletes: tuple[tuple[str, int], ...]


class GuardStatus(StrEnum):
    """What became of a GuardedDelete. Except for DELETED and UNKNOWN nothing was changed."""

    DELETED = "DELETED"  # all of them, atomically
    CHECK_FAILED = "CHECK_FAILED"  # path: a checked znode changed or is gone
    GONE = "GONE"  # path: one to be deleted does not exist
    CHANGED = "CHANGED"  # path: one to be deleted has another version
    NOT_EMPTY = "NOT_EMPTY"  # path: one to be deleted has children
    REFUSED = "REFUSED"  # no right to delete
    UNKNOWN = "UNKNOWN"  # connection lost: all or nothing happened; look


@dataclass(frozen=True, slots=True)
class GuardResult:
    """Status of one GuardedDelete and the znode it failed at ("" if none)."""

    status: GuardStatus
    path: str = ""


class SweepStore(Protocol):
    """ZooKeeper, as seen by the sweep: bulk reads, and deletes that carry their proof."""

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Read paths in order; None: does not exist. Raises UnavailableError when not all could be asked."""
        ...

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        """List children of each path in order; None: does not exist. Raises UnavailableError."""
        ...

    def delete_guarded(self, batches: Sequence[GuardedDelete]) -> list[GuardResult]:
        """Run each batch as one transaction, pipelined; one result per batch, in order. Never raises for a batch."""
        ...

    def acl_of(self, path: str) -> bytes | None:
        """The znode's ACL in a form create() takes; None if the znode does not exist. Raises as create does."""
        ...


class MetadataStore(SweepStore, Protocol):
    """ZooKeeper, as seen by the rest of the service: the sweep's part, and znodes of our own.

    is_identified: we have credentials, so what create() makes is closed to all others unless an ACL is given.
    """

    is_identified: bool

    def create(
        self, path: str, data: bytes, *, acl: bytes | None = None, parents: bool = False, ephemeral: bool = False
    ) -> bool:
        """Create a znode; False if it exists. acl: as acl_of returned it. Raises UnavailableError, RefusedError.

        parents: missing ancestors are created with the same ACL and no data. ephemeral: it goes with the session.
        """
        ...

    def close_to_others(self, path: str) -> bool:
        """Give one of our own znodes the ACL that create() gives; False if it is gone. Raises as delete."""
        ...

    def set_data(self, path: str, data: bytes, *, version: int = -1) -> int | None:
        """Write data, return the new version; None when it has another version or does not exist. Raises as create."""
        ...

    def delete(self, path: str) -> bool:
        """Delete one of our own znodes; False if it was gone. Raises SafetyError for a ledger's, else as create."""
        ...

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        """Call back once, from another thread, when the session's ephemeral znodes may be gone."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


class Broker(Protocol):
    """The brokers' admin API, as the second witness beside the metadata store."""

    def views(self, managed_ledgers: Sequence[str]) -> list[BrokerView]:
        """Ask for each topic's internalStats, in order, concurrently. Never raises: UNREADABLE is a view."""
        ...

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Ask for each schema's existence and ledgers, in order. Never raises."""
        ...


class ObjectStore(Protocol):
    """One bucket of tiered storage.

    Every method raises UnavailableError when the store did not answer (what was asked may have happened), and
    RefusedError when it answered no: no rights, expired credentials, no such bucket. A bucket that is gone is
    never reported as a bucket without the object.
    """

    def read_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read small objects with their content, in order; None: does not exist."""
        ...

    def head_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Describe objects, in order; None: does not exist."""
        ...

    def delete(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Delete any number of keys; returns key -> error for those refused. An absent key is deleted already.

        In a bucket with versions a delete marker hides the object; its bytes stay until a lifecycle rule takes them.
        """
        ...

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Which of the keys exist now."""
        ...

    def list_keys(self, prefix: str = "") -> Iterator[tuple[str, int, int]]:
        """Every (key, size in bytes, last modified ms), by key."""
        ...

    def unfinished_uploads(self, keys: Sequence[str]) -> list[UnfinishedUpload]:
        """Uploads to any of the keys that were begun and neither completed nor aborted."""
        ...

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> Mapping[str, str]:
        """Give up the parts of uploads; returns key -> error for those refused. One that is gone is aborted."""
        ...

    def undelete(self, keys: Sequence[str]) -> set[str]:
        """Take away the delete markers that hide the keys; returns those that exist afterwards."""
        ...


class OffloadConfiguration(Protocol):
    """What the brokers are configured to offload with."""

    def cluster_name(self) -> str:
        """Name of this Pulsar cluster, as brokers write it into objects; "" where it can't be told.

        Raises UnavailableError.
        """
        ...

    def offload_policies(self, namespace: str) -> Mapping[str, str]:
        """Offload policies of `tenant/ns`; empty where it has none or does not exist.

        Raises UnavailableError, RefusedError.
        """
        ...
