"""Protocols of the services that the program uses, in the program's own terms.

Every port has an adapter that is named by its technology and a fake in streaming.adapters.memory; both pass the same
tests (tests/contract). streaming/clients.py chooses the adapters. "Unknown" is an exception (UnavailableError), never
a default.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from udfs.space.space_report import RecoverySettings

_LEDGER_LEAF = re.compile(r"/\d{2,4}/L\d{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Znode:
    """A znode as it was read."""

    data: bytes
    version: int  # of the data
    ctime_ms: int
    mtime_ms: int
    acl_version: int = 0  # counts changes of the ACL; 0: it has the ACL of its creation
    is_ephemeral: bool = False  # ends with the session that created it


@dataclass(frozen=True, slots=True)
class Unreadable:
    """This path could not be read (rights, size), although other paths could."""

    detail: str


@dataclass(frozen=True, slots=True)
class GuardedDelete:
    """Delete all of `deletes`, but only if all of `checks` and `deletes` still have their versions."""

    checks: tuple[tuple[str, int], ...]  # (path, version)
    deletes: tuple[tuple[str, int], ...]  # (path, version)


class GuardStatus(StrEnum):
    """The outcome of a GuardedDelete. Except for DELETED and UNKNOWN nothing was changed."""

    DELETED = "DELETED"  # all of them, atomically
    CHECK_FAILED = "CHECK_FAILED"  # path: a checked znode changed or is gone
    GONE = "GONE"  # path: a znode to be deleted does not exist
    CHANGED = "CHANGED"  # path: a znode to be deleted has another version
    NOT_EMPTY = "NOT_EMPTY"  # path: a znode to be deleted has children
    REFUSED = "REFUSED"  # no right to delete
    UNKNOWN = "UNKNOWN"  # connection lost: all or nothing happened; check


@dataclass(frozen=True, slots=True)
class GuardResult:
    """The outcome of a GuardedDelete."""

    status: GuardStatus
    path: str = ""  # of the znode at which it failed


class SweepStore(Protocol):
    """ZooKeeper for the sweep: bulk reads, and deletes that contain their proof.

    adapters.zookeeper.store.ZooKeeperStore; in a dry run sweep.dry_run.DryRunStore.
    """

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Read paths in order; None: does not exist. Raises UnavailableError if any was not answered."""
        ...

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        """List children of each path in order; None: does not exist. Raises UnavailableError."""
        ...

    def delete_guarded(self, batches: Sequence[GuardedDelete]) -> list[GuardResult]:
        """Run each batch as one transaction, pipelined, and return its result, in order. Never raises for a batch."""
        ...

    def acl_of(self, path: str) -> bytes | None:
        """Return a znode's ACL in a form that create() takes; None: does not exist. Raises what create does."""
        ...


class MetadataStore(SweepStore, Protocol):
    """ZooKeeper for the rest of the service: the sweep's methods, and znodes of our own."""

    # whether we have credentials; then a znode is closed to all other clients unless create() gets an ACL
    is_identified: bool

    def create(
        self, path: str, data: bytes, *, acl: bytes | None = None, parents: bool = False, ephemeral: bool = False
    ) -> bool:
        """Create a znode; False if it exists. Raises UnavailableError, RefusedError.

        Args:
            path: of the znode.
            data: its content.
            acl: in the form that acl_of returns.
            parents: also create missing ancestors, with the same ACL and without data.
            ephemeral: the znode ends with the session.
        """
        ...

    def close_to_others(self, path: str) -> bool:
        """Set the ACL that create() sets on a znode of our own; False if it is gone. Raises what delete does."""
        ...

    def set_data(self, path: str, data: bytes, *, version: int = -1) -> int | None:
        """Write data and return the new version; None: it has another version or does not exist. Raises as create."""
        ...

    def delete(self, path: str) -> bool:
        """Delete a znode of our own; False if it was gone. Raises SafetyError for a ledger's, else as create."""
        ...

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        """Call back once, in another thread, when the session's ephemeral znodes may be gone."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


@dataclass(frozen=True, slots=True)
class ChangedPaths:
    """Paths that ZooKeeper reported as created, changed or deleted.

    The set may contain unchanged paths and miss changed ones.
    """

    paths: frozenset[str] = frozenset()
    has_gap: bool = False  # changes since the previous call may be missing
    is_watching: bool = False  # ZooKeeper reports changes from now on


class ChangeHints(Protocol):
    """Reports changes in ZooKeeper, soon and without a promise: a caller that must know compares the znodes."""

    def take(self) -> ChangedPaths:
        """Return the changes since the last call. Never raises: without an answer of ZooKeeper there are none."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


