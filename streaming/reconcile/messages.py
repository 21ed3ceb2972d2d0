"""Is every message that was read accounted for, and does every request that was put off still wait?

1. By position: each entry of a partition up to the committed position has its receipts, or waits in the table
   streaming.state.waiting. We read an entry that seems to have none before we count it as missing: it may hold a marker
   of the broker's and no message.
2. By request: streaming.reconcile.retries.
3. By ledger: a ledger that held unread messages at the last look and is gone from the topic took them with it (TTL,
   backlog eviction, a topic deleted, or deleted and made anew). streaming.reconcile.memory keeps it until a person
   accepts the loss (`accept --gaps`).
Messages move while we look. We read the places in the order in which a message passes through them, so that we never
miss one between two places and call it a gap. A topic that we can't look at is named, and hides no other topic's gaps.
"""

import contextlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from streaming.config.settings import Settings
from streaming.errors import ReaperError, RefusedError
from streaming.ports import Pulsar, TopicAdmin
from streaming.queries.checkpoints import committed_positions, location_of
from streaming.queries.names import queries_of
from streaming.reconcile.markers import Markers
from streaming.reconcile.memory import Unread, UnreadMemory
from streaming.reconcile.positions import Accounted, AccountedEntries, accounted
from streaming.reconcile.retries import not_waiting, put_off
from streaming.state.worked_off import WorkedOff
from udfs.entry_ranges import EntrySpan, joined, without
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import base_topic, tenant_of, topic_of
from udfs.units import DAY_MS

_SHOWN = 3
MOST_LOST = 1_000  # ledgers of a tenant's deleted topics; more add nothing to the tenant's alarm


@dataclass(frozen=True, slots=True)
class PartitionGaps:
    """One source partition, in entries: read (up to the committed position), unread, and read but unaccounted for.

    missing: (ledger, entry) of each. trimmed: ledgers that vanished with such messages or with unread ones, and whose
    loss nobody has accepted.
    """

    partition: str
    read: int
    unread: int
    missing: tuple[Position, ...] = ()
    trimmed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Of all partitions. put_off: requests that wait for another try; lost: those of them that wait nowhere.

    unseen: topic or partition -> why we could not look at it; is_refused: some of it for want of rights.
    """

    partitions: tuple[PartitionGaps, ...]
    put_off: int
    lost: tuple[str, ...] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    is_refused: bool = False

    @property
    def gaps(self) -> list[str]:
        """What is not accounted for, in words; empty where all that we looked at is."""
        return list(self.gaps_by_kind.values())

    @property
    def gaps_by_kind(self) -> dict[tuple[str, str], str]:
        """(tenant, kind) -> in words; the requests that wait nowhere have no tenant here."""
        said = {}
        by_tenant: dict[str, list[PartitionGaps]] = {}
        for one in self.partitions:
            by_tenant.setdefault(tenant_of(one.partition), []).append(one)
        for tenant, partitions in by_tenant.items():
            if missing := [one for one in partitions if one.missing]:
                n, first = sum(len(one.missing) for one in missing), missing[0]
                said[tenant, "missing"] = (
                    f"tenant {tenant}: {n} messages were read and have no receipt, such as {_some(first.missing)} of "
                    f"{first.partition}"
                )
            if trimmed := [one for one in partitions if one.trimmed]:
                n, first = sum(len(one.trimmed) for one in trimmed), trimmed[0]
                topics = len({base_topic(one.partition) for one in trimmed})
                said[tenant, "trimmed"] = (
                    f"tenant {tenant}: {n} ledgers of {topics} topics vanished with unread messages in them (TTL, "
                    f"eviction, a deleted topic?), such as {_some(first.trimmed)} of {first.partition}"
                )
        if self.lost:
            words = f"{len(self.lost)} requests were put off and wait nowhere, such as {_some(self.lost)}"
            said["", "lost"] = words
        return said

    @property
    def doubt(self) -> str:
        """What we could not look at, in words; "" where we looked at everything."""
        return "; ".join(f"{what} could not be looked at: {why}" for what, why in sorted(self.unseen.items()))

    @property
    def text(self) -> str:
        """The sum, in words."""
        entries = sum(one.read for one in self.partitions)
        unread = sum(one.unread for one in self.partitions)
        return f"{entries} entries read and accounted for, {unread} unread, {self.put_off} requests put off"


@dataclass(slots=True)
class PartitionEntries:
    """One partition as internalStats shows it beside the committed position: ledger -> entries, for each of three."""

    stored: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    unread: dict[int, int] = field(default_factory=dict)


def look(ledgers: Iterable[tuple[int, int]], committed: Position) -> PartitionEntries:
    """Tell read from unread in a partition's ledgers (id, entries)."""
    seen = PartitionEntries()
    for ledger, entries in ledgers:
        upto = entries if ledger < committed[0] else min(entries, committed[1] + 1) if ledger == committed[0] else 0
        seen.stored[ledger], seen.read[ledger] = entries, upto
        if entries > upto:
            seen.unread[ledger] = entries
    return seen


