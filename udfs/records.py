"""The values that all modules share: requests, facts about ledgers and owners, and verdicts.

Names are PIP-186's (PendingDeleteLedgerInfo, ledgerComponent, ledgerType) and Pulsar's own.
Times are integer milliseconds UTC; ledger ids are signed 64-bit; -1 means "none" only where a comment documents it.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class LedgerComponent(StrEnum):
    """The part of Pulsar that wrote the ledger. PIP-186 defines only the first three."""

    MANAGED_LEDGER = "MANAGED_LEDGER"
    MANAGED_CURSOR = "MANAGED_CURSOR"
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    COMPACTED_LEDGER = "COMPACTED_LEDGER"
    DELAYED_INDEX_BUCKET = "DELAYED_INDEX_BUCKET"
    # no ledger, but a message of one of the compacted topics in which brokers keep the ids of aborted transactions
    TRANSACTION_SNAPSHOT = "TRANSACTION_SNAPSHOT"
    # a whole segment of a scalable topic (Pulsar 5.0) that no layout names: its list, its cursors, and their ledgers
    SEGMENT = "SEGMENT"


# processed only if safety.allowed_components names them: their deletes go through brokers, not through a transaction
ONLY_IF_NAMED = frozenset({LedgerComponent.TRANSACTION_SNAPSHOT, LedgerComponent.SEGMENT})


class LedgerType(StrEnum):
    """The storage that holds the bytes."""

    LEDGER = "LEDGER"  # BookKeeper
    OFFLOAD_LEDGER = "OFFLOAD_LEDGER"  # tiered storage
    COMPACTED_MESSAGE = "COMPACTED_MESSAGE"  # ours: a message of a compacted topic; TRANSACTION_SNAPSHOT only
    SEGMENT = "SEGMENT"  # ours: all ledgers of a segment, which a broker deletes with it; SEGMENT only


class LedgerState(StrEnum):
    """State in BookKeeper's own ledger metadata."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


class Outcome(StrEnum):
    """The result of processing a request once. All but RETRY are final."""

    DELETED = "DELETED"
    ALREADY_GONE = "ALREADY_GONE"
    RETRY = "RETRY"
    DEAD_LETTER = "DEAD_LETTER"