def refuse_ledgers(path: str) -> None:
    """Raise SafetyError if path has the form of a ledger's znode, which only delete_guarded may delete.

    Every MetadataStore calls this before it deletes a znode or changes its ACL.
    """
    if _LEDGER_LEAF.search(path):
        raise SafetyError(f"{path} is a ledger: it may only be deleted together with a check of its owner")


class Broker(Protocol):
    """The brokers' admin API, as a second witness next to the metadata store. No method loads a topic."""

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        """Return what brokers know of each topic, in order. Never raises: UNREADABLE is a view.

        Args:
            managed_ledgers: of the topics.
            existing: topics whose existence the caller knows; brokers are asked only whether these are loaded.
        """
        ...

    def layout_views(self, segments: Sequence[str]) -> list[BrokerView]:
        """Return whether the layouts that brokers read name each segment (PRESENT) or not (GONE), in order.

        Loaded segments are looked up as well. Never raises: UNREADABLE is a view.
        """
        ...

    def schema_views(self, schema_ids: Sequence[str]) -> list[BrokerView]:
        """Ask for each schema's existence, in order. Never raises."""
        ...

    def require_answers(self) -> int:
        """Ask every running broker which topics it has loaded, and return how many brokers run.

        Raises ForbiddenError if a broker refuses, UnavailableError if a broker does not answer.
        """
        ...


class SegmentRemover(Protocol):
    """Lets brokers delete segments of scalable topics. A broker does not check whether a layout names the segment."""

    def delete(self, segment: str, may_send: Callable[[], bool]) -> bool:
        """Let the broker that owns a segment delete it; False if `may_send` forbade it and no request was sent.

        The request is never repeated. Raises UnavailableError if no broker confirmed the deletion (it may happen, even
        later), RefusedError, with advice, if a broker refused or failed, perhaps after it deleted a part. A broker
        refuses while clients use the segment.

        Args:
            segment: its managed ledger, `tenant/ns/segment/topic/from-to-id`.
            may_send: called right before each request: brokers redirect to the owner.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class LoadedTopicStats(Protocol):
    """The brokers' knowledge of the topics that they have loaded. No method loads a topic."""

    def internal_stats(self, managed_ledgers: Sequence[str]) -> list[InternalStats | Unreadable | None]:
        """Return internalStats of each topic (`tenant/ns/persistent/encoded`), in order. Never raises.

        None: no broker has the topic loaded. Unreadable: it is unknown whether one has, or its broker did not answer.
        """
        ...


