"""The words of the program: requests, facts, verdicts and receipts, as values without behaviour.

Names are PIP-186's (PendingDeleteLedgerInfo, ledgerComponent, ledgerType) and Pulsar's own.
Times are integer milliseconds UTC; ledger ids are signed 64-bit; -1 is "none" only where said.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class LedgerComponent(StrEnum):
    """What part of Pulsar wrote the ledger. The last two are ours: real brokers write them too."""

    MANAGED_LEDGER = "MANAGED_LEDGER"
    MANAGED_CURSOR = "MANAGED_CURSOR"
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    COMPACTED_LEDGER = "COMPACTED_LEDGER"
    DELAYED_INDEX_BUCKET = "DELAYED_INDEX_BUCKET"


class LedgerType(StrEnum):
    """Where the bytes are: BookKeeper (LEDGER) or tiered storage (OFFLOAD_LEDGER)."""

    LEDGER = "LEDGER"
    OFFLOAD_LEDGER = "OFFLOAD_LEDGER"


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
    """Why an outcome was chosen; every reason to keep a ledger has its own name.

    The comment says what the operator learns from it.
    """

    # deleted or gone
    UNREFERENCED = "UNREFERENCED"  # CLOSED, old enough, its owner's current list does not name it
    OWNER_GONE = "OWNER_GONE"  # as above; the owner itself is proven gone
    NOT_FOUND = "NOT_FOUND"  # no such ledger or object (any more)
    DUPLICATE = "DUPLICATE"  # the same ledger was asked for twice in one batch

    # kept for now (RETRY)
    IN_USE = "IN_USE"  # an owner refers to it
    OWNER_UNREADABLE = "OWNER_UNREADABLE"  # owner's znode or broker's view could not be read: counts as in use
    OWNER_CHANGED = "OWNER_CHANGED"  # owner kept changing between look and delete
    OWNER_ABSENT_ONCE = "OWNER_ABSENT_ONCE"  # owner seems gone; needs a second look, later
    UNREFERENCED_ONCE = "UNREFERENCED_ONCE"  # a reference that no znode's version guards: needs a second look, later
    LEDGER_UNREADABLE = "LEDGER_UNREADABLE"  # ledger metadata or object could not be read or parsed
    LEDGER_CHANGED = "LEDGER_CHANGED"  # ledger metadata kept changing between look and delete
    NOT_CLOSED = "NOT_CLOSED"  # OPEN or IN_RECOVERY: somebody may be writing or recovering
    TOO_YOUNG = "TOO_YOUNG"  # created or changed less than min_age ago (schema, compacted, bucket: the quarantine)
    ABOVE_NEWEST = "ABOVE_NEWEST"  # newer than the newest ledger its owner names: kept for the quarantine
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"  # ZooKeeper, broker or object store did not answer; outcome looked up again
    STORE_REFUSED = "STORE_REFUSED"  # not allowed to delete (ACL, credentials)
    STILL_THERE = "STILL_THERE"  # the store said deleted, a look afterwards found it
    SOURCE_SHRANK = "SOURCE_SHRANK"  # its owner names far less than at the last look: a person must look first
    KEPT_AND_GONE = "KEPT_AND_GONE"  # kept, in use, and not there a moment later: the service stops
    OFFLOAD_IN_PROGRESS = "OFFLOAD_IN_PROGRESS"  # an offload that may still complete
    PROOF_MISSING = "PROOF_MISSING"  # object without readable proof of its owner

    # refused for good (DEAD_LETTER)
    EMPTY_PAYLOAD = "EMPTY_PAYLOAD"
    NOT_JSON = "NOT_JSON"
    WRONG_TYPE = "WRONG_TYPE"  # a field has another JSON type than PendingDeleteLedgerInfo's
    MISSING_FIELD = "MISSING_FIELD"
    BAD_LEDGER_ID = "BAD_LEDGER_ID"  # negative, or beyond 63 bits
    UNKNOWN_COMPONENT = "UNKNOWN_COMPONENT"
    UNKNOWN_LEDGER_TYPE = "UNKNOWN_LEDGER_TYPE"
    BAD_TOPIC_NAME = "BAD_TOPIC_NAME"
    BAD_OFFLOAD_CONTEXT = "BAD_OFFLOAD_CONTEXT"
    NOT_PULSARS = "NOT_PULSARS"  # ledger's own metadata does not say application=pulsar
    OTHER_OWNER = "OTHER_OWNER"  # ledger's own metadata names another owner
    OTHER_COMPONENT = "OTHER_COMPONENT"  # ledger's own metadata names another component
    OTHER_CLUSTER = "OTHER_CLUSTER"  # object's own metadata names another Pulsar cluster (a shared bucket)
    DRIVER_NOT_SUPPORTED = "DRIVER_NOT_SUPPORTED"  # offload driver we cannot delete with
    STORE_NOT_ALLOWED = "STORE_NOT_ALLOWED"  # endpoint or bucket is not on the allow-list
    REQUESTER_NOT_ALLOWED = "REQUESTER_NOT_ALLOWED"  # namespace or component not on the allow-list
    OTHER_TENANT = "OTHER_TENANT"  # a tenant's own request topic asked for another tenant's ledger
    WRITTEN_OFF = "WRITTEN_OFF"  # an operator closed it by hand


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """MLDataFormats.OffloadContext: which upload of the ledger to tiered storage is meant."""

    uuid: str
    complete: bool = True
    bookkeeper_deleted: bool = False
    timestamp_ms: int = 0
    driver_name: str = ""
    driver_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """One request: PIP-186's PendingDeleteLedgerInfo, checked.

    managed_ledger: `tenant/ns/persistent/encodedName` (V1: `tenant/cluster/ns/persistent/encodedName`).
    cursor_name and schema_id are set for the components that need them and None otherwise; the cursor
    name is in its encoded form, as in the znode's name and in BookKeeper's `pulsar/cursor`.
    """

    managed_ledger: str
    component: LedgerComponent
    ledger_type: LedgerType
    ledger_id: int
    cursor_name: str | None = None
    schema_id: str | None = None
    offload_context: OffloadContext | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """A message that is no request: why, in a name and in words for the operator."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """BookKeeper's LedgerMetadataFormat, the fields that decide. ctime_ms is None where not recorded."""

    state: LedgerState
    length_bytes: int
    last_entry_id: int
    ctime_ms: int | None
    custom_metadata: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """A ledger as its znode was read. metadata is None where it could not be parsed.

    last_change_ms: the latest of metadata ctime, znode ctime and znode mtime.
    """

    ledger_id: int
    path: str
    version: int
    metadata: LedgerMetadata | None
    last_change_ms: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as its bucket describes it. content: None where only its head was asked for.

    user_metadata: keys in lower case. version_id: "" in a bucket that never had versions.
    """

    size_bytes: int
    last_modified_ms: int
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    version_id: str = ""
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """Parts of an object whose upload was neither completed nor aborted: stored, paid for, and in no listing."""

    key: str
    upload_id: str
    initiated_ms: int


@dataclass(frozen=True, slots=True)
class OffloadFacts:
    """What a bucket holds of one offload attempt, `<uuid>-ledger-<id>`.

    data: None where absent; also where a readable index stands for it (index_only), as it was not looked for.
    metadata: the ledger's, as the index embeds it; None where there is no readable index, index_detail says why.
    """

    data: StoredObject | None
    index: StoredObject | None
    metadata: LedgerMetadata | None = None
    index_detail: str = ""
    data_bytes: int = 0
    index_only: bool = False
    uploads: tuple[UnfinishedUpload, ...] = ()


class Presence(StrEnum):
    """Whether the owner exists. GONE needs both ZooKeeper and the broker to say so."""

    PRESENT = "PRESENT"
    GONE = "GONE"
    UNREADABLE = "UNREADABLE"


@dataclass(frozen=True, slots=True)
class BrokerView:
    """What the owner broker's memory says of one topic (admin API, internalStats).

    cursors: encoded cursor name -> cursor ledger id (-1: none). compacted_ledger: what it reads from, -1 where there is
    none; compacted_by_cursor: what its cursor __compaction names, which is what a crash falls back to.
    A broker that was not asked (by configuration) is None in its callers, never a view.
    """

    presence: Presence
    ledgers: tuple[int, ...] = ()
    cursors: Mapping[str, int] = field(default_factory=dict)
    compacted_ledger: int = -1
    compacted_by_cursor: int = -1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many ledger ids each source of an in-use set named; -1: it was not asked, or knows no such owner."""

    listed: int = -1
    remembered: int = -1


@dataclass(frozen=True, slots=True)
class Reference:
    """All that one owner refers to, as read at one moment, and the znode versions it came from.

    key: what it was asked by (udfs.references.key_of). checks: (path, version) of every znode that was
    read and exists; a delete is only valid while all of them still have that version. in_use: BookKeeper
    ledger ids, ascending, as array('q') (8 bytes each: this is broadcast to every worker).
    newest_id: highest id that the list knows, -1 when it names none.
    counts: how many ids each source named.
    offloads: (ledger id, uuid) pairs that are in use in tiered storage.
    detail: for UNREADABLE, what could not be read.
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a request now: an Outcome that is to be, and why.

    DELETED means "delete it"; whether it then was is known only after the store was looked at again.
    """

    outcome: Outcome
    reason: Reason
    detail: str = ""
