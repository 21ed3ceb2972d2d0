"""Measures where the bytes of a cluster are. Reads only, and loads no topic.

The order matters. A broker creates a ledger before its list names the ledger. We read ledgers before lists, so each
ledger in the table existed before we read the list that could name it. If a list names a ledger that the table does not
have, both are read again.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field

from streaming.audit.cluster_label import cluster_name
from streaming.audit.walk.owner_listing import find_namespaces
from streaming.audit.workers import Workers, workers_for
from streaming.clients import bookies_for, broker_for, open_retention_policies, process_store
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings
from streaming.coordination.identity import read_layout
from streaming.ports import Bookies, LoadedTopicStats, MetadataStore, RetentionPolicies
from streaming.space.reading.bookie_spaces import bookie_spaces
from streaming.space.reading.ledger_reading import LedgerReading, PartReader, in_processes
from streaming.space.reading.owner_reading import OwnerReading
from streaming.space.reading.policy_reading import PolicyReading
from streaming.space.reading.topic_division import DividedTopics, TopicDivision
from streaming.space.reading.unread import Unread
from streaming.sweep.pace import Pace
from udfs.paths import (
    MANAGED_LEDGERS_ROOT,
    SCHEMAS_ROOT,
    managed_ledger_path,
    namespace_of,
    schema_id_of,
    schema_path,
    topic_of,
)
from udfs.space.ledger_table import Kind
from udfs.space.space_report import SpaceReport
from udfs.space.unreferenced import unreferenced_shares
from udfs.space.view import Filters, partitioned_name

_ALL = Filters()

Progress = Callable[[str, int], None]  # what is being read, and how many of them were read so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The services that a measurement reads."""

    store: MetadataStore
    bookies: Bookies
    stats: LoadedTopicStats | None  # None: brokers are not asked
    policies: RetentionPolicies | None  # None: brokers are not asked
    clock: Clock
    read_ledgers: PartReader | None = None  # None: this process reads all


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The parts of the cluster that a measurement reports, and the settings that it needs."""

    ledgers_root: str
    min_age_ms: int  # if a ledger changed more recently than this, its owner may still come to name it
    cluster: str = ""  # Pulsar's name of the cluster; "": the only name in the metadata store
    zookeeper: str = ""  # its address, for the report
    bookies: Sequence[str] = ()  # ids or HTTP addresses; empty: all
    filters: Filters = field(default_factory=Filters)

    def includes_folder(self, path: str) -> bool:
        """Whether a folder of topics or schemas, or a folder above these, may contain owners of the report."""
        below = _namespace_at(path)
        if self.filters.topic:
            wanted = [namespace_of(self.filters.topic), schema_id_of(self.filters.topic).rpartition("/")[0]]
        else:
            wanted = [self.filters.namespace or self.filters.tenant]
        return not below or any(_is_above(below, each) or _is_above(each, below) for each in wanted)

    def includes_owner(self, path: str) -> bool:
        """Whether the owner at a path, a topic or a schema, belongs to the report."""
        topic = self.filters.topic
        if not topic or path == schema_path(schema_id_of(topic)):
            return True
        try:
            name = topic_of(path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/"))
        except ValueError:
            return False  # no topic has this name
        return topic in (name, partitioned_name(name))

    def includes_ledgers_of(self, owner: str) -> bool:
        """Whether the report includes ledgers whose metadata name this owner; "": they name none."""
        if not owner:
            return self.filters.are_empty
        return self.filters.select(namespace_of(owner), topic_of(owner))


def space_of(  # noqa: PLR0913  all but the first have names at the call
    settings: Settings,
    *,
    reads_per_second: float,
    bookies: Sequence[str] = (),
    filters: Filters = _ALL,
    progress: Progress = lambda _what, _count: None,
    workers: Workers | None = None,
) -> SpaceReport:
    """Measure the configured cluster. Raises UnavailableError if ZooKeeper does not answer, ConfigError.

    Args:
        settings: the configuration.
        reads_per_second: of ZooKeeper's znodes; 0: no limit.
        bookies: ids or HTTP addresses of the bookies to report; empty: all.
        filters: the topics to report; owners that they leave out are not read.
        progress: called while reading.
        workers: read ledgers; None: workers of its own.
    """
    scope = Scope(
        ledgers_root=settings.zookeeper.ledgers_root,
        min_age_ms=settings.safety.min_age_seconds * 1000,
        cluster=settings.tiered_storage.pulsar_cluster,
        zookeeper=settings.zookeeper.hosts,
        bookies=bookies,
        filters=filters,
    )
    opened = nullcontext(workers) if workers else closing(workers_for(threading.Event()))
    with opened as readers, closing(open_retention_policies(settings)) as policies:
        asks, store = settings.safety.ask_broker, process_store(settings)
        sources = Sources(
            store=store,
            bookies=bookies_for(settings, store),
            stats=broker_for(settings) if asks else None,
            policies=policies if asks else None,
            clock=SystemClock(),
            read_ledgers=in_processes(readers, settings, read_layout(store, scope.ledgers_root), reads_per_second),
        )
        return measure(sources, scope, Pace(reads_per_second), progress)


def measure(sources: Sources, scope: Scope, pace: Pace, progress: Progress = lambda _what, _count: None) -> SpaceReport:
    """Measure a cluster. Raises UnavailableError if the metadata store does not answer, ConfigError."""
    started_s, at_ms = time.monotonic(), sources.clock.now_ms()
    store, unread = sources.store, Unread()
    ledgers = LedgerReading(
        store, scope.ledgers_root, read_layout(store, scope.ledgers_root), pace, sources.read_ledgers
    )
    table = ledgers.table(unread, lambda count: progress("ledgers", count))
    owners = OwnerReading(store, pace)
    division = TopicDivision(
        table=table,
        ledgers=ledgers,
        owners=owners,
        stats=sources.stats,
        policies=PolicyReading(sources.policies, sources.stats, owners.change_events),
        unread=unread,
        now_ms=sources.clock.now_ms,
    )
    found = _divided(division, store, scope, pace, progress)
    # a ledger may have been deleted between the read of it and the read of its owner: then no list names it, and it is
    # no orphan
    table.drop(ledgers.gone(table.unclaimed(scope.includes_ledgers_of)))
    found.shares += unreferenced_shares(
        table,
        lambda owner, kind: _is_unread(unread, owner, kind),
        scope.includes_ledgers_of,
        now_ms=at_ms,
        min_age_ms=scope.min_age_ms,
    )
    bookies = bookie_spaces(sources.bookies, table.on_bookies(), scope.bookies, unread)
    unread.add_migration(store)
    return SpaceReport(
        at_ms=at_ms,
        seconds=time.monotonic() - started_s,
        cluster=scope.cluster or cluster_name(store),
        zookeeper=scope.zookeeper,
        ledgers=len(table),
        topics=found.topics,
        shares=tuple(found.shares),
        subscriptions=tuple(found.subscriptions),
        bookies=bookies,
        unknown=unread.unknown(),
        policies=found.policies,
        missing=tuple(sorted(found.missing, key=lambda need: (need.topic, need.ledger_id))),
    )


def _divided(
    division: TopicDivision, store: MetadataStore, scope: Scope, pace: Pace, progress: Progress
) -> DividedTopics:
    namespaces = find_namespaces(store, pace)
    for path, detail in namespaces.problems:
        if scope.includes_folder(path):
            division.unread.add_path(path, detail)
    folders = [path for path in namespaces.paths if scope.includes_folder(path)]
    for batch in division.owners.batches(folders, division.unread, scope.includes_owner):
        division.add(batch)
        progress("topics", division.findings.topics)
    return division.findings


def _namespace_at(path: str) -> str:
    """Return a folder's namespace; for a folder above namespaces, the tenant (V1: and cluster); "" for a root."""
    below = f"{path}/".removeprefix(f"{MANAGED_LEDGERS_ROOT}/").removeprefix(f"{SCHEMAS_ROOT}/")
    return below.removesuffix("/").removesuffix("/persistent")


def _is_above(upper: str, lower: str) -> bool:
    """Whether `lower` is `upper`, or below it; "" is above everything."""
    return not upper or f"{lower}/".startswith(f"{upper}/")


def _is_unread(unread: Unread, owner: str, kind: Kind) -> bool:
    if (owner, kind) in unread.owners:
        return True
    if kind is Kind.SCHEMA:
        return unread.is_unread([schema_path(owner.replace("/persistent/", "/"))])
    return unread.is_unread([managed_ledger_path(owner)])
