"""What the program needs of the outside, in its own words; adapters translate, fakes imitate.

Every port has an adapter that is named by its technology and a fake in streaming.adapters.memory; both pass the
same tests (tests/contract). "Unknown" is an exception (UnavailableError), never a default.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from streaming.errors import SafetyError
from udfs.entry_ranges import EntrySpan
from udfs.formats.bookie_disk import BookieDisk
from udfs.formats.internal_stats import InternalStats, Position
from udfs.formats.message_id import message_id_text
from udfs.paths import partition_index
from udfs.phase_one.trim_forecast import Retention
from udfs.records import BrokerView, StoredObject, UnfinishedUpload

_LEDGER_LEAF = re.compile(r"/\d{2,4}/L\d{4}")


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


@dataclass(frozen=True, slots=True)
class ChangedPaths:
    """Znodes that were made, changed or deleted, as far as ZooKeeper told us. Some may not have changed, some may lack.

    has_gap: something may be lacking since the call before. is_watching: from now on, changes are told.
    """

    paths: frozenset[str] = frozenset()
    has_gap: bool = False
    is_watching: bool = False


class ChangeHints(Protocol):
    """What has changed in ZooKeeper, told soon and without a promise: whoever must know compares what is there."""

    def take(self) -> ChangedPaths:
        """Return what changed since the last call. Never raises: where ZooKeeper does not answer, nothing is told."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


def refuse_ledgers(path: str) -> None:
    """Raise SafetyError where path has the shape of a ledger's znode: such a one goes by delete_guarded or not at all.

    Every MetadataStore asks this before it deletes a znode or changes its ACL.
    """
    if _LEDGER_LEAF.search(path):
        raise SafetyError(f"{path} is a ledger: it may only be deleted together with a check of its owner")


class Broker(Protocol):
    """The brokers' admin API, as the second witness beside the metadata store. No question loads a topic."""

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        """Return what brokers know of each topic, in order. Never raises: UNREADABLE is a view.

        existing: topics that exist as far as the caller needs to know; brokers are asked only whether they are loaded.
        """
        ...

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Ask for each schema's existence, in order. Never raises."""
        ...

    def require_answers(self) -> int:
        """Ask every running broker which topics it has loaded; return how many brokers run.

        Raises ForbiddenError where a broker refuses, UnavailableError where one does not answer.
        """
        ...