class TopicAdmin(Protocol):
    """Pulsar's admin API: topics, their policies, and how far they have been read.

    Topics may be named in any form that udfs.paths takes. Every method raises UnavailableError if no broker answered
    (the request may have been carried out), and RefusedError, with advice, if a broker refused. Repeating a call is
    harmless: an object that exists already is not an error.
    """

    def check_health(self) -> None:
        """Check that a broker can publish and read: return nothing, or raise."""
        ...

    def clusters(self) -> list[str]:
        """Return the names of the clusters that this cluster knows, including its own."""
        ...

    def metadata_stores(self) -> Mapping[str, str]:
        """Return setting -> address of the metadata stores of the broker that answers, as far as they are set."""
        ...

    def tenants(self) -> list[str]:
        """Return the names of all tenants."""
        ...

    def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant as `tenant/ns`; none if the tenant does not exist."""
        ...

    def partitioned_topics(self, namespace: str) -> list[str]:
        """Return the full names of the partitioned topics of `tenant/ns`; none if it does not exist."""
        ...

    def ensure_namespace(self, topic: str, *, with_tenant: bool = True) -> None:
        """Create the topic's namespace if it is missing, and its tenant, too, or refuse if the tenant is missing."""
        ...

    def forbid_topic_creation(self, namespace: str) -> bool:
        """Let brokers create no topic of `tenant/ns` for a client that connects, unless a policy says otherwise.

        Returns False if the broker does not know the namespace, which may be new.
        """
        ...

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions; 0: the topic is not partitioned, None: it does not exist."""
        ...

    def create_partitioned_topic(self, topic: str, partitions: int) -> bool:
        """Create the topic and its partitions; False if it exists."""
        ...

    def create_topic(self, topic: str) -> bool:
        """Create a topic that is not partitioned; False if it exists."""
        ...

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        """Create the durable subscription on every partition, at the earliest message; an existing one is unchanged.

        Raises RefusedError if the topic does not exist, BusyError while the subscription's cursor is being moved.
        """
        ...

    def expire_messages(self, topic: str, subscription: str, *, older_than_seconds: int) -> None:
        """Skip unread messages of the subscription that are older; retention decides how long they stay."""
        ...

    def last_positions(self, topic: str) -> dict[str, Position]:
        """Return partition (full name) -> position of its newest message, read or not; entry -1: it has none."""
        ...

    def reports_last_message(self, partition: str, patience_seconds: float) -> bool:
        """Return whether the broker returns the partition's last message in time. Raises UnavailableError."""
        ...

    def position_at(self, partition: str, publish_ms: int) -> Position:
        """Return the position, or an earlier one, of a partition's first message published at publish_ms or later."""
        ...

    def internal_stats(self, topic: str) -> InternalStats:
        """Return internalStats of a partition or unpartitioned topic. Raises UnavailableError for an unknown form."""
        ...

    def retention(self, topic: str) -> tuple[int, int]:
        """Return the retention in force as (minutes, megabytes); -1: without limit."""
        ...

    def set_retention(self, topic: str, *, minutes: int, megabytes: int) -> None:
        """Keep acknowledged messages within these limits; -1: without limit."""
        ...

    def message_ttl(self, topic: str) -> int:
        """Return the seconds in force after which unread messages expire; 0: never."""
        ...

    def max_message_bytes(self, topic: str) -> int:
        """Return the topic's own limit for the size of a message; 0: it has none, or we may not read it."""
        ...

    def set_message_ttl(self, topic: str, *, seconds: int) -> None:
        """Let unread messages expire after this time; 0: never."""
        ...

    def deduplication(self, topic: str) -> bool:
        """Return whether, by the policy in force, the broker drops messages whose sequence id is not new."""
        ...

    def deduplicates(self, topic: str) -> bool:
        """Return whether all partitions of the topic deduplicate now; a policy alone does not ensure that."""
        ...

    def set_deduplication(self, topic: str, *, enabled: bool) -> None:
        """Let the broker drop messages whose sequence id is not new."""
        ...

    def backlog_quota(self, topic: str) -> Mapping[str, Any]:
        """Return quotas by type (destination_storage, message_age): limitSize, limitTime (-1: none), policy."""
        ...

    def set_backlog_quota_unlimited(self, topic: str) -> None:
        """Let brokers drop no unread messages and refuse no new ones, whatever the backlog is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message in its partition."""

    partition: str  # its full topic name
    ledger_id: int
    entry_id: int
    batch_index: int  # -1: it was not sent in a batch
    publish_ms: int
    key: str
    payload: bytes
    properties: Mapping[str, str]

    @property
    def id(self) -> str:
        """The message id, as Java prints it."""
        return message_id_text(self.ledger_id, self.entry_id, partition_index(self.partition), self.batch_index)


