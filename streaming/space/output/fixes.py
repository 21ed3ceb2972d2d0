"""Names the commands that free the bytes of each cause, for its largest consumer. Nothing here runs them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from streaming.space.output.space_texts import command
from streaming.terminal import count_of
from udfs.paths import SEGMENT_DOMAIN, is_v1
from udfs.space.causes import Cause
from udfs.space.space_report import Share, SpaceReport, Subscription, TopicPolicy
from udfs.space.view import OUTSIDE, largest_subscriptions, partitioned_name

_Key = TypeVar("_Key", str, tuple[str, str])
_COMPACTION = "__compaction"
_REPLICATION = "pulsar.repl."
_NOISE = 6  # also without garbage, a bookie's index may name about this many ledgers more than the ensembles do
_OF_TOPICS = ("pulsar-admin topics ", "pulsar-admin topicPolicies ")
_LOADS = "The command loads the topic, and its broker then drops what nothing holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """How the bytes of a cause become free. Bookies return them to the disk at a later garbage collection."""

    cause: Cause
    text: str
    commands: tuple[str, ...] = ()  # alternatives, or steps in this order
    frees: int | None = None  # stored bytes, at most; None: not known
    frees_one_copy: int | None = None


def fixes(report: SpaceReport) -> list[Fix]:
    """Return a fix for each cause in the report: the fix for lost data first, then those for the most stored bytes."""
    by_cause = defaultdict[Cause, list[Share]](list)
    for share in report.shares:
        by_cause[share.cause].append(share)
    order = list(Cause)
    largest_first = sorted(
        by_cause.items(), key=lambda each: (each[0] is not Cause.MISSING, -_stored(each[1]), order.index(each[0]))
    )
    found = [
        _WITH_NAMES[cause](report, shares)
        if cause in _WITH_NAMES
        else Fix(cause=cause, text=_GENERAL[cause][0], commands=_GENERAL[cause][1:])
        for cause, shares in largest_first
    ]
    if any((each.uncollected_ledgers or 0) > _NOISE for each in report.bookies):
        found.append(_not_collected(report))
    return [_without_segments(fix) for fix in found]


def _without_segments(fix: Fix) -> Fix:
    """Remove commands that pulsar-admin does not have for segments of scalable topics."""
    left = tuple(each for each in fix.commands if not (each.startswith(_OF_TOPICS) and f"{SEGMENT_DOMAIN}://" in each))
    if left == fix.commands:
        return fix
    text = f"{fix.text}. The largest is a segment of a scalable topic, for which pulsar-admin has no such command"
    return replace(fix, text=text, commands=left)


def _backlog(report: SpaceReport, shares: Sequence[Share]) -> Fix:
    holding = {(share.topic, share.subscription) for share in shares}
    found = largest_subscriptions(each for each in report.subscriptions if (each.topic, each.name) in holding)
    if not found:
        largest = _largest(shares)
        found = [Subscription(topic=largest.topic, name=largest.subscription, backlog=largest.one_copy, frees=None)]
    first = found[0]
    largest_one = f"The largest backlog is that of {first.name!a} of {first.topic!a}"
    if first.frees is None:
        return Fix(
            cause=Cause.BACKLOG,
            text=f"{largest_one}. The bytes that it would free are not known: a cursor of the topic, or its "
            "retention, could not be read (see below)",
        )
    if not first.frees:
        holder = "retention keeps" if first.is_alone else "other subscriptions, or retention, hold"
        return Fix(
            cause=Cause.BACKLOG,
            text=f"{largest_one}. To move or remove this subscription alone frees nothing: {holder} the same ledgers. "
            "`ledger-reaper space --by subscription` shows all subscriptions",
        )
    return Fix(
        cause=Cause.BACKLOG,
        text="The subscription in the commands frees the most. Clear its backlog if no consumer needs its messages, or "
        "remove the subscription if it is unused. Either loses these messages for the subscription",
        commands=_clear_or_remove(first),
        frees=_as_stored(report, first.topic, first.frees),
        frees_one_copy=first.frees,
    )


def _clear_or_remove(subscription: Subscription) -> tuple[str, str]:
    return (
        command(
            ["pulsar-admin", "topics", "clear-backlog"], [f"--subscription={subscription.name}", subscription.topic]
        ),
        command(["pulsar-admin", "topics", "unsubscribe"], [f"--subscription={subscription.name}", subscription.topic]),
    )


def _behind_gap(_report: SpaceReport, shares: Sequence[Share]) -> Fix:
    first = _largest(shares)
    return Fix(
        cause=Cause.ACKNOWLEDGED_BEHIND_GAP,
        text="A message that is not acknowledged holds everything after it. Let the consumer acknowledge it; or skip "
        "it, which loses it for this subscription. Each further such message has to be skipped in the same way",
        commands=(
            command(
                ["pulsar-admin", "topics", "skip", "--count", "1"],
                [f"--subscription={first.subscription}", first.topic],
            ),
        ),
        frees=first.stored,
        frees_one_copy=first.one_copy,
    )


def _missing(_report: SpaceReport, shares: Sequence[Share]) -> Fix:
    return Fix(
        cause=Cause.MISSING,
        text="Data was lost. `explain` shows what is missing, and what can be done before a broker loads the topic",
        commands=(command(["ledger-reaper", "explain"], [f"--topic={_largest(shares).topic}"]),),
    )


def _broker_cursor(_report: SpaceReport, shares: Sequence[Share]) -> Fix:
    first = _largest(shares)
    commands: tuple[str, ...] = ()
    if first.subscription == _COMPACTION:
        text = (
            "Compaction has not read these messages yet. When it runs, it moves its cursor. Brokers may then drop "
            "replaced values, and clients that do not read the compacted topic (readCompacted) no longer get them"
        )
        commands = (command(["pulsar-admin", "topics", "compact"], [first.topic]),)
    elif first.subscription.startswith(_REPLICATION):
        text = (
            "Replication has not sent these messages to the other cluster. Repair that cluster; clear only what need "
            "not arrive there"
        )
        name = f"--subscription={first.subscription}"
        commands = (command(["pulsar-admin", "topics", "clear-backlog"], [name, first.topic]),)
    else:
        text = "Deduplication moves its cursor while the topic is loaded, every 1,000 messages or 120 s"
    return Fix(
        cause=Cause.BROKER_CURSOR,
        text=text,
        commands=commands,
        frees=first.stored if commands else None,
        frees_one_copy=first.one_copy if commands else None,
    )


def _retention(report: SpaceReport, shares: Sequence[Share]) -> Fix:
    def scope(share: Share) -> tuple[str, str]:
        policy = report.policies.get(share.topic)
        is_topics = policy is not None and policy.level == "topic"
        return ("topicPolicies", partitioned_name(share.topic)) if is_topics else ("namespaces", share.namespace)

    (group, name), kept = _largest_group(shares, scope)
    policies = [report.policies[share.topic] for share in kept if share.topic in report.policies]
    subscribed = {each.topic for each in report.subscriptions}
    if alone := [share.topic for share in kept if share.topic not in subscribed]:
        return Fix(
            cause=Cause.RETENTION,
            text=f"{_policy_text(policies)}{count_of(len(alone), 'topic')} of {name!a}, such as {alone[0]!a}, have no "
            "subscription: with a shorter retention they lose what readers have not read. Decide that by topic",
        )
    return Fix(
        cause=Cause.RETENTION,
        text=f"{_policy_text(policies)}The command keeps nothing that all subscriptions have acknowledged; larger "
        "values keep more. It applies to every topic there, also to topics without a subscription, whose readers then "
        "find only the newest ledger. Brokers apply it to loaded topics only",
        commands=(command(["pulsar-admin", group, "set-retention", "--time", "0", "--size", "0"], [name]),),
        frees=_stored(kept),
        frees_one_copy=_one_copy(kept),
    )


def _policy_text(policies: Sequence[TopicPolicy]) -> str:
    if not policies:
        return ""
    first = policies[0]
    minutes = "any age" if first.retention_minutes < 0 else f"{first.retention_minutes:,} min"
    size = "any size" if first.retention_megabytes < 0 else f"{first.retention_megabytes:,} MiB"
    return (
        f"Retention, set at the {first.level}, keeps {minutes} and {size} of each topic, and ends at the first limit "
        "that is reached. "
    )


def _trimmable(report: SpaceReport, shares: Sequence[Share]) -> Fix:
    idle = [share for share in shares if not _is_loaded(report, share.topic)]
    if not idle:
        return Fix(
            cause=Cause.TRIMMABLE,
            text="Nothing: brokers drop it at their next check (retentionCheckIntervalInSeconds, 2 minutes by default)",
        )
    lossy = {share.topic for share in report.shares if share.cause is Cause.MISSING}
    idle = [share for share in idle if share.topic not in lossy]
    if not idle:
        return Fix(
            cause=Cause.TRIMMABLE,
            text="These topics also have missing ledgers, and a broker that loads such a topic drops the evidence. Run "
            "the audit first",
            commands=("ledger-reaper audit --verify-only",),
        )
    first = _largest(idle)
    verb = "stats-internal" if is_v1(first.namespace) else "trim-topic"  # brokers answer 404 to trim-topic of V1 names
    return Fix(
        cause=Cause.TRIMMABLE,
        text=f"No broker is known to have loaded the topic, and only a broker that has loaded it checks it. {_LOADS}",
        commands=(command(["pulsar-admin", "topics", verb], [first.topic]),),
        frees=first.stored,
        frees_one_copy=first.one_copy,
    )


def _offloaded(_report: SpaceReport, shares: Sequence[Share]) -> Fix:
    name, kept = _largest_group(shares, lambda share: share.namespace)
    commands = ["ledger-reaper audit --verify-only"]
    if is_v1(name):  # brokers answer 405 to a request that sets the lag
        ends = "Only managedLedgerOffloadDeletionLagMs in broker.conf changes the lag in the largest namespace"
    else:
        ends = "The second command ends the lag in the largest namespace"
        commands.append(command(["pulsar-admin", "namespaces", "set-offload-deletion-lag", "--lag", "0s"], [name]))
    return Fix(
        cause=Cause.OFFLOADED_AND_KEPT,
        text="Brokers keep the BookKeeper copy for the deletion lag (4 hours by default; a negative lag keeps it for "
        "ever), and delete it only while the topic is loaded. Then the bucket has the only copy, so first let the "
        f"audit search for missing objects. {ends}",
        commands=tuple(commands),
        frees=_stored(kept),
        frees_one_copy=_one_copy(kept),
    )


def _system_topics(_report: SpaceReport, shares: Sequence[Share]) -> Fix:
    first = _largest(shares)
    return Fix(
        cause=Cause.SYSTEM_TOPICS,
        text="Pulsar keeps policies and other state there. Compaction removes replaced values of __change_events",
        commands=(command(["pulsar-admin", "topics", "compact"], [first.topic]),)
        if first.topic.endswith("/__change_events")
        else (),
    )


def _unreferenced(_report: SpaceReport, shares: Sequence[Share]) -> Fix:
    return Fix(
        cause=Cause.UNREFERENCED,
        text="The audit proves which of them are orphans; the second command requests their deletion",
        commands=("ledger-reaper audit --out audit", "ledger-reaper audit --out audit --last --publish"),
        frees=_stored(shares),
        frees_one_copy=_one_copy(shares),
    )


def _not_collected(report: SpaceReport) -> Fix:
    ledgers = sum(each.uncollected_ledgers or 0 for each in report.bookies)
    return Fix(
        cause=Cause.NOT_COLLECTED,
        text=f"Bookies have about {ledgers:,} copies of ledgers that do not exist any more; they report no bytes of "
        "them. Bookies free deleted ledgers by themselves, every gcWaitTime, and rewrite an entry log only if "
        "its live share is less than minorCompactionThreshold or majorCompactionThreshold (bookkeeper.conf). The "
        "second command also rewrites entry logs, which costs disk reads and writes",
        commands=("ledger-reaper space --collect", "ledger-reaper space --collect --compact"),
    )


_WITH_NAMES: Mapping[Cause, Callable[[SpaceReport, Sequence[Share]], Fix]] = {
    Cause.MISSING: _missing,
    Cause.BACKLOG: _backlog,
    Cause.ACKNOWLEDGED_BEHIND_GAP: _behind_gap,
    Cause.BROKER_CURSOR: _broker_cursor,
    Cause.RETENTION: _retention,
    Cause.TRIMMABLE: _trimmable,
    Cause.OFFLOADED_AND_KEPT: _offloaded,
    Cause.SYSTEM_TOPICS: _system_topics,
    Cause.UNREFERENCED: _unreferenced,
}
# a text, and commands
_GENERAL: Mapping[Cause, tuple[str, ...]] = {
    Cause.OPEN_ACTIVE: (
        "Nothing: a broker closes a ledger at managedLedgerMaxEntriesPerLedger, managedLedgerMaxSizePerLedgerMbytes or "
        "managedLedgerMaxLedgerRolloverTimeMinutes (broker.conf)",
    ),
    Cause.OPEN_IDLE: ("Nothing: a topic keeps its last ledger until a broker loads the topic and closes the ledger",),
    Cause.PARTLY_READ: (
        "Nothing: brokers drop whole ledgers, and drop this one once it is read to its end. Smaller ledgers "
        "(managedLedgerMaxEntriesPerLedger in broker.conf) hold less",
    ),
    Cause.HELD_OR_RETAINED: ("Repair what could not be read (see below), then run `space` again",),
    Cause.TIERED: (
        "Nothing on bookies. Retention and subscriptions hold it as they hold other ledgers; objects that no topic "
        "refers to are found by the audit",
        "ledger-reaper audit --out audit",
    ),
    Cause.CURSORS: ("Nothing: brokers replace a cursor's ledger as the cursor moves",),
    Cause.SCHEMAS: ("Nothing: topics need their schemas",),
    Cause.COMPACTED: ("Nothing: the next compaction replaces it",),
    Cause.DELAYED_BUCKETS: ("Nothing: brokers delete a bucket once its messages are delivered",),
    Cause.TRANSACTIONS: ("Snapshots of aborted transactions may be garbage", "ledger-reaper snapshots audit"),
    Cause.UNREFERENCED_OPEN: (
        "Wait: most are former ledgers of cursors. The audit shows when the service would delete them",
        "ledger-reaper audit --out audit",
    ),
    Cause.TOO_YOUNG: ("Wait: a topic may still refer to it",),
    Cause.FOREIGN: ("Ask the other users of this BookKeeper. Ledger Reaper never touches it",),
    Cause.UNKNOWN: ("Repair what could not be read (see below), then run `space` again",),
}


def _largest(shares: Sequence[Share]) -> Share:
    return max(shares, key=lambda share: (share.stored, share.one_copy, share.topic, share.subscription))


def _largest_group(shares: Sequence[Share], key_of: Callable[[Share], _Key]) -> tuple[_Key, list[Share]]:
    groups = defaultdict[_Key, list[Share]](list)
    for share in shares:
        groups[key_of(share)].append(share)
    return max(groups.items(), key=lambda each: (_stored(each[1]), each[0]))


def _stored(shares: Iterable[Share]) -> int:
    return sum(share.stored for share in shares)


def _one_copy(shares: Iterable[Share]) -> int:
    return sum(share.one_copy for share in shares)


def _as_stored(report: SpaceReport, topic: str, one_copy: int) -> int | None:
    """Convert bytes of one copy to stored bytes, by the ratio of the two for the whole topic in BookKeeper."""
    shares = [share for share in report.shares if share.topic == topic and share.cause not in OUTSIDE]
    whole = _one_copy(shares)
    return round(one_copy * _stored(shares) / whole) if whole else None


def _is_loaded(report: SpaceReport, topic: str) -> bool:
    policy = report.policies.get(topic)
    return policy is not None and bool(policy.is_loaded)