class Reason(StrEnum):
    """Why an outcome was chosen; every reason to keep a ledger has its own name."""

    # deleted or gone
    UNREFERENCED = "UNREFERENCED"  # CLOSED, or OPEN and quiet; old enough; its owner's current list does not name it
    OWNER_GONE = "OWNER_GONE"  # CLOSED, or OPEN and quiet; old enough; its owner does not exist any more
    SEGMENT_UNNAMED = "SEGMENT_UNNAMED"  # no layout names its segment
    NOT_FOUND = "NOT_FOUND"  # there is no such ledger or object (any more)
    # ALREADY_GONE: another request in the batch deleted it; RETRY: another request for it was still being processed
    DUPLICATE = "DUPLICATE"

    # kept for now (RETRY)
    IN_USE = "IN_USE"  # its owner refers to it
    OWNER_UNREADABLE = "OWNER_UNREADABLE"  # the owner's znode or its broker's answer is unreadable: counts as in use
    OWNER_HIDDEN = (
        "OWNER_HIDDEN"  # its broker does not show which ledgers it knows (a loaded segment): counts as in use
    )
    BROKER_UNAVAILABLE = "BROKER_UNAVAILABLE"  # the brokers could not be asked about the owner: counts as in use
    OWNER_CHANGED = "OWNER_CHANGED"  # the owner changed again and again between our read and our delete
    OWNER_ABSENT_ONCE = "OWNER_ABSENT_ONCE"  # the owner seems gone; a second check later has to confirm it
    UNREFERENCED_ONCE = "UNREFERENCED_ONCE"  # no znode version protects the delete; a second check has to confirm it
    LEDGER_UNREADABLE = "LEDGER_UNREADABLE"  # the ledger's metadata, or the object, could not be read or parsed
    LEDGER_CHANGED = "LEDGER_CHANGED"  # the ledger's metadata changed again and again between our read and our delete
    NOT_CLOSED = "NOT_CLOSED"  # OPEN or IN_RECOVERY: a client may be writing or recovering it
    TOO_YOUNG = "TOO_YOUNG"  # it changed less than min_age ago (less than the quarantine, if a broker may yet name it)
    ABOVE_NEWEST = "ABOVE_NEWEST"  # newer than the newest ledger that its owner names: kept for the quarantine
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"  # ZooKeeper, the broker or the object store did not answer
    STORE_REFUSED = "STORE_REFUSED"  # we have no right to delete it (ACL, credentials)
    STILL_THERE = "STILL_THERE"  # the store reported a successful delete, and we found it afterwards
    # most owners of its tenant are gone, or some ledgers of its tenant that were in use: an operator must check first
    TENANT_HELD = "TENANT_HELD"
    SOURCE_SHRANK = "SOURCE_SHRANK"  # its owner names far fewer ledgers than when last read: an operator must check
    KEPT_AND_GONE = "KEPT_AND_GONE"  # we kept it as in use, and it was gone a moment later: the service stops
    OFFLOAD_IN_PROGRESS = "OFFLOAD_IN_PROGRESS"  # a broker may still be offloading it
    NOT_GUARDED = "NOT_GUARDED"  # no guard keeps the segments that topics need from being trimmed after a compaction
    OFFLOAD_UNCONFIRMED = "OFFLOAD_UNCONFIRMED"  # its list names it as offloaded, and we did not see both objects
    SEGMENT_AHEAD = "SEGMENT_AHEAD"  # no layout names its segment, but the topic's next split may take it over
    # a broker would delete, with the segment, what may be in use (a schema) or what `undo` could not restore
    NOT_REMOVABLE = "NOT_REMOVABLE"
    PROOF_MISSING = "PROOF_MISSING"  # nothing that we can read proves which owner and cluster the object belongs to

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
    NOT_PULSARS = "NOT_PULSARS"  # the ledger's own metadata does not contain application=pulsar
    OTHER_OWNER = "OTHER_OWNER"  # the ledger's own metadata names another owner
    OTHER_COMPONENT = "OTHER_COMPONENT"  # the ledger's own metadata names another component
    OTHER_CLUSTER = "OTHER_CLUSTER"  # the object's own metadata names another Pulsar cluster (a shared bucket)
    DRIVER_NOT_SUPPORTED = "DRIVER_NOT_SUPPORTED"  # the offload driver does not speak S3
    STORE_NOT_ALLOWED = "STORE_NOT_ALLOWED"  # the endpoint or bucket is not on the allow-list
    REQUESTER_NOT_ALLOWED = "REQUESTER_NOT_ALLOWED"  # the namespace or component is not on the allow-list
    OTHER_TENANT = "OTHER_TENANT"  # a request on a tenant's own request topic names another tenant's ledger
    ENCRYPTED = "ENCRYPTED"  # we have no key, and a request must not be encrypted
    CHUNK = "CHUNK"  # a part of a larger message; a request has no parts
    UNREADABLE = "UNREADABLE"  # its metadata, compression or lengths make no sense
    ABORTED_TRANSACTION = "ABORTED_TRANSACTION"  # its sender aborted the transaction
    OPEN_TRANSACTION = "OPEN_TRANSACTION"  # its sender has not committed the transaction yet
    NOT_SHOWN = "NOT_SHOWN"  # the broker has the entry, and returns it by none of its interfaces
    WRITTEN_OFF = "WRITTEN_OFF"  # an operator closed the dead letter by hand


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """A message about a topic, in a compacted topic of the same namespace."""

    kind: str  # the compacted topic's local name (a SnapshotKind)
    key: str
    entry_id: int  # the message's entry in the request's ledger


