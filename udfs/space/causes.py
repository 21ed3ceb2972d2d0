"""The causes of stored bytes: every byte that `space` reports has exactly one."""

from enum import StrEnum


class Cause(StrEnum):
    """Why bytes are stored. Programs read the values (`space --json`)."""

    # data ledgers of topics, in the order in which a broker decides (ManagedLedgerImpl.internalTrimLedgers of 4.0.8)
    MISSING = "missing"  # a list names the ledger, and BookKeeper does not have it: data was lost; 0 stored bytes
    OPEN_ACTIVE = "open_active"  # the ledger that a loaded topic writes to
    OPEN_IDLE = "open_idle"  # the last ledger of a topic that no broker has loaded
    BACKLOG = "backlog"  # a subscription has not acknowledged it
    ACKNOWLEDGED_BEHIND_GAP = "acknowledged_behind_gap"  # acknowledged, after a message that is not
    PARTLY_READ = "partly_read"  # acknowledged, in a ledger whose later messages are not
    BROKER_CURSOR = "broker_cursor"  # held by deduplication, replication or compaction
    RETENTION = "retention"  # acknowledged, and kept by the topic's retention
    TRIMMABLE = "trimmable"  # a broker may drop it at its next check; no broker checks a topic that is not loaded
    # one of open_active to trimmable: cursors, retention, or whether a broker has loaded the topic, are unknown
    HELD_OR_RETAINED = "held_or_retained"
    OFFLOADED_AND_KEPT = "offloaded_and_kept"  # in tiered storage, and still in BookKeeper
    TIERED = "tiered"  # in tiered storage: a ledger's only copy, or the one beside OFFLOADED_AND_KEPT

    # other ledgers that an owner refers to
    CURSORS = "cursors"
    SCHEMAS = "schemas"
    COMPACTED = "compacted"
    DELAYED_BUCKETS = "delayed_buckets"
    TRANSACTIONS = "transactions"  # logs, pending acks and snapshots, with all bytes of their topics
    SYSTEM_TOPICS = "system_topics"  # all other topics of Pulsar's own

    # ledgers that no owner refers to; only `audit` proves which of them are orphans
    UNREFERENCED = "unreferenced"  # closed, old enough, and nothing names it: most likely an orphan
    UNREFERENCED_OPEN = "unreferenced_open"  # a client may be writing to it
    TOO_YOUNG = "too_young"  # its owner may still write it into a list
    FOREIGN = "foreign"  # its metadata does not contain application=pulsar: it is another application's
    UNKNOWN = "unknown"  # its owner, or its own metadata, could not be read

    # records of deleted ledgers that a bookie still holds. A bookie reports their number and not their bytes, so no
    # share has this cause
    NOT_COLLECTED = "not_collected"
