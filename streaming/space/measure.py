"""Measures where the bytes of a cluster are. Reads only, and loads no topic.

The order matters. A broker creates a ledger before its list names the ledger, so ledgers are read before lists: what a
list does not name then is older than the list. A list that names a ledger which was not read is read again.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from streaming.audit.walk.owner_listing import find_namespaces
from streaming.clients import broker_for, command_clients, open_retention_policies
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings
from streaming.coordination.identity import read_layout
from streaming.ports import Bookies, LoadedTopicStats, MetadataStore, RetentionPolicies
from streaming.space.bookies import bookie_spaces
from streaming.space.ledgers import LedgerReading
from streaming.space.owners import OwnerReading
from streaming.space.policies import PolicyReading
from streaming.space.topics import Findings, TopicDivision
from streaming.space.unread import Unread
from streaming.sweep.pace import Pace
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, managed_ledger_path, schema_path
from udfs.space.ledger_table import Kind
from udfs.space.report import SpaceReport
from udfs.space.unreferenced import unreferenced_shares

_CLUSTERS = "/admin/clusters"
_NO_CLUSTER = "global"

Progress = Callable[[str, int], None]  # what is being read, and how many of them were read so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The services that a measurement reads."""

    store: MetadataStore
    bookies: Bookies
    stats: LoadedTopicStats | None  # None: brokers are not asked
    policies: RetentionPolicies | None  # None: brokers are not asked
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The parts of the cluster that a measurement reports, and the settings that it needs."""

    ledgers_root: str
    min_age_ms: int  # a ledger that changed later may not be named by its owner yet
    cluster: str = ""  # Pulsar's name of the cluster; "": the metadata store's
    bookies: Sequence[str] = ()  # ids; empty: all
    tenant: str = ""  # "": all
    namespace: str = ""  # tenant/ns; "": all

    def includes(self, namespace: str) -> bool:
        """Whether the report includes topics of a namespace."""
        if self.namespace:
            return namespace == self.namespace
        return not self.tenant or namespace.partition("/")[0] == self.tenant


def space_of(  # noqa: PLR0913  the options of the command
    settings: Settings,
    *,
    reads_per_second: float,
    bookies: Sequence[str] = (),
    tenant: str = "",
    namespace: str = "",
    progress: Progress = lambda _what, _count: None,
) -> SpaceReport:
    """Measure the configured cluster. Raises UnavailableError if ZooKeeper does not answer, ConfigError.

    Args:
        settings: the configuration.
        reads_per_second: of ZooKeeper's znodes; 0: no limit.
        bookies: ids of the bookies to report; empty: all.
        tenant: only this tenant's topics; "": all.
        namespace: only topics of this `tenant/ns`; "": all.
        progress: called while reading.
    """
    scope = Scope(
        ledgers_root=settings.zookeeper.ledgers_root,
        min_age_ms=settings.safety.min_age_seconds * 1000,
        cluster=settings.tiered_storage.pulsar_cluster,
        bookies=bookies,
        tenant=tenant,
        namespace=namespace,
    )
    with command_clients(settings) as clients, closing(open_retention_policies(settings)) as policies:
        asks = settings.safety.ask_broker
        sources = Sources(
            store=clients.store,
            bookies=clients.bookies,
            stats=broker_for(settings) if asks else None,
            policies=policies if asks else None,
            clock=SystemClock(),
        )
        return measure(sources, scope, Pace(reads_per_second), progress)


def measure(sources: Sources, scope: Scope, pace: Pace, progress: Progress = lambda _what, _count: None) -> SpaceReport:
    """Measure a cluster. Raises UnavailableError if the metadata store does not answer, ConfigError."""
    started_s, at_ms = time.monotonic(), sources.clock.now_ms()
    store, unread = sources.store, Unread()
    ledgers = LedgerReading(store, scope.ledgers_root, read_layout(store, scope.ledgers_root), pace)
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
    # a ledger may have been deleted after it was read and before its owner was: it is in no list, and no orphan
    table.drop(ledgers.gone(table.unclaimed()))
    found.shares += unreferenced_shares(
        table,
        lambda owner, kind: _is_unread(unread, owner, kind),
        scope.includes,
        now_ms=at_ms,
        min_age_ms=scope.min_age_ms,
    )
    bookies = bookie_spaces(sources.bookies, table.on_bookies(), scope.bookies, unread)
    return SpaceReport(
        at_ms=at_ms,
        seconds=time.monotonic() - started_s,
        cluster=scope.cluster or _cluster(store),
        ledgers=len(table),
        topics=found.topics,
        shares=tuple(found.shares),
        subscriptions=tuple(found.subscriptions),
        bookies=bookies,
        unknown=unread.unknown(),
        policies=found.policies,
    )


def _divided(division: TopicDivision, store: MetadataStore, scope: Scope, pace: Pace, progress: Progress) -> Findings:
    namespaces = find_namespaces(store, pace)
    for path, detail in namespaces.problems:
        division.unread.add_path(path, detail)
    folders = [path for path in namespaces.paths if scope.includes(_namespace_at(path))]
    for batch in division.owners.batches(folders, division.unread):
        division.add(batch)
        progress("topics", division.findings.topics)
    return division.findings


def _namespace_at(path: str) -> str:
    below = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/").removeprefix(f"{SCHEMAS_ROOT}/")
    return below.removesuffix("/persistent")


def _is_unread(unread: Unread, owner: str, kind: Kind) -> bool:
    if (owner, kind) in unread.owners:
        return True
    if kind is Kind.SCHEMA:
        return unread.is_unread([schema_path(owner.replace("/persistent/", "/"))])
    return unread.is_unread([managed_ledger_path(owner)])


def _cluster(store: MetadataStore) -> str:
    """Return the name of the only cluster that the metadata store has; "" if it has several."""
    (names,) = store.children_many([_CLUSTERS])
    clusters = [name for name in names if name != _NO_CLUSTER] if isinstance(names, list) else []
    return clusters[0] if len(clusters) == 1 else ""