WHOLE_SEGMENT = "segment"  # PendingDelete.part of a request for a segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelete:
    """One request: PIP-186's PendingDeleteLedgerInfo, checked."""

    managed_ledger: str  # `tenant/ns/persistent/encodedName` (udfs.paths has the forms of V1 names and segments)
    component: LedgerComponent
    ledger_type: LedgerType
    ledger_id: int  # of a SEGMENT: one of its ledgers; a segment that does not name it is another of the same name
    cursor_name: str | None = None  # MANAGED_CURSOR only: the encoded form, as in its znode and in `pulsar/cursor`
    schema_id: str | None = None  # SCHEMA_STORAGE only
    offload_context: OffloadContext | None = None
    snapshot_context: SnapshotContext | None = None

    @property
    def part(self) -> str | None:
        """Return what distinguishes requests for the same ledger: an upload's uuid, a message's entry, or `segment`."""
        if self.offload_context is not None:
            return self.offload_context.uuid
        if self.ledger_type is LedgerType.SEGMENT:
            return WHOLE_SEGMENT
        return None if self.snapshot_context is None else f"entry {self.snapshot_context.entry_id}"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a message is not processed as a request."""

    reason: Reason
    detail: str  # for the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """The fields that we use of BookKeeper's LedgerMetadataFormat."""

    state: LedgerState
    length_bytes: int
    last_entry_id: int
    ctime_ms: int | None  # None: the metadata contains no creation time
    custom_metadata: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """A ledger as its znode describes it."""

    ledger_id: int
    path: str
    version: int
    metadata: LedgerMetadata | None  # None: it could not be parsed
    last_change_ms: int  # the latest time that the znode or the metadata names (udfs.verdicts.ledger_facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object as its bucket describes it."""

    size_bytes: int
    last_modified_ms: int
    user_metadata: Mapping[str, str] = field(default_factory=dict)  # keys in lower case
    version_id: str = ""  # "": the bucket never had versions
    content: bytes | None = None  # None: only its head was requested
    etag: str = ""  # identifies the content, in the store's spelling


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """Parts of an object whose upload was neither completed nor aborted: stored and paid for, but never listed."""

    key: str
    upload_id: str
    initiated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadFacts:
    """The content of a bucket for one offload attempt, `<uuid>-ledger-<id>`."""

    data: StoredObject | None  # None: absent, or not requested because a readable index exists (index_only)
    index: StoredObject | None
    metadata: LedgerMetadata | None = None  # embedded in the index; None: there is no readable index
    index_detail: str = ""  # why there is no readable index
    data_bytes: int = 0
    index_only: bool = False
    uploads: tuple[UnfinishedUpload, ...] = ()
    # BookKeeper's metadata of the ledger, read only if are_parts_only; None: BookKeeper has no such ledger, or
    # ledger_unread is not empty
    ledger: LedgerMetadata | None = None
    ledger_unread: str = "BookKeeper was not asked for its ledger"  # why `ledger` is not known; "": it is known

    @property
    def are_parts_only(self) -> bool:
        """Whether only parts of unfinished uploads are stored. Parts carry no metadata."""
        return bool(self.uploads) and self.data is None and self.index is None


class Presence(StrEnum):
    """Whether the owner exists."""

    PRESENT = "PRESENT"
    GONE = "GONE"  # both ZooKeeper and the broker report that it does not exist
    UNREADABLE = "UNREADABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A topic as the broker that owns it describes it (admin API, internalStats).

    Callers have None instead of a view if the configuration forbids asking brokers.
    """

    presence: Presence
    ledgers: tuple[int, ...] = ()
    cursors: Mapping[str, int] = field(default_factory=dict)  # encoded cursor name -> cursor ledger id (-1: none)
    compacted_ledger: int = -1  # the compacted ledger that the broker reads from (-1: none)
    # the compacted ledger that the cursor __compaction names, to which the broker returns after a crash (-1: none)
    compacted_by_cursor: int = -1
    detail: str = ""
    is_loaded: bool = True  # False: no broker has the topic loaded, so brokers know no more than that it exists
    # of an UNREADABLE view: the brokers could not be asked, so this is no evidence about the topic
    is_unavailable: bool = False
    # the topic is loaded, and its broker does not show the ledgers and cursors that it knows (a segment)
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """How many ledgers an owner's two sources named; -1: the source was not asked, or knows no such owner."""

    listed: int = -1  # by ZooKeeper
    remembered: int = -1  # by the broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Everything that one owner refers to, as read at one moment, and the znode versions that this is based on."""

    key: str  # names the owner (udfs.owners.references.key_of)
    presence: Presence
    read_at_ms: int
    # (path, version) of every znode that was read and exists; a delete is allowed only while all have that version
    checks: tuple[tuple[str, int], ...] = ()
    # ledgers that the owner needs in BookKeeper, ascending; array("q"): every worker gets a copy (8 bytes each)
    in_use: "array[int]" = field(default_factory=lambda: array("q"))
    newest_id: int = -1  # the highest id that the owner's znode names; -1: it names none
    offloads: frozenset[tuple[int, str]] = frozenset()  # (ledger id, uuid) of the uploads needed in tiered storage
    detail: str = ""  # of an UNREADABLE owner: what could not be read
    counts: Counts = Counts()
    given_up: "array[int]" = field(default_factory=lambda: array("q"))  # listed, but needed in tiered storage only
    is_unavailable: bool = False  # of an UNREADABLE owner: the brokers could not be asked
    is_hidden: bool = False  # its broker may know more ledgers of it, and does not show them (a loaded segment)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a request now, and why.

    DELETED means "delete it". Only a check after the delete shows whether it was deleted.
    """

    outcome: Outcome
    reason: Reason
    detail: str = ""
    wait_ms: int = 0  # RETRY: the reason ends by itself after this time; 0: not known