def missing_of(seen: PartitionEntries, known: AccountedEntries) -> list[Position]:
    """Entries that were read and are not accounted for, in order."""
    return [
        (ledger, entry)
        for ledger, upto in sorted(seen.read.items())
        for entry in _lacking(known.get(ledger, range(0)), upto)
    ]


def _lacking(known: range | set[int], upto: int) -> Iterable[int]:
    if isinstance(known, range):
        return range(len(known), upto)
    return (entry for entry in range(upto) if entry not in known)


def vanished(
    before: Mapping[int, int], seen: PartitionEntries, known: AccountedEntries, worked_off: Iterable[EntrySpan] = ()
) -> list[int]:
    """Ledgers that held unread entries at the last look, are gone now, and were not read meanwhile.

    worked_off: entries that need no receipt, since all of them were looked at and no message was among the others.
    """
    gone = (EntrySpan(ledger, 0, entries - 1) for ledger, entries in before.items() if ledger not in seen.stored)
    lost = {
        span.ledger
        for span in without(gone, worked_off)
        if any(entry not in known.get(span.ledger, ()) for entry in range(span.first, span.last + 1))
    }
    return sorted(lost)


def reconcile(
    settings: Settings,
    pulsar: Pulsar,
    now_ms: int,
    *,
    matched: Sequence[str] = (),
    service: Markers | None = None,
) -> Reconciliation:
    """Look at everything that is still stored. matched: request topics beside the listed ones.

    service: what its earlier looks need not have read again; this one adds to it, and keeps what is unread now for the
    next look. None: somebody else looks. Raises UnavailableError where nothing can be looked at.
    """
    waiting = put_off(settings, now_ms)
    look_now = _Look(settings, pulsar, now_ms, service or Markers())
    look_now.find_positions(matched)
    lost = look_now.lost(waiting)
    memory = UnreadMemory(settings.state_dir)
    before = memory.recall()
    unread = {partition: dict(each) for partition, each in before.items()}  # stays for what we can't look at now
    unread |= look_now.partitions(before)
    unread |= look_now.former_partitions(before)
    if service is not None:
        memory.remember(unread)
        service.keep_only(look_now.looked_at)
    failed = look_now.failed
    return Reconciliation(
        tuple(look_now.found), waiting.num_rows, tuple(sorted(lost)), failed.why, is_refused=failed.is_refused
    )


def accept_gaps(settings: Settings, pulsar: Pulsar, now_ms: int, *, matched: Sequence[str] = ()) -> list[str]:
    """Raise no alarm any more for the ledgers that vanished with unread messages up to now; returns which they are."""
    accounts = reconcile(settings, pulsar, now_ms, matched=matched)
    lost = {one.partition: one.trimmed for one in accounts.partitions if one.trimmed}
    UnreadMemory(settings.state_dir).accept(lost)
    return [f"{partition}: ledgers {', '.join(map(str, ledgers))}" for partition, ledgers in lost.items()]


