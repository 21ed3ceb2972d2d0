"""The values that all modules share: requests, what we read about ledgers and owners, and verdicts.

Names are PIP-186's (PendingDeleteLedgerInfo, ledgerComponent, ledgerType) and Pulsar's own.
Times are integer milliseconds UTC; ledger ids are signed 64-bit; -1 means "none" only where a docstring says so.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class LedgerComponent(StrEnum):
    """What part of Pulsar wrote the ledger. The last three are ours: real brokers write them too.

    TRANSACTION_SNAPSHOT is no ledger: it is a message of one of the compacted topics in which brokers keep the ids of
    aborted transactions.
    """

    MANAGED_LEDGER = "MANAGED_LEDGER"
    MANAGED_CURSOR = "MANAGED_CURSOR"
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    COMPACTED_LEDGER = "COMPACTED_LEDGER"
    DELAYED_INDEX_BUCKET = "DELAYED_INDEX_BUCKET"
    TRANSACTION_SNAPSHOT = "TRANSACTION_SNAPSHOT"


class LedgerType(StrEnum):
    """Where the bytes are: BookKeeper (LEDGER), tiered storage (OFFLOAD_LEDGER), or a message of a compacted topic.

    COMPACTED_MESSAGE is ours, and goes with the component TRANSACTION_SNAPSHOT alone.
    """

    LEDGER = "LEDGER"
    OFFLOAD_LEDGER = "OFFLOAD_LEDGER"
    COMPACTED_MESSAGE = "COMPACTED_MESSAGE"


class LedgerState(StrEnum):
    """State in BookKeeper's own ledger metadata."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


class Outcome(StrEnum):
    """What became of a request. All but RETRY are final."""

    DELETED = "DELETED"
    ALREADY_GONE = "ALREADY_GONE"
    RETRY = "RETRY"
    DEAD_LETTER = "DEAD_LETTER"