class MessageReader(Protocol):
    """Reads stored messages without a subscription of ours, and acknowledges none."""

    def read(
        self, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
    ) -> Iterator[StoredMessage]:
        """Read partition after partition, the messages of each in order; messages that were trimmed are left out.

        Raises UnavailableError if the broker stops answering.

        Args:
            last: partition -> the position up to which it is read, inclusive.
            after: partition -> the position after which the read starts; without it, at the earliest message.
        """
        ...

    def read_entries(self, partition: str, spans: Sequence[EntrySpan]) -> Iterator[StoredMessage]:
        """Read exactly these entries of a partition, in ascending order, without those that were trimmed.

        Raises UnavailableError if the broker stops answering.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A message to publish exactly once."""

    # ascends within a producer's name, and is the same at every try; None: the client numbers the messages after the
    # last one that the broker has of this producer
    sequence_id: int | None
    key: bytes | None
    payload: bytes
    properties: Mapping[str, str]
    delay_ms: int = 0  # consumers of a shared subscription get it after this delay at the earliest

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        properties = sum(len(name) + len(value) for name, value in self.properties.items())
        return len(self.payload) + len(self.key or b"") + properties


class RequestSender(Protocol):
    """A producer on a request topic."""

    def send(self, key: bytes | None, payload: bytes) -> "Future[str]":
        """Send a request. The future returns its message id, as Java prints it, once the request is durable.

        If the future raises UnavailableError, the request may be stored or not; if the call raises it, it was not sent.
        """
        ...

    def close(self) -> None:
        """Wait for pending requests, then disconnect. A second call does nothing."""
        ...


class TopicProperties(Protocol):
    """Changes the properties (ManagedLedgerInfo.properties) of an unpartitioned topic or a partition, by its broker."""

    def update(self, topic: str, properties: Mapping[str, str]) -> None:
        """Write properties; others stay. Raises UnavailableError (they may be written), RefusedError (no topic)."""
        ...

    def remove(self, topic: str, key: str) -> bool:
        """Remove a property if it exists; False if the topic does not exist. Raises what update does."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class TrimFacts(Protocol):
    """Facts that decide which ledgers a topic's broker drops. Every method raises UnavailableError, RefusedError."""

    def is_loaded(self, topic: str) -> bool:
        """Return whether a broker has loaded the topic; never loads it. Raises UnavailableError if that is unknown."""
        ...

    def retention(self, topic: str) -> Retention:
        """Return the retention in force. A brokers' default that we may not read counts as no retention."""
        ...

    def internal_stats(self, topic: str) -> InternalStats:
        """Return internalStats of a partition or unpartitioned topic. Loads the topic if no broker has loaded it."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class RetentionPolicies(Protocol):
    """Retention by the level that sets it, and a broker's settings.

    Thread-safe. Every method raises UnavailableError, RefusedError.
    """

    def of_topic(self, topic: str) -> Retention | None:
        """Return the policy of the topic itself, or of the partitioned topic that it is part of; None: it has none.

        The broker reads the policy from the namespace's `__change_events`, and loads or creates that topic if needed.
        """
        ...

    def of_namespace(self, namespace: str) -> Retention | None:
        """Return the policy of a namespace; None: it has none."""
        ...

    def of_brokers(self) -> Retention:
        """Return the default in a broker's configuration."""
        ...

    def recovery(self) -> RecoverySettings:
        """Return what the broker that answers does about data that it can't read."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


PlacedEntry = tuple[int, int, Sequence[str]]
"""Ledger id, entry id, and the ids of the bookies that may store the entry."""


@dataclass(frozen=True, slots=True)
class StoredAnswers:
    """The answers of bookies about entries."""

    answers: list[bool | None]  # for each entry, whether a bookie stores it; None: unknown
    faults: Mapping[str, str]  # bookie id -> why its answers are missing, or do not count


class Bookies(Protocol):
    """The bookies of a cluster."""

    def registered(self) -> dict[str, str]:
        """Return the HTTP address ("": none) of each registered bookie, by its id in the metadata of ledgers.

        Read-only bookies are included; a registration that can't be read is left out. Raises UnavailableError.
        """
        ...

    def read_only(self) -> frozenset[str]:
        """Return the ids of the registered bookies that take no new entries. Raises UnavailableError."""
        ...

    def readable(
        self, urls: Sequence[str], entries: Sequence[tuple[int, int]], control: Callable[[], Sequence[tuple[int, int]]]
    ) -> list[bool | None]:
        """Return for each entry whether a bookie can read it; None: unknown. Raises only what `control` raises.

        False means "could not be read now": the entry is most likely gone, but that is no proof. A bookie's failure to
        read an entry counts only if the bookie could read a control entry both before and after; otherwise the fault
        may be the bookie's own.

        Args:
            urls: HTTP addresses of bookies.
            entries: (ledger id, entry id) of each.
            control: returns entries that certainly exist. It is called only if a bookie reports that it can't read an
                entry, because it asks brokers, which may wait for the same bookies.
        """
        ...

    def stored(
        self,
        entries: Sequence[PlacedEntry],
        control: Callable[[frozenset[str]], Iterable[PlacedEntry]],
    ) -> StoredAnswers:
        """Return for each entry whether a bookie stores it, and why others are unknown. The ledger needs no metadata.

        False means that each of the bookies answered that it has no such entry, and that it stores another entry of
        this cluster: at its address, another cluster's bookie may answer. Raises UnavailableError if it could not be
        read which bookies are registered.

        Args:
            entries: to ask about.
            control: gets ids of bookies that answered that they do not store an entry, and returns entries of existing
                ledgers that these bookies should store.
        """
        ...

    def disk(self, url: str) -> BookieDisk:
        """Ask a bookie about its disk and its garbage collection.

        Raises UnavailableError if it does not return its metrics; other questions that it does not answer are `faults`.
        """
        ...

    def collect(self, url: str, *, compact: bool) -> None:
        """Let a bookie drop deleted ledgers, and remove entry logs without live entries; it does so after this returns.

        Raises UnavailableError (it may do so or not), and RefusedError with advice, also if the bookie is so old that
        it would compact without being asked to.

        Args:
            url: its HTTP address.
            compact: also rewrite the entry logs whose live share is less than majorCompactionThreshold.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pulsar:
    """A Pulsar cluster, for a command."""

    admin: TopicAdmin
    reader: MessageReader