class _Look:
    """One look. found: what it came to, partition by partition. failed: what could not be looked at."""

    def __init__(self, settings: Settings, pulsar: Pulsar, now_ms: int, markers: Markers) -> None:
        self._settings = settings
        self._pulsar = pulsar
        self._now_ms = now_ms
        self._markers = markers
        self._worked_off = WorkedOff(settings.state_dir)
        self._spans: dict[str, list[EntrySpan]] | None = None
        self._committed: dict[str, Position] = {}
        self._last: dict[str, Position] = {}
        self.failed = _FailedLooks(pulsar.admin)
        self.found: list[PartitionGaps] = []

    def find_positions(self, matched: Sequence[str]) -> None:
        """Read how far each partition was worked off, and only then where it ends."""
        admin = self._pulsar.admin
        for query in queries_of(self._settings, matched):
            with self.failed.noting(*map(topic_of, query.topics)):
                done = committed_positions(location_of(self._settings, query.name))
                ends = [admin.last_positions(topic) for topic in query.topics if admin.partitions(topic)]
                self._committed |= done
                self._last |= {partition: end for each in ends for partition, end in each.items()}

    def lost(self, waiting: pa.Table) -> set[str]:
        """Requests that were put off and wait nowhere; none where the retry topic can't be looked at."""
        retry = topic_of(self._settings.topics.retry)
        lost: set[str] = set()
        if retry not in self.failed.why:
            with self.failed.noting(retry):
                unread = {
                    partition: (self._committed.get(partition, BEFORE_ALL), end)
                    for partition, end in self._last.items()
                    if partition.startswith(f"{self._settings.topics.retry}-partition-")
                }
                lost = not_waiting(self._settings, self._pulsar.reader, waiting, unread, self._now_ms)
        return lost

    def partitions(self, before: Unread) -> Unread:
        """Look at every partition that is read now; returns what of each is to be remembered."""
        worth_remembering = {}
        for partition in self._last:
            with self.failed.noting(partition):
                stats = self._pulsar.admin.internal_stats(partition)
                seen = look(stats.ledgers, self._committed.get(partition, BEFORE_ALL))
                old = before.get(partition, {})
                gaps = self._gaps(partition, seen, old)
                self.found.append(gaps)
                worth_remembering[partition] = _worth_remembering(gaps, seen, old)
        return worth_remembering

    @property
    def looked_at(self) -> Collection[str]:
        """The partitions of topics that exist."""
        return self._last.keys()

    def former_partitions(self, before: Unread) -> Unread:
        """Look at those that are remembered and not read any more; returns what of each is to be remembered.

        Of each tenant at most MOST_LOST ledgers are remembered as lost: a tenant may create and delete topics for ever.
        """
        by_topic: dict[str, list[str]] = {}
        for partition in sorted(before.keys() - self._last.keys()):
            by_topic.setdefault(base_topic(partition), []).append(partition)
        gone = {
            partition: before[partition]
            for topic, partitions in by_topic.items()
            if self._is_gone(topic)
            for partition in partitions
        }
        worth_remembering: Unread = {}
        with self.failed.noting(*by_topic):
            known = accounted(self._settings.state_dir, gone)
            room: dict[str, int] = {}
            for partition, old in gone.items():
                lost = self._vanished(partition, old, PartitionEntries(), known[partition].entries())
                left = room.setdefault(tenant_of(partition), MOST_LOST)
                kept = lost[:left]
                room[tenant_of(partition)] = left - len(kept)
                worth_remembering[partition] = {ledger: old[ledger] for ledger in kept}
                if kept:
                    self.found.append(PartitionGaps(partition, 0, 0, trimmed=tuple(kept)))
        return worth_remembering

    def _is_gone(self, topic: str) -> bool:
        """Whether it does not exist; a topic that exists and is not read still holds what was unread."""
        if topic in self.failed.why:
            return False
        with self.failed.noting(topic):
            return self._pulsar.admin.partitions(topic) is None
        return False

    def _gaps(self, partition: str, seen: PartitionEntries, before: Mapping[int, int]) -> PartitionGaps:
        read = {ledger for ledger, entries in seen.read.items() if entries}
        wanted = {partition: read | (before.keys() - seen.stored.keys())}
        done = accounted(self._settings.state_dir, wanted)[partition]
        known = done.entries()
        return PartitionGaps(
            partition,
            sum(seen.read.values()),
            sum(entries - seen.read[ledger] for ledger, entries in seen.unread.items()),
            tuple(self._confirmed(partition, missing_of(seen, known), done, seen.stored)),
            tuple(self._vanished(partition, before, seen, known)),
        )

    def _vanished(
        self, partition: str, before: Mapping[int, int], seen: PartitionEntries, known: AccountedEntries
    ) -> list[int]:
        """As vanished(); what was worked off without a receipt is looked up only where something seems lost."""
        lost = vanished(before, seen, known)
        if lost and self._spans is None:
            self._spans = self._worked_off.recall()
        return vanished(before, seen, known, (self._spans or {}).get(partition, ())) if lost else lost

    def _confirmed(
        self, partition: str, missing: Iterable[Position], done: Accounted, stored: Mapping[int, int]
    ) -> list[Position]:
        """Those of the entries that do hold messages without a receipt, and are as young as receipts are kept.

        Only these entries are read: among the others there may be some for whose answer a broker takes seconds. The
        one before each is read along, for where nobody can tell when a message was published, it is as old as that.
        """
        known = self._markers.of(partition)
        spans = list(without((EntrySpan(ledger, entry, entry) for ledger, entry in missing), known))
        if not spans:
            return []
        wanted = {(span.ledger, entry) for span in spans for entry in range(span.first, span.last + 1)}
        messages = done.messages({span.ledger for span in spans})
        oldest_ms = self._now_ms - self._settings.state.receipts_days * DAY_MS
        confirmed: list[Position] = []
        published_ms = 0
        for message in self._pulsar.reader.read_entries(partition, _with_those_before(spans, stored)):
            here = (message.ledger_id, message.entry_id)
            is_known = (*here, message.batch_index) in messages
            published_ms = message.publish_ms or published_ms
            if here in wanted and not is_known and published_ms >= oldest_ms:
                wanted.discard(here)
                if self._holds_other(partition, here, messages):
                    confirmed.append(here)
        self._markers.keep(partition, without(spans, (EntrySpan(*each, each[1]) for each in confirmed)), stored)
        return confirmed

    def _holds_other(self, partition: str, here: Position, messages: Container[tuple[int, int, int]]) -> bool:
        """Whether an entry, read by itself, holds a message that is not among these.

        Of many entries that the broker sends to nobody we ask for a few only, and the others count as messages, markers
        among them (adapters.pulsar.entries).
        """
        found = self._pulsar.reader.read_entries(partition, [EntrySpan(*here, here[1])])
        return any((*here, message.batch_index) not in messages for message in found)


