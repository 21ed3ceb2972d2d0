"""Every metric of our processes and of a producer's client. Registries and docs/metrics.md are built from this table.

PIP-186's nine names start with `ledger_deletion_`, those of the operating system's process with `process_`, all others
with `ledger_reaper_`. Units are in names, and every value has the base unit. Our processes' registry adds the labels
`instance_name` and `cluster` to every series; a client's metrics are in its application's registry, without them.
"""

from dataclasses import dataclass
from enum import StrEnum

from udfs.phase_one.pip_186_metrics import HELP, SENT
from udfs.phase_one.pip_186_metrics import Metric as Pip186

PREFIX = "ledger_reaper_"
INSTANCE, CLUSTER = "instance_name", "cluster"
OTHER = "(other)"  # the value of a label after its first `at_most` values


class Kind(StrEnum):
    """A metric's type, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Group(StrEnum):
    """Metrics that appear together. The text describes when."""

    PROCESS = "Every process"
    PIP_186 = "The service: seven metrics of PIP-186"
    SERVICE = "The service"
    HOLDS = "Holds: why nothing is deleted"
    WAITING = "What waits"
    AUDITS = "Audits, and where the bytes are"
    SNAPSHOTS = "Snapshots of aborted transactions"
    WATCHER = "The watcher"
    CLIENT = "A producer's client: two metrics of PIP-186"
    FOLLOW = "`rocketmq follow`"


@dataclass(frozen=True, slots=True)
class Label:
    """A label."""

    name: str
    values: str  # which values it has
    at_most: int | None = None  # distinct values in a process; further values are OTHER. None: there are few


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric."""

    group: Group
    name: str  # of the family: without a counter's `_total`
    kind: Kind
    text: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram
    since: str = "0.1.0"  # the version that added it
    is_own: bool = True  # False: prometheus_client computes it

    @property
    def series(self) -> str:
        """The name in queries; those of a histogram append `_bucket`, `_count` or `_sum`."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


TABLE: dict[str, Metric] = {}  # by Metric.name


def _add(metric: Metric) -> Metric:
    if TABLE.setdefault(metric.name, metric) is not metric:
        raise AssertionError(f"{metric.name} is declared twice")
    return metric


def _counter(group: Group, name: str, text: str, *labels: Label) -> Metric:
    return _add(Metric(group=group, name=f"{PREFIX}{name}", kind=Kind.COUNTER, text=text, labels=labels))


def _gauge(group: Group, name: str, text: str, *labels: Label) -> Metric:
    return _add(Metric(group=group, name=f"{PREFIX}{name}", kind=Kind.GAUGE, text=text, labels=labels))


def _histogram(group: Group, name: str, text: str, buckets: tuple[float, ...], *labels: Label) -> Metric:
    return _add(
        Metric(group=group, name=f"{PREFIX}{name}", kind=Kind.HISTOGRAM, text=text, labels=labels, buckets=buckets)
    )


def _process(name: str, kind: Kind, text: str) -> Metric:
    return _add(Metric(group=Group.PROCESS, name=f"process_{name}", kind=kind, text=text, is_own=False))


QUERY = Label(
    "query",
    "`requests`, `requests-<SHA-256 of a topic>`, `retry`, `lanes`, `slow-lanes`; of parked queries also `waiting`",
    at_most=200,
)
SOURCE = Label("source", "`requests`, or `retry` for waiting retries")
TOPIC = Label("topic", "a request topic or the retry topic", at_most=200)
TENANT = Label("tenant", "a tenant", at_most=100)
NAMESPACE = Label("namespace", "a namespace", at_most=100)

# --- every process ---
BUILD_INFO = _gauge(
    Group.PROCESS,
    "build_info",
    "Always 1",
    Label("version", "of Ledger Reaper"),
    Label("pyspark", "version of PySpark"),
    Label("connector", "version of the Pulsar connector; empty with PySpark 4"),
    Label("python", "version of Python"),
)
READY = _gauge(Group.PROCESS, "ready", "1 if /readyz answers 200; otherwise /readyz names the reasons")
_process("virtual_memory_bytes", Kind.GAUGE, "Virtual memory of the Python process (not of Spark's JVM)")
_process("resident_memory_bytes", Kind.GAUGE, "Resident memory of the Python process (not of Spark's JVM)")
_process("start_time_seconds", Kind.GAUGE, "When the process started, in seconds since 1970")
_process("cpu_seconds", Kind.COUNTER, "CPU time of the Python process")
_process("max_fds", Kind.GAUGE, "Most file descriptors that the process may open")
_process("open_fds", Kind.GAUGE, "Open file descriptors")

# --- PIP-186 ---
PIP_186 = {
    name: _add(
        Metric(
            group=Group.CLIENT if name in SENT else Group.PIP_186,
            name=f"ledger_deletion_{name}",
            kind=Kind.COUNTER,
            text=HELP[name],
        )
    )
    for name in Pip186
}

# --- the service's work ---
_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
REQUESTS = _counter(
    Group.SERVICE,
    "requests",
    "Processed requests whose receipts are committed; a replayed batch does not count them again",
    QUERY,
    Label("outcome", "DELETED, ALREADY_GONE, RETRY, DEAD_LETTER"),
    Label("reason", "a reason of docs/reasons.md"),
)
DELETED_BYTES = _counter(
    Group.SERVICE, "deleted_bytes", "Bytes (one copy) of deleted ledgers and objects; bookies free them later"
)
COPIES_PUBLISHED = _counter(
    Group.SERVICE, "copies_published", "Copies sent to RETRY and DLQ", Label("topic", "the retry or dead-letter topic")
)
CHUNKS_COMMITTED = _counter(Group.SERVICE, "chunks_committed", "Chunks of requests whose receipts are committed", QUERY)
BATCH_SECONDS = _histogram(
    Group.SERVICE, "batch_seconds", "Time to process a batch that was read, holds included", _LONG, SOURCE
)
CHUNK_SECONDS = _histogram(
    Group.SERVICE,
    "chunk_seconds",
    "Duration of chunks, from the first read to the published copies, holds included",
    _LONG,
    SOURCE,
)
DELETE_SECONDS = _histogram(
    Group.SERVICE,
    "delete_seconds",
    "Time until ZooKeeper, or a snapshot topic, has answered a group of deletes (not those of tiered storage)",
    _SHORT,
)
RATE_LIMIT = _gauge(Group.SERVICE, "deletes_per_second_limit", "limits.deletes_per_second; 0: no limit")
RATE = _gauge(
    Group.SERVICE,
    "deletes_per_second",
    "Deletes a second that the newest chunk was allowed at its end: fewer than the limit while ZooKeeper is slow; "
    "0: no limit",
)
RATE_WAITED = _counter(
    Group.SERVICE, "deletes_waited_seconds", "Time that tasks waited before deletes because of the rate, added up"
)
S3_THROTTLED = _counter(
    Group.SERVICE,
    "s3_throttled",
    "Answers of tiered storage that refused a request of a sweep because of load (503, 429)",
)
OUTAGES_WAITED = _counter(Group.SERVICE, "outages_waited", "How often a step waited for a service and was tried again")
OUTAGES = _gauge(Group.SERVICE, "outages", "Steps that are repeated until an unavailable service answers")
CACHE_HITS = _counter(Group.SERVICE, "in_use_cache_hits", "Owners whose references the cache had")
CACHE_MISSES = _counter(Group.SERVICE, "in_use_cache_misses", "Owners whose references were read for the first time")
CACHE_REFRESHES = _counter(Group.SERVICE, "in_use_cache_refreshes", "Owners whose references were read again")
CACHE_STALE = _counter(Group.SERVICE, "in_use_cache_stale", "Cached references that an executor found out of date")
CACHE_OWNERS = _gauge(Group.SERVICE, "in_use_cache_owners", "Owners in the cache")
CACHE_BYTES = _gauge(Group.SERVICE, "in_use_cache_bytes", "Size of the cache")
UNACCOUNTED = _gauge(
    Group.SERVICE,
    "unaccounted",
    "ALARM unless 0: messages that were read and have no receipt, ledgers of request topics that were deleted before "
    "we read them, requests that should be retried and wait nowhere",
    Label("what", "messages, ledgers, requests"),
)
ACCOUNTS_CHECKED = _gauge(
    Group.SERVICE,
    "accounts_checked_timestamp_seconds",
    "When ledger_reaper_unaccounted was last counted in full since the start",
)
QUERY_PARKED = _gauge(
    Group.SERVICE,
    "query_parked",
    "1 while a query can't read its topic, or only without the connector; the log and `check` name the reason",
    QUERY,
)
LANES = _gauge(
    Group.SERVICE,
    "lanes",
    "Partitions of lanes and of topics that match the pattern, by what the service does with them",
    Label("state", "`listening` (no message waits), `waiting`, `slow` (read one at a time), `not_watched`"),
)
LANE_RECEIPTS_DROPPED = _counter(
    Group.SERVICE,
    "lane_receipts_dropped",
    "Receipts that are not published to their tenant, because more than 1,000 of its lanes wait for receipts",
)

# --- holds ---
PAUSED = _gauge(Group.HOLDS, "paused", "1 while an operator's pause stops all deletes")
PAUSED_SINCE = _gauge(Group.HOLDS, "paused_since_timestamp_seconds", "When the pause started; 0: not paused")
LIMIT_REACHED = _gauge(
    Group.HOLDS, "limit_reached", "1 while a limit is reached, and an operator must decide before more is deleted"
)
LIMIT_REACHED_SINCE = _gauge(
    Group.HOLDS, "limit_reached_since_timestamp_seconds", "When the limit was reached; 0: no limit is reached"
)
METADATA_MIGRATION = _gauge(
    Group.HOLDS, "metadata_migration", "1 while nothing is deleted because the cluster leaves ZooKeeper, or has left it"
)
TENANTS_HELD = _gauge(
    Group.HOLDS, "tenants_held", "Held tenants: the service deletes nothing of them until an operator decides"
)
TENANT_HELD = _gauge(
    Group.HOLDS,
    "tenant_held",
    "1 while no ledger of this tenant is deleted, until an operator decides; other tenants have no series",
    TENANT,
)
TENANTS_HELD_SINCE = _gauge(
    Group.HOLDS, "tenants_held_since_timestamp_seconds", "When a tenant was last held or released; 0: none is held"
)
HOLDS_READ = _gauge(Group.HOLDS, "holds_read_timestamp_seconds", "When the holds were last read from ZooKeeper")

# --- what waits ---
RETRIES_WAITING = _gauge(Group.WAITING, "retries_waiting", "Requests that wait for their next try")
RETRIES_DUE = _gauge(Group.WAITING, "retries_due", "Waiting retries whose time has come")
RETRIES_READ = _gauge(Group.WAITING, "retries_read_timestamp_seconds", "When the waiting retries were last counted")

BACKLOG = _gauge(
    Group.WAITING,
    "backlog_requests",
    "Messages that no committed batch has read; estimated if a partition has more than 100 unread entries",
    TOPIC,
)
BACKLOG_OLDEST = _gauge(
    Group.WAITING,
    "backlog_oldest_timestamp_seconds",
    "When the oldest message of the backlog was published; no series while none waits",
    TOPIC,
)
BACKLOG_READ = _gauge(Group.WAITING, "backlog_read_timestamp_seconds", "When the backlog was last counted")
DEAD_LETTERS = _gauge(
    Group.WAITING,
    "dead_letters_waiting",
    "Dead letters that were neither replayed nor written off, among the first 100,000 of the topic",
    Label("reason", "a reason of docs/reasons.md, `(none)` or `(other)`; no series while none waits"),
)
DEAD_LETTERS_OLDEST = _gauge(
    Group.WAITING,
    "dead_letters_oldest_timestamp_seconds",
    "When the oldest waiting dead letter was published; 0: none waits",
)
DEAD_LETTERS_READ = _gauge(
    Group.WAITING, "dead_letters_read_timestamp_seconds", "When the dead letters were last counted"
)

# --- audits ---
CLASS = Label("class", "a class of findings")
AUDIT_TIMESTAMP = _gauge(Group.AUDITS, "audit_timestamp_seconds", "When the newest audit ended")
AUDIT_COMPLETE_TIMESTAMP = _gauge(
    Group.AUDITS,
    "audit_last_complete_timestamp_seconds",
    "When the newest complete audit without filters started; 0: none in the history",
)
AUDIT_COMPLETE = _gauge(
    Group.AUDITS, "audit_complete", "1 if the newest audit could read everything, 0 if its certificate names faults"
)
AUDIT_DURATION = _gauge(Group.AUDITS, "audit_duration_seconds", "Duration of the newest audit")
AUDIT_LISTED = _gauge(
    Group.AUDITS,
    "audit_listed",
    "Ledgers and objects that the newest audit listed, and those in use",
    Label("what", "ledgers, objects, in_use"),
)
AUDIT_FINDINGS = _gauge(Group.AUDITS, "audit_findings", "Findings of the newest audit; MISSING is data loss", CLASS)
AUDIT_FINDING_BYTES = _gauge(
    Group.AUDITS, "audit_findings_bytes", "Bytes (one copy) of the newest audit's findings", CLASS
)
AUDIT_READ = _gauge(Group.AUDITS, "audit_read_timestamp_seconds", "When the audit's result was last read")
CAUSE = Label("cause", "a cause of docs/space.md")
SPACE_BYTES = _gauge(Group.AUDITS, "space_bytes", "Bytes (one copy) by cause, as `space` measured them last", CAUSE)
SPACE_STORED_BYTES = _gauge(
    Group.AUDITS,
    "space_stored_bytes",
    "Bytes on all bookies and in tiered storage, by cause, as `space` measured them last",
    CAUSE,
)
SPACE_TIMESTAMP = _gauge(Group.AUDITS, "space_timestamp_seconds", "When `space` last measured")
SPACE_COMPLETE = _gauge(Group.AUDITS, "space_complete", "1 if the last run of `space` could read everything")

SNAPSHOT_AUDIT_TIMESTAMP = _gauge(
    Group.SNAPSHOTS, "snapshot_audit_timestamp_seconds", "When the newest `snapshots audit` ended"
)
SNAPSHOT_AUDIT_COMPLETE = _gauge(
    Group.SNAPSHOTS, "snapshot_audit_complete", "1 if the newest `snapshots audit` could read everything"
)
SNAPSHOT_FINDINGS = _gauge(
    Group.SNAPSHOTS,
    "snapshot_findings",
    "Findings of the newest `snapshots audit`; MISSING and DANGER need an operator",
    CLASS,
)

GUARD_PASS = _gauge(
    Group.SNAPSHOTS,
    "snapshot_guard_pass_timestamp_seconds",
    "When the service last went through all guards of segments (`snapshots.guard_every_seconds`)",
)
GUARDS = _gauge(Group.SNAPSHOTS, "snapshot_guards", "Namespaces whose segments are guarded")
GUARD_FAILURES = _gauge(
    Group.SNAPSHOTS,
    "snapshot_guard_failures",
    "Namespaces whose guard the last pass could not update; the log names them",
)
GUARD_LOST = _gauge(
    Group.SNAPSHOTS, "snapshot_guard_lost_segments", "Segments that indexes name and that are trimmed already"
)
GUARD_LEDGER = _gauge(
    Group.SNAPSHOTS,
    "snapshot_guard_ledger",
    "Ledger of the segments topic at which the guard is: segments before it can be trimmed; -1: before the first",
    NAMESPACE,
)
GUARD_MOVED = _gauge(
    Group.SNAPSHOTS,
    "snapshot_guard_moved_timestamp_seconds",
    "When a pass of this process first saw the guard at that ledger",
    NAMESPACE,
)

# --- watcher ---
WATCH_EVENTS = _counter(Group.WATCHER, "watcher_events", "Znodes that ZooKeeper's watches reported")
WATCH_READS = _counter(Group.WATCHER, "watcher_znodes_read", "Znodes that were read")
WATCH_CHANGES = _counter(Group.WATCHER, "watcher_changes", "Znodes whose names changed since the scan before")
WATCH_NOTICED = _counter(
    Group.WATCHER,
    "watcher_requests_noticed",
    "Requests for vanished names, counted when they become durable",
)
WATCH_SENT = _counter(Group.WATCHER, "watcher_requests_sent", "Requests that are stored in the request topic")
WATCH_DROPPED = _counter(
    Group.WATCHER,
    "watcher_requests_dropped",
    "Requests that were not sent, because a list names the ledger again",
)
WATCH_DELAYED = _counter(
    Group.WATCHER,
    "watcher_requests_delayed",
    "Vanished names that a scan left to the next scan, because too many requests of their tenant wait",
)
WATCH_UNLISTED_LEFT = _counter(
    Group.WATCHER, "watcher_unlisted_left", "Unlisted ledgers above the limit, which are left to the audit"
)
WATCH_UNLISTED = _counter(Group.WATCHER, "watcher_unlisted", "Requests for ledgers that were created and never listed")
WATCH_MARKS_SET = _counter(
    Group.WATCHER,
    "watcher_marks_set",
    "Ledgers and uploads marked because a broker is about to drop them",
)
WATCH_MARKS_REMOVED = _counter(Group.WATCHER, "watcher_marks_removed", "Marks removed because what they mark is gone")
WATCH_MARKING_FAILURES = _counter(Group.WATCHER, "watcher_marking_failures", "Failures to set or remove a mark")
WATCH_SCANS = _counter(Group.WATCHER, "watcher_scans", "Complete scans")
WATCH_REWRITES = _counter(Group.WATCHER, "watcher_state_rewrites", "How often the state was rewritten")
WATCH_FAILURES = _counter(Group.WATCHER, "watcher_failures", "How often the watcher started again after an error")
WATCH_SCAN_DURATION = _gauge(Group.WATCHER, "watcher_scan_duration_seconds", "Duration of the last complete scan")
WATCH_SCANNED = _gauge(
    Group.WATCHER,
    "watcher_last_scan_timestamp_seconds",
    "When the last complete scan ended, also before a restart; 0: none yet",
)
WATCH_ZNODES = _gauge(Group.WATCHER, "watcher_znodes", "Topics, cursors and schemas that the watcher knows")
WATCH_WAITING = _gauge(Group.WATCHER, "watcher_requests_waiting", "Requests that are durable and not sent yet")
WATCH_UNREADABLE = _gauge(
    Group.WATCHER,
    "watcher_unreadable_znodes",
    "Znodes that could not be read, parsed or listed; the names in them count as present",
)
WATCH_UNWATCHED = _gauge(
    Group.WATCHER,
    "watcher_unwatched_names",
    "Topics, cursors and schemas that no request could name; the log names them",
)
WATCH_HINTS = _gauge(
    Group.WATCHER, "watcher_watching", "1 while ZooKeeper's watches are set; otherwise only scans find changes"
)

# --- rocketmq follow ---
FOLLOW_LAG = _gauge(
    Group.FOLLOW,
    "rocketmq_follow_lag_bytes",
    "Complete bytes of the log that have no rows in RocksDB yet; stop the broker near 0",
)
FOLLOW_END = _gauge(
    Group.FOLLOW,
    "rocketmq_follow_log_end_bytes",
    "Physical offset after the last complete record of the commitlog, as far as known",
)
FOLLOW_INDEXED = _gauge(
    Group.FOLLOW,
    "rocketmq_follow_indexed_bytes",
    "Physical offset before which every message has its rows in RocksDB",
)
FOLLOW_UNITS = _gauge(Group.FOLLOW, "rocketmq_follow_units", "Units that this run has written")
FOLLOW_READ = _gauge(Group.FOLLOW, "rocketmq_follow_read_timestamp_seconds", "When the commitlog was last read")