CHANGED = "the object has another ETag now"  # an error in the result of ObjectStore.delete


class ObjectStore(Protocol):
    """A bucket of tiered storage.

    Every method raises UnavailableError if the store did not answer (the request may have been carried out), and
    RefusedError if it refused: no rights, expired credentials, no such bucket. A missing bucket is never reported as a
    bucket without the object.
    """

    def read_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read small objects with their content, in order; None: does not exist."""
        ...

    def head_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Describe objects, in order; None: does not exist."""
        ...

    def compares_etags(self) -> bool:
        """Return whether delete() compares ETags. Tests it once, with a test object; False if it may not store one."""
        ...

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Delete any number of keys; return key -> error for refused keys. A missing key counts as deleted.

        In a bucket with versions a delete marker hides the object; its bytes stay until a lifecycle rule removes them.

        Args:
            keys: of the objects.
            etags: by key. A store that compares ETags keeps an object that has another ETag, with the error CHANGED.
        """
        ...

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that exist now."""
        ...

    def list_keys(self, prefix: str = "") -> Iterator[tuple[str, int, int]]:
        """Yield (key, size in bytes, last modified ms) of every object, by key."""
        ...

    def unfinished_uploads(self, keys: Sequence[str]) -> list[UnfinishedUpload]:
        """Return uploads to any of the keys that were started and neither completed nor aborted."""
        ...

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> Mapping[str, str]:
        """Abort uploads and delete their parts; return key -> error if refused. A missing upload counts as aborted."""
        ...

    def undelete(self, keys: Sequence[str]) -> set[str]:
        """Remove the delete markers that hide the keys; return the keys that exist afterwards."""
        ...


class OffloadConfiguration(Protocol):
    """The brokers' configuration for offloading."""

    def cluster_name(self) -> str:
        """Return the name of this Pulsar cluster, as brokers write it into objects; "": unknown.

        Raises UnavailableError.
        """
        ...

    def offload_policies(self, namespace: str) -> Mapping[str, str]:
        """Return the offload policies of `tenant/ns`; empty if it has none or does not exist.

        Raises UnavailableError if brokers do not answer, RefusedError if they do not return these policies.
        """
        ...