def _with_those_before(spans: Iterable[EntrySpan], stored: Mapping[int, int]) -> list[EntrySpan]:
    """Add to spans the entry before each. stored: ledger -> entries."""
    filled = sorted(ledger for ledger, entries in stored.items() if entries)
    last_of = {behind: EntrySpan(ledger, stored[ledger] - 1, stored[ledger] - 1) for ledger, behind in pairwise(filled)}
    wider: list[EntrySpan] = []
    for span in spans:
        wider.append(EntrySpan(span.ledger, max(span.first - 1, 0), span.last))
        if span.first == 0 and span.ledger in last_of:
            wider.append(last_of[span.ledger])
    return joined(wider)


class _FailedLooks:
    """Notes what we could not look at and goes on, as long as a broker answers at all."""

    def __init__(self, admin: TopicAdmin) -> None:
        self._admin = admin
        self.why: dict[str, str] = {}
        self.is_refused = False

    @contextlib.contextmanager
    def noting(self, *what: str) -> Iterator[None]:
        """Go on behind the block where it fails. Where no broker answers, raise what the block raised."""
        try:
            yield
        except ReaperError as error:
            try:
                self._admin.clusters()
            except ReaperError:
                raise error from None
            self.why |= dict.fromkeys(what, str(error))
            self.is_refused |= isinstance(error, RefusedError)


def _worth_remembering(gaps: PartitionGaps, seen: PartitionEntries, before: Mapping[int, int]) -> dict[int, int]:
    """Ledger -> entries: those with unread entries, and those with a gap, which must not go with the ledger."""
    with_gaps = {ledger: seen.read[ledger] for ledger, _ in gaps.missing}
    return with_gaps | seen.unread | {ledger: before[ledger] for ledger in gaps.trimmed}


def _some(things: Iterable[object]) -> str:
    shown = [f"{each[0]}:{each[1]}" if isinstance(each, tuple) else str(each) for each in things]
    return ", ".join(shown[:_SHOWN])