class TopicAdmin(Protocol):
    """Pulsar's admin API: topics, their policies, and how far they have been read.

    Topics may be named in any form that udfs.paths takes. Every method raises UnavailableError when no broker gave an
    answer (what was asked may have happened), and RefusedError, with what to do, when one said no. Repeating a call is
    harmless: what exists already is not an error.
    """

    def check_health(self) -> None:
        """Return when a broker can publish and read."""
        ...

    def clusters(self) -> list[str]:
        """Names of the clusters this one knows, itself included."""
        ...

    def tenants(self) -> list[str]:
        """Names of all tenants."""
        ...

    def namespaces(self, tenant: str) -> list[str]:
        """Namespaces of a tenant as `tenant/ns`; none where there is no such tenant."""
        ...

    def partitioned_topics(self, namespace: str) -> list[str]:
        """Partitioned topics of `tenant/ns` by their full names; none where there is no such namespace."""
        ...

    def ensure_namespace(self, topic: str) -> None:
        """Make the topic's tenant and namespace where missing."""
        ...

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions, 0 for a topic that is not partitioned, None where there is no such topic."""
        ...

    def create_partitioned_topic(self, topic: str, partitions: int) -> bool:
        """Make the topic and its partitions; False if there is one of that name."""
        ...

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        """Make the durable subscription on every partition, at the earliest message; an existing one stays as it is.

        Raises RefusedError where there is no such topic, BusyError while the subscription's cursor is being moved.
        """
        ...

    def expire_messages(self, topic: str, subscription: str, *, older_than_seconds: int) -> None:
        """Give up what the subscription has not read and is older than that; retention decides how long it stays."""
        ...

    def last_positions(self, topic: str) -> dict[str, Position]:
        """Partition (full name) -> position of its newest message, whether read or not; entry -1: it has none."""
        ...

    def tells_last(self, partition: str, patience_seconds: float) -> bool:
        """Whether the broker says in time what the partition's last message is. Raises UnavailableError."""
        ...

    def position_at(self, partition: str, publish_ms: int) -> Position:
        """Position of the first message of a partition that was published then or later, or of one before that."""
        ...

    def internal_stats(self, topic: str) -> InternalStats:
        """internalStats of one partition or unpartitioned topic. A form that is not known is an UnavailableError."""
        ...

    def set_retention(self, topic: str, *, minutes: int, megabytes: int) -> None:
        """Keep acknowledged messages for that long; -1: without limit."""
        ...

    def message_ttl(self, topic: str) -> int:
        """Seconds in force after which unread messages expire; 0: never."""
        ...

    def max_message_bytes(self, topic: str) -> int:
        """Return how many bytes the topic's own policy lets a message have; 0: it has none, or we may not ask."""
        ...

    def set_message_ttl(self, topic: str, *, seconds: int) -> None:
        """Let unread messages expire after that time; 0: never."""
        ...

    def deduplication(self, topic: str) -> bool:
        """Whether the policy in force says that the broker drops messages whose sequence id is not new."""
        ...

    def deduplicates(self, topic: str) -> bool:
        """Whether all partitions really do so now; a policy alone does not make them."""
        ...

    def set_deduplication(self, topic: str, *, enabled: bool) -> None:
        """Let the broker drop messages whose sequence id is not new."""
        ...

    def backlog_quota(self, topic: str) -> Mapping[str, Any]:
        """Quotas by type (destination_storage, message_age): limitSize, limitTime (-1: none), policy."""
        ...


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it lies in its partition (full topic name). batch_index -1: it was sent alone."""

    partition: str
    ledger_id: int
    entry_id: int
    batch_index: int
    publish_ms: int
    key: str
    payload: bytes
    properties: Mapping[str, str]

    @property
    def id(self) -> str:
        """Its message id, as Java prints it."""
        return message_id_text(self.ledger_id, self.entry_id, partition_index(self.partition), self.batch_index)


class MessageReader(Protocol):
    """Messages as they are stored, read without a subscription of ours: nothing is acknowledged."""

    def read(
        self, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
    ) -> Iterator[StoredMessage]:
        """Read each partition in `last` up to that position, inclusive; `after`: begin behind it, else at the earliest.

        Messages come in the order of the partition; what was trimmed is passed over. Raises UnavailableError when the
        broker stops answering.
        """
        ...

    def read_entries(self, partition: str, spans: Sequence[EntrySpan]) -> Iterator[StoredMessage]:
        """Read these entries of a partition, which ascend, and no others; what was trimmed is passed over.

        Raises UnavailableError when the broker stops answering.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A message to publish exactly once."""

    sequence_id: int  # ascends within a producer's name, and is the same at every try
    key: bytes | None
    payload: bytes
    properties: Mapping[str, str]
    delay_ms: int = 0  # consumers of a shared subscription get it no earlier

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        properties = sum(len(name) + len(value) for name, value in self.properties.items())
        return len(self.payload) + len(self.key or b"") + properties


class RequestSender(Protocol):
    """A producer on a request topic."""

    def send(self, key: bytes | None, payload: bytes) -> "Future[str]":
        """Put a request under way. The future is its message id, as Java prints it, once the request is durable.

        The future's UnavailableError: it may be stored or not. Raises UnavailableError: it was not sent.
        """
        ...

    def close(self) -> None:
        """Wait for what is under way, then disconnect. A second call does nothing."""
        ...


class TopicProperties(Protocol):
    """Properties of a topic without partitions, or of one partition: ManagedLedgerInfo.properties, by its broker."""

    def update(self, topic: str, properties: Mapping[str, str]) -> None:
        """Write properties; others stay. Raises UnavailableError (they may be written), RefusedError (no topic)."""
        ...

    def remove(self, topic: str, key: str) -> bool:
        """Remove one property, if it is there; False where there is no such topic. Raises as update."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class TrimFacts(Protocol):
    """What decides which ledgers a topic's broker drops. Every method raises UnavailableError, RefusedError."""

    def is_loaded(self, topic: str) -> bool:
        """Whether a broker has the topic loaded. Asking does not load it. UnavailableError: that can't be told."""
        ...

    def retention(self, topic: str) -> Retention:
        """Return the retention in force. None is in force where we may not ask for the brokers' default."""
        ...

    def internal_stats(self, topic: str) -> InternalStats:
        """Return internalStats of one partition or unpartitioned topic. A topic that is not loaded is loaded for it."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Bookies(Protocol):
    """The bookies of a cluster."""

    def registered(self) -> dict[str, str]:
        """Return the HTTP address ("": none) of each registered bookie, by its id in the metadata of ledgers.

        Read-only bookies are included; a registration that can't be read is left out. Raises UnavailableError.
        """
        ...

    def readable(
        self, urls: Sequence[str], entries: Sequence[tuple[int, int]], control: Callable[[], Sequence[tuple[int, int]]]
    ) -> list[bool | None]:
        """Return for each entry whether a bookie can read it; None: unknown. Raises only what `control` raises.

        False means "could not be read now": the entry is most likely gone, but that is no proof. It counts only from a
        bookie that could read a control entry both before and after; otherwise the fault may be the bookie's own.

        Args:
            urls: HTTP addresses of bookies.
            entries: (ledger id, entry id) of each.
            control: returns entries that certainly exist. It is called only if a bookie reports that it can't read an
                entry, because it asks brokers, which may wait for the same bookies.
        """
        ...

    def disk(self, url: str) -> BookieDisk:
        """Ask a bookie about its disk. Raises UnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class Pulsar:
    """One Pulsar cluster, as a command asks it."""

    admin: TopicAdmin
    reader: MessageReader


CHANGED = "the object has another ETag now"  # as an error of ObjectStore.delete


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

    def compares_etags(self) -> bool:
        """Whether delete() compares ETags. Finds it out once, with an object of its own; False where it may not."""
        ...

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Delete any number of keys; returns key -> error for those refused. An absent key is deleted already.

        etags: by key. A store that compares ETags keeps an object that has another one, with the error CHANGED.
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

        Raises UnavailableError where brokers do not answer, RefusedError where they do not return these policies.
        """
        ...
