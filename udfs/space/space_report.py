"""The result of `space`: bytes by cause, subscriptions, bookies, and what could not be known.

Sizes are integer bytes. "One copy" is the payload of the entries, as BookKeeper's metadata count it (`length`).
"Stored" is what all bookies together keep: each entry as often as its write quorum, with the bookie's overhead of each
record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from udfs.records import LedgerComponent
from udfs.space.causes import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The bytes of one topic (or of none) with one cause, and of one subscription if one holds them."""

    cause: Cause
    namespace: str = ""  # tenant/ns; "": the ledgers' metadata name none
    topic: str = ""  # persistent://tenant/ns/topic, of a partition its own name; "": not of a topic
    subscription: str = ""  # of BACKLOG, ACKNOWLEDGED_BEHIND_GAP, PARTLY_READ and BROKER_CURSOR: the slowest cursor
    ledgers: int  # a ledger that is divided between causes counts for each
    one_copy: int
    stored: int  # 0: only in tiered storage, or missing
    is_exact: bool = True  # False: estimated inside a ledger, or a lower bound of an open ledger

    @property
    def tenant(self) -> str:
        """The tenant; "" if there is none."""
        return self.namespace.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscription of a topic, or a cursor of the broker itself."""

    topic: str
    name: str
    is_of_broker: bool = False  # deduplication, replication or compaction
    backlog: int  # bytes of one copy after its mark-delete position, with acknowledged messages
    acknowledged: int = 0  # of backlog: acknowledged one by one
    frees: int | None = (
        0  # bytes of one copy, in whole ledgers, that a broker drops once it is at the end; None: unknown
    )
    is_alone: bool = True  # False: other cursors hold the same ledgers
    last_active_ms: int | None = None  # None: unknown
    is_connected: bool | None = None  # None: unknown, as of a topic that no broker has loaded
    is_exact: bool = True  # False: its position is that of an earlier moment


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSpace:
    """A bookie: what the ensembles of ledgers assign to it, and what it reports itself. None: not reported."""

    bookie_id: str
    url: str = ""  # of its HTTP server; "": it registers none
    is_registered: bool = True  # False: ensembles name it, but it does not run
    is_read_only: bool | None = None  # True: it takes no new entries
    ledgers: int  # placed there by ensembles, with at least one entry
    live: int  # bytes of their records there
    reported_live: int | None = None  # bytes in entry logs other than the current one, at its last collection
    reported_ledgers: int | None = None  # in its index, with deleted ledgers that it has not collected yet
    entry_logs: int | None = None  # finished entry logs, as a number
    write_cache: int | None = None  # bytes that are not in an entry log yet
    disk_total: int | None = None  # of the file systems of its ledger folders; several bookies may share one
    disk_free: int | None = None
    reclaimed: int | None = None  # freed since it was started
    gc_wait_seconds: int | None = None
    minor_threshold: float | None = None  # share of live bytes (0 to 1) below which it rewrites an entry log
    major_threshold: float | None = None
    last_minor_ms: int | None = None  # time of the last compaction; None: none since its start, or unknown
    last_major_ms: int | None = None
    is_collecting: bool | None = None
    faults: tuple[str, ...] = ()  # which questions it did not answer

    @property
    def uncollected_ledgers(self) -> int | None:
        """Ledgers in its index that no ensemble assigns to it: deleted, or over-replicated. Give or take a few."""
        return None if self.reported_ledgers is None else max(0, self.reported_ledgers - self.ledgers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Something that could not be read, and the bounds of the bytes that depend on it; None: no bound is known."""

    what: str  # a path, a topic, a broker or a bookie
    detail: str
    at_least: int | None = None
    at_most: int | None = None


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """The settings of a broker that decide what it does about data that it can't read. None: it reports none."""

    skips_data: bool | None  # autoSkipNonRecoverableData
    forces_ledgers: bool | None  # managedLedgerForceRecovery
    forces_schemas: bool | None  # schemaLedgerForceRecovery


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededBy:
    """A cursor that has not acknowledged all of a data ledger, or whose position is not known."""

    subscription: str
    is_of_broker: bool = False
    unread: int | None  # entries of the ledger that it has not acknowledged; None: unknown
    later: int | None  # entries of later ledgers that it has not acknowledged; None: unknown
    is_exact: bool = True  # False: its position is that of an earlier moment, so it may need fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededLedger:
    """A ledger that a topic, one of its cursors, or its schema refers to."""

    ledger_id: int
    component: LedgerComponent
    topic: str  # persistent://…
    cursor: str = ""  # the decoded name of the cursor that refers to it; "": no cursor does
    is_of_broker: bool = False  # whether that cursor is a broker's own
    entries: int | None = None  # by the topic's list; None: the list does not contain the number
    length: int | None = None  # bytes of one copy by the topic's list; None: as above
    after_ms: int | None = None  # its entries were written after this time, when the ledger before it was closed
    until_ms: int | None = None  # and before this time, when it was closed; None: unknown
    is_last: bool = False  # the last ledger of the list, or the schema's newest version
    next_id: int | None = None  # the next ledger of the list that is not missing
    is_loaded: bool | None = None  # whether a broker has loaded the topic; None: unknown
    needed_by: tuple[NeededBy, ...] = ()  # of data ledgers only


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """The policies in force for a topic that has consumed ledgers, and the level that sets them."""

    retention_minutes: int  # -1: without limit
    retention_megabytes: int  # -1: without limit
    level: str  # topic, namespace or broker
    is_loaded: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceReport:
    """One reading of a cluster."""

    at_ms: int
    seconds: float
    cluster: str = ""
    zookeeper: str = ""  # the address of its servers
    ledgers: int  # in BookKeeper's metadata
    topics: int
    shares: tuple[Share, ...]
    subscriptions: tuple[Subscription, ...] = ()
    bookies: tuple[BookieSpace, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    policies: Mapping[str, TopicPolicy] = field(default_factory=dict)  # by topic
    missing: tuple[NeededLedger, ...] = ()  # ledgers that owners refer to and BookKeeper does not have

    @property
    def is_complete(self) -> bool:
        """Whether everything could be read."""
        return not self.unknown
