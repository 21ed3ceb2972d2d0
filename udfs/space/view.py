"""Selects and adds up what a report of space contains: by cause, tenant, namespace, topic or subscription."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import urlsplit

from udfs.paths import base_topic, namespace_of
from udfs.space.causes import Cause
from udfs.space.space_report import BookieSpace, Share, SpaceReport, Subscription

# not in BookKeeper: their bytes of one copy are in tiered storage, or lost
OUTSIDE = frozenset({Cause.TIERED, Cause.MISSING})


class View(StrEnum):
    """The kind of a report's rows."""

    CAUSE = "cause"
    TENANT = "tenant"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    BOOKIE = "bookie"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters of a report; "" selects all."""

    tenant: str = ""
    namespace: str = ""  # tenant/ns
    topic: str = ""  # persistent://…; a partitioned topic selects all its partitions

    @property
    def are_empty(self) -> bool:
        """Whether the filters select everything."""
        return not (self.tenant or self.namespace or self.topic)

    def select(self, namespace: str, topic: str) -> bool:
        """Whether they select bytes of this namespace and topic; "": the bytes have none."""
        return (
            self.tenant in ("", namespace.partition("/")[0])
            and self.namespace in ("", namespace)
            and (self.topic in ("", topic) or (topic != "" and self.topic == partitioned_name(topic)))
        )


def selected(report: SpaceReport, filters: Filters) -> SpaceReport:
    """Return the report with the shares, subscriptions and policies that the filters select; the rest is unchanged."""
    if filters.are_empty:
        return report
    return replace(
        report,
        shares=tuple(share for share in report.shares if filters.select(share.namespace, share.topic)),
        subscriptions=tuple(row for row in report.subscriptions if filters.select(_namespace(row.topic), row.topic)),
        policies={t: policy for t, policy in report.policies.items() if filters.select(_namespace(t), t)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A sum of shares."""

    ledgers: int = 0  # a ledger that is divided between causes counts for each
    one_copy: int = 0
    stored: int = 0
    tiered: int = 0  # of one_copy: in tiered storage
    missing: int = 0  # of one_copy: lost
    is_exact: bool = True

    @property
    def in_bookkeeper(self) -> int:
        """The bytes of one copy that are in BookKeeper."""
        return self.one_copy - self.tiered - self.missing


def total(shares: Iterable[Share]) -> Amount:
    """Add up shares."""
    ledgers = one_copy = stored = tiered = missing = 0
    is_exact = True
    for share in shares:
        cause = share.cause
        ledgers += share.ledgers
        one_copy += share.one_copy
        stored += share.stored
        is_exact &= share.is_exact
        if cause is Cause.TIERED:
            tiered += share.one_copy
        elif cause is Cause.MISSING:
            missing += share.one_copy
    return Amount(
        ledgers=ledgers,
        one_copy=one_copy,
        stored=stored,
        tiered=tiered,
        missing=missing,
        is_exact=is_exact,
    )


def added(amounts: Iterable[Amount]) -> Amount:
    """Add up amounts; the sum is exact if all of them are."""
    rows = list(amounts)
    return Amount(
        ledgers=sum(row.ledgers for row in rows),
        one_copy=sum(row.one_copy for row in rows),
        stored=sum(row.stored for row in rows),
        tiered=sum(row.tiered for row in rows),
        missing=sum(row.missing for row in rows),
        is_exact=all(row.is_exact for row in rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The bytes under one name."""

    name: str  # the value of a cause, or the name of a tenant, namespace or topic; "": the bytes belong to none
    amount: Amount
    causes: Mapping[Cause, int] = field(default_factory=dict)  # stored bytes, the largest first

    @property
    def largest_cause(self) -> Cause:
        """The cause with the most stored bytes."""
        return next(iter(self.causes))


_NAMES: Mapping[View, Callable[[Share], str]] = {
    View.CAUSE: lambda share: str(share.cause),
    View.TENANT: lambda share: share.tenant,
    View.NAMESPACE: lambda share: share.namespace,
    View.TOPIC: lambda share: share.topic,
}


def rows_by(view: View, shares: Iterable[Share]) -> list[Row]:
    """Group shares, the most stored bytes first; the rows of every view add up to the same total.

    Args:
        view: CAUSE, TENANT, NAMESPACE or TOPIC.
        shares: what to group.
    """
    groups = defaultdict[str, list[Share]](list)
    for share in shares:
        groups[_NAMES[view](share)].append(share)
    rows = []
    for name, group in groups.items():
        causes = defaultdict[Cause, int](int)
        for share in group:
            causes[share.cause] += share.stored
        largest_first = dict(sorted(causes.items(), key=lambda each: (-each[1], each[0])))
        rows.append(Row(name=name, amount=total(group), causes=largest_first))
    return sorted(rows, key=lambda row: (-row.amount.stored, -row.amount.one_copy, row.name))


def largest_subscriptions(subscriptions: Iterable[Subscription]) -> list[Subscription]:
    """Return the subscriptions with a backlog; those that free the most bytes are first, then the longest backlogs."""
    rows = [each for each in subscriptions if each.backlog or each.frees]
    return sorted(rows, key=lambda each: (-(each.frees or 0), -each.backlog, each.topic, each.name))


def idle_longest(subscriptions: Iterable[Subscription]) -> Subscription | None:
    """Return the subscription whose last activity is the oldest known, of those that hold bytes without a consumer."""
    idle = [
        (each.last_active_ms, each)
        for each in subscriptions
        if each.backlog and each.last_active_ms is not None and not each.is_connected and not each.is_of_broker
    ]
    return min(idle, key=lambda pair: pair[0])[1] if idle else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """The bookies' own figures, each added up over those bookies that report it; 0 bookies: none does."""

    bookies: int  # that ensembles name, or that run
    live_bookies: int = 0  # how many report live bytes
    live_expected: int = 0  # by the ensembles, on these bookies
    live_reported: int = 0
    disk_bookies: int = 0  # how many report their file systems
    disk_expected: int = 0  # by the ensembles, on these bookies
    disk_used: int = 0
    shared: int = 0  # bookies that were left out of disk_used, since another one of the same host reports the same size


def disks_of(bookies: Sequence[BookieSpace]) -> Disks:
    """Add up what the bookies report."""
    live = [(each.live, each.reported_live) for each in bookies if each.reported_live is not None]
    sized = [
        (each, each.disk_total, each.disk_total - each.disk_free)
        for each in bookies
        if each.disk_total is not None and each.disk_free is not None
    ]
    # bookies of one host whose file systems have the same size most likely share it
    used = {(_host(each), size): used for each, size, used in sized}
    return Disks(
        bookies=len(bookies),
        live_bookies=len(live),
        live_expected=sum(expected for expected, _reported in live),
        live_reported=sum(reported for _expected, reported in live),
        disk_bookies=len(sized),
        disk_expected=sum(each.live for each, _size, _used in sized),
        disk_used=sum(used.values()),
        shared=len(sized) - len(used),
    )


def _host(bookie: BookieSpace) -> str:
    """Return the host of its HTTP server; an id need not name a host."""
    named = urlsplit(bookie.url).hostname if bookie.url else bookie.bookie_id.rpartition(":")[0]
    return named or bookie.bookie_id


def partitioned_name(topic: str) -> str:
    """Return the partitioned topic that a partition belongs to; other names, also invalid ones, are unchanged."""
    try:
        return base_topic(topic)
    except ValueError:
        return topic  # a name in the metadata that no topic can have


def _namespace(topic: str) -> str:
    try:
        return namespace_of(topic)
    except ValueError:
        return ""