class Reason(StrEnum):
    """Why an outcome was chosen; every reason to keep a ledger has its own name."""

    # deleted or gone
    UNREFERENCED = "UNREFERENCED"  # CLOSED, old enough, its owner's current list does not name it
    OWNER_GONE = "OWNER_GONE"  # CLOSED, old enough, and its owner does not exist any more
    NOT_FOUND = "NOT_FOUND"  # there is no such ledger or object (any more)
    DUPLICATE = "DUPLICATE"  # the same ledger was asked for twice in one batch, or at the same time (RETRY)

    # kept for now (RETRY)
    IN_USE = "IN_USE"  # its owner refers to it
    OWNER_UNREADABLE = "OWNER_UNREADABLE"  # the owner's znode, or its broker's answer, makes no sense: counts as in use
    BROKER_UNAVAILABLE = "BROKER_UNAVAILABLE"  # the brokers could not be asked about the owner: counts as in use
    OWNER_CHANGED = "OWNER_CHANGED"  # the owner changed again and again between our look and our delete
    OWNER_ABSENT_ONCE = "OWNER_ABSENT_ONCE"  # the owner seems gone; we look again later, to be sure
    UNREFERENCED_ONCE = "UNREFERENCED_ONCE"  # no znode version protects the delete; we look again later, to be sure
    LEDGER_UNREADABLE = "LEDGER_UNREADABLE"  # the ledger's metadata, or the object, could not be read or parsed
    LEDGER_CHANGED = "LEDGER_CHANGED"  # the ledger's metadata changed again and again between our look and our delete
    NOT_CLOSED = "NOT_CLOSED"  # OPEN or IN_RECOVERY: somebody may be writing or recovering it
    TOO_YOUNG = "TOO_YOUNG"  # it changed less than min_age ago; if it may not be named yet: the quarantine
    ABOVE_NEWEST = "ABOVE_NEWEST"  # newer than the newest ledger that its owner names: kept for the quarantine
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"  # ZooKeeper, the broker or the object store did not answer
    STORE_REFUSED = "STORE_REFUSED"  # we have no right to delete it (ACL, credentials)
    STILL_THERE = "STILL_THERE"  # the store said that it was deleted, and we found it afterwards
    TENANT_HELD = "TENANT_HELD"  # most known owners of its tenant are gone at once: a person must look first
    SOURCE_SHRANK = "SOURCE_SHRANK"  # its owner names far fewer ledgers than at our last look: a person must look first
    KEPT_AND_GONE = "KEPT_AND_GONE"  # we kept it as in use, and it was gone a moment later: the service stops
    OFFLOAD_IN_PROGRESS = "OFFLOAD_IN_PROGRESS"  # a broker may still be offloading it
    NOT_GUARDED = "NOT_GUARDED"  # nothing keeps the segments that topics need from being trimmed by a compaction
    OFFLOAD_UNCONFIRMED = "OFFLOAD_UNCONFIRMED"  # its list says it was offloaded, and we did not see both objects there
    PROOF_MISSING = "PROOF_MISSING"  # nothing that we can read proves whose object it is

    # refused for good (DEAD_LETTER)
    EMPTY_PAYLOAD = "EMPTY_PAYLOAD"
    NOT_JSON = "NOT_JSON"
    TOO_LARGE = "TOO_LARGE"  # more than service.max_request_bytes: it is not parsed
    WRONG_TYPE = "WRONG_TYPE"  # a field has another JSON type than PendingDeleteLedgerInfo's
    MISSING_FIELD = "MISSING_FIELD"
    BAD_LEDGER_ID = "BAD_LEDGER_ID"  # negative, or beyond 63 bits
    UNKNOWN_COMPONENT = "UNKNOWN_COMPONENT"
    UNKNOWN_LEDGER_TYPE = "UNKNOWN_LEDGER_TYPE"
    BAD_TOPIC_NAME = "BAD_TOPIC_NAME"
    BAD_OFFLOAD_CONTEXT = "BAD_OFFLOAD_CONTEXT"
    BAD_SNAPSHOT_CONTEXT = "BAD_SNAPSHOT_CONTEXT"
    NOT_PULSARS = "NOT_PULSARS"  # the ledger's own metadata does not say application=pulsar
    OTHER_OWNER = "OTHER_OWNER"  # the ledger's own metadata names another owner
    OTHER_COMPONENT = "OTHER_COMPONENT"  # the ledger's own metadata names another component
    OTHER_CLUSTER = "OTHER_CLUSTER"  # the object's own metadata names another Pulsar cluster (a shared bucket)
    DRIVER_NOT_SUPPORTED = "DRIVER_NOT_SUPPORTED"  # the offload driver does not speak S3
    STORE_NOT_ALLOWED = "STORE_NOT_ALLOWED"  # the endpoint or bucket is not on the allow-list
    REQUESTER_NOT_ALLOWED = "REQUESTER_NOT_ALLOWED"  # the namespace or component is not on the allow-list
    OTHER_TENANT = "OTHER_TENANT"  # a tenant's own request topic asked for another tenant's ledger
    ENCRYPTED = "ENCRYPTED"  # we have no key, and a request must not be encrypted
    CHUNK = "CHUNK"  # a part of a larger message; a request has no parts
    UNREADABLE = "UNREADABLE"  # its metadata, compression or lengths make no sense
    ABORTED_TRANSACTION = "ABORTED_TRANSACTION"  # its sender took it back
    OPEN_TRANSACTION = "OPEN_TRANSACTION"  # its sender has not said yet that it counts
    NOT_SHOWN = "NOT_SHOWN"  # the broker has the entry and shows it to nobody
    WRITTEN_OFF = "WRITTEN_OFF"  # an operator closed it by hand


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """MLDataFormats.OffloadContext: one upload of a ledger to tiered storage."""

    uuid: str
    complete: bool = True
    bookkeeper_deleted: bool = False
    timestamp_ms: int = 0
    driver_name: str = ""
    driver_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """A message of a compacted topic in the namespace of the topic that it is about.

    kind: that compacted topic's local name (a SnapshotKind). entry_id: the message's, in the request's ledger.
    """

    kind: str
    key: str
    entry_id: int


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """One request: PIP-186's PendingDeleteLedgerInfo, checked.

    managed_ledger: `tenant/ns/persistent/encodedName` (V1: `tenant/cluster/ns/persistent/encodedName`).
    cursor_name and schema_id are set for the components that need them and None otherwise. The cursor's name is in its
    encoded form, which is the name of its znode and stands in the ledger's `pulsar/cursor`.
    """

    managed_ledger: str
    component: LedgerComponent
    ledger_type: LedgerType
    ledger_id: int
    cursor_name: str | None = None
    schema_id: str | None = None
    offload_context: OffloadContext | None = None
    snapshot_context: SnapshotContext | None = None

    @property
    def part(self) -> str | None:
        """Return what tells it from other requests for the same ledger: an upload's uuid, or a message's entry."""
        if self.offload_context is not None:
            return self.offload_context.uuid
        return None if self.snapshot_context is None else f"entry {self.snapshot_context.entry_id}"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a message is not worked off as a request: in a name, and in words for the operator."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """What we need of BookKeeper's LedgerMetadataFormat. ctime_ms is None where it holds no creation time."""

    state: LedgerState
    length_bytes: int
    last_entry_id: int
    ctime_ms: int | None
    custom_metadata: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """A ledger as we read its znode. metadata is None where it could not be parsed.

    last_change_ms: the latest time that the znode or the metadata names (udfs.ledger_facts).
    """

    ledger_id: int
    path: str
    version: int
    metadata: LedgerMetadata | None
    last_change_ms: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as its bucket describes it. content: None where we asked for its head only.

    user_metadata: keys in lower case. version_id: "" in a bucket that never had versions. etag: names the content, as
    the store wrote it.
    """

    size_bytes: int
    last_modified_ms: int
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    version_id: str = ""
    content: bytes | None = None
    etag: str = ""


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """Parts of an object whose upload was neither completed nor aborted: stored and paid for, but in no listing."""

    key: str
    upload_id: str
    initiated_ms: int


@dataclass(frozen=True, slots=True)
class OffloadFacts:
    """What a bucket holds of one offload attempt, `<uuid>-ledger-<id>`.

    data: None where absent; also where a readable index stands for it (index_only), as it was not looked for.
    metadata: the ledger's, as the index embeds it; None where there is no readable index, index_detail says why.
    ledger: the ledger's as BookKeeper has it, asked for only where parts are all that is stored; None where BookKeeper
    has no such ledger, or where ledger_unread says why we don't know.
    """

    data: StoredObject | None
    index: StoredObject | None
    metadata: LedgerMetadata | None = None
    index_detail: str = ""
    data_bytes: int = 0
    index_only: bool = False
    uploads: tuple[UnfinishedUpload, ...] = ()
    ledger: LedgerMetadata | None = None
    ledger_unread: str = "BookKeeper was not asked for its ledger"

    @property
    def are_parts_only(self) -> bool:
        """Whether parts of unfinished uploads are all that is stored: nothing of it carries any metadata."""
        return bool(self.uploads) and self.data is None and self.index is None


class Presence(StrEnum):
    """Whether the owner exists. GONE needs both ZooKeeper and the broker to say so."""

    PRESENT = "PRESENT"
    GONE = "GONE"
    UNREADABLE = "UNREADABLE"


@dataclass(frozen=True, slots=True)
class BrokerView:
    """What the broker that owns a topic knows of it (admin API, internalStats).

    cursors: encoded cursor name -> cursor ledger id (-1: none). compacted_ledger: the compacted ledger that the broker
    reads from (-1: none); compacted_by_cursor: the one that its cursor __compaction names, to which the broker returns
    after a crash. is_loaded: False where no broker has the topic loaded, and so none knows more than that it exists.
    is_unavailable: of an UNREADABLE view: the brokers could not be asked, which says nothing about the topic. Where
    brokers are not asked (by configuration), callers have None instead of a view.
    """

    presence: Presence
    ledgers: tuple[int, ...] = ()
    cursors: Mapping[str, int] = field(default_factory=dict)
    compacted_ledger: int = -1
    compacted_by_cursor: int = -1
    detail: str = ""
    is_loaded: bool = True
    is_unavailable: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """How many ledgers an owner's two sources named; -1: the source was not asked, or knows no such owner.

    listed: by ZooKeeper. remembered: by the broker.
    """

    listed: int = -1
    remembered: int = -1


@dataclass(frozen=True, slots=True)
class Reference:
    """All that one owner refers to, as we read it at one moment, and the znode versions that it rests on.

    key: names the owner (udfs.references.key_of). checks: (path, version) of every znode that we read and that exists;
    a delete is allowed only while all of them still have that version. in_use: ids of the ledgers that the owner needs
    in BookKeeper, ascending, as array('q') (8 bytes each: every worker gets a copy). given_up: ids of listed ledgers
    that it needs in tiered storage only, likewise. newest_id: the highest id that the owner's znode names, -1 if it
    names none. offloads: (ledger id, uuid) of the uploads that it needs in tiered
    storage. detail: what could not be read, where presence is UNREADABLE; is_unavailable: that was the brokers, which
    could not be asked.
    """

    key: str
    presence: Presence
    read_at_ms: int
    checks: tuple[tuple[str, int], ...] = ()
    in_use: "array[int]" = field(default_factory=lambda: array("q"))
    newest_id: int = -1
    offloads: frozenset[tuple[int, str]] = frozenset()
    detail: str = ""
    counts: Counts = Counts()
    given_up: "array[int]" = field(default_factory=lambda: array("q"))
    is_unavailable: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a request now, and why.

    DELETED means "delete it". Whether it was deleted we know only when we have looked for it again.
    """

    outcome: Outcome
    reason: Reason
    detail: str = ""
    wait_ms: int = 0  # RETRY for a reason that ends by itself: after this time; 0: not known
