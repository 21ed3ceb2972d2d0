"""Checks that every message that was read is accounted for, and that every delayed request still waits.

1. By position: each entry of a partition up to the committed position has its receipts, or waits in the table
   streaming.state.waiting. We read an entry that seems to be missing before we report it: it may contain a broker's
   marker and no message.
2. By request: streaming.reconcile.delayed_requests.
3. By ledger: if a ledger had unread entries or gaps at the last check, is gone from the topic now, and one of its
   entries is not accounted for, messages were lost (TTL, backlog eviction, a topic deleted, or deleted and created
   again). streaming.reconcile.memory remembers the ledger until an operator accepts the loss (`accept --gaps`).
If a topic can't be checked, the result names it, and the other topics are checked nevertheless.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from streaming.config.settings import Settings
from streaming.errors import ReaperError, RefusedError
from streaming.ports import Pulsar, TopicAdmin
from streaming.queries.checkpoints import committed_positions, location_of
from streaming.queries.names import queries_of
from streaming.reconcile.confirmation import Confirmation
from streaming.reconcile.delayed_requests import delayed_requests, lost_requests
from streaming.reconcile.gaps import PartitionGaps, Reconciliation
from streaming.reconcile.markers import Markers
from streaming.reconcile.memory import Unread, UnreadMemory
from streaming.reconcile.partition_entries import PartitionEntries, lost_ledgers, missing_of, split_at, to_remember
from streaming.reconcile.positions import AccountedEntries, accounted
from streaming.state.notes.worked_off import Spans, WorkedOff
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.paths import base_topic, partition_index, tenant_of, topic_of
from udfs.requests.lanes import fair_by_tenant
from udfs.units import DAY_MS

MOST_IDLE_LANES = 500  # partitions of a check; each costs two requests
MOST_LOST = 1_000  # ledgers of a tenant's deleted topics; more would add nothing to the tenant's alarm


def reconcile(
    settings: Settings,
    pulsar: Pulsar,
    now_ms: int,
    *,
    unlisted: Sequence[str] = (),
    service: Markers | None = None,
) -> Reconciliation:
    """Check everything that is still stored. Raises UnavailableError if nothing can be checked.

    Args:
        settings: of the service.
        pulsar: reads topics and their positions.
        now_ms: the time, in ms since 1970.
        unlisted: as queries_of.
        service: entries that the service's earlier checks have read, and that need not be read again, and lanes that it
            has processed. This check adds entries, and remembers for the next check what is unread now. None: a command
            checks, and remembers nothing.
    """
    # messages move while we check: the stores are read in the order in which a message passes through them, so that a
    # message between two stores never seems to be missing
    delayed = delayed_requests(settings, now_ms)
    check = _Check(settings, pulsar, now_ms, service or Markers())
    check.read_positions(unlisted)
    lost = check.lost(delayed)
    memory = UnreadMemory(settings.state_dir)
    remembered = memory.recall()
    check.read_lanes(
        service.lanes if service is not None else {},
        {partition: upto for partition, upto in memory.processed().items() if partition in remembered},
        service.waiting if service is not None else {},
    )
    unread = {partition: dict(ledgers) for partition, ledgers in remembered.items()}  # stays if it can't be checked now
    unread |= check.partitions(remembered)
    unread |= check.former_partitions(remembered)
    if service is not None:
        memory.remember(unread, check.lanes)
        service.keep_only(check.existing)
    return Reconciliation(
        partitions=tuple(check.gaps),
        delayed=delayed.num_rows,
        lost=tuple(sorted(lost)),
        unchecked=check.failures.why,
        is_refused=check.failures.is_refused,
    )


def accept_gaps(settings: Settings, pulsar: Pulsar, now_ms: int, *, unlisted: Sequence[str] = ()) -> list[str]:
    """Stop the alarm for the ledgers that have vanished with unread messages so far; returns them as texts."""
    accounts = reconcile(settings, pulsar, now_ms, unlisted=unlisted)
    lost = {gaps.partition: gaps.trimmed for gaps in accounts.partitions if gaps.trimmed}
    UnreadMemory(settings.state_dir).accept(lost)
    return [f"{partition}: ledgers {', '.join(map(str, ledgers))}" for partition, ledgers in lost.items()]


class _Check:
    """A reconciliation, partition by partition."""

    def __init__(self, settings: Settings, pulsar: Pulsar, now_ms: int, markers: Markers) -> None:
        self._settings = settings
        self._pulsar = pulsar
        self._now_ms = now_ms
        self._markers = markers
        self._worked_off: Spans | None = None  # read when a ledger seems to be lost
        self._committed: dict[str, Position] = {}
        self._last: dict[str, Position] = {}
        self._counts: dict[str, int] = {}  # topic -> number of its partitions; 0 if it does not exist
        self._later: set[str] = set()  # partitions of lanes that this check leaves to a later one
        self.lanes: dict[str, Position] = {}  # partition -> up to where it was processed, for lanes that exist
        self.failures = _Failures(pulsar.admin)
        self.gaps: list[PartitionGaps] = []

    def read_positions(self, unlisted: Sequence[str]) -> None:
        """Read the committed position of each partition, and after that its end."""
        admin = self._pulsar.admin
        for query in queries_of(self._settings, unlisted):
            with self.failures.noted(*map(topic_of, query.topics)):
                # before the end: a batch that is committed in between is then only counted as unread
                committed = committed_positions(location_of(self._settings, query.name))
                ends = [admin.last_positions(topic) for topic in query.topics if admin.partitions(topic)]
                self._committed |= committed
                self._last |= {partition: end for of_topic in ends for partition, end in of_topic.items()}

    def read_lanes(
        self, processed: Mapping[str, Position], idle: Mapping[str, Position], waiting: Mapping[str, Position]
    ) -> None:
        """Add partitions of lanes, each with the position up to which it was processed.

        Args:
            processed: lanes that were processed since the last check.
            idle: other lanes with unread messages or gaps at the last check. MOST_IDLE_LANES of them are checked.
            waiting: lanes with unread messages now. Those that are in neither are checked up to the same number, so
                that their loss is noticed.
        """
        # the query of one that is listed now has read further
        idle = {partition: at for partition, at in idle.items() if not self._is_listed(partition)}
        ordered = fair_by_tenant(idle.keys() - processed.keys())
        self._later = {*ordered[MOST_IDLE_LANES:]}
        if self._later:
            self.failures.why["lanes"] = (
                f"{len(ordered)} lanes without new requests have unread messages or gaps, and a check reads "
                f"{MOST_IDLE_LANES}"
            )
        checked = ordered[:MOST_IDLE_LANES]
        checked += fair_by_tenant(waiting.keys() - idle.keys() - processed.keys())[: MOST_IDLE_LANES - len(checked)]
        idle = {**waiting, **idle}
        # a deleted lane is no failure: former_partitions() checks it
        existing = [partition for partition in checked if not self._is_gone(partition)]
        lanes = {partition: idle[partition] for partition in existing}
        lanes |= {partition: max(upto, idle.get(partition, BEFORE_ALL)) for partition, upto in processed.items()}
        self._committed |= lanes
        self._last |= lanes
        self.lanes = lanes | {partition: idle[partition] for partition in self._later}

    def lost(self, delayed: pa.Table) -> set[str]:
        """Return the delayed requests that wait nowhere; none if the retry topic can't be checked."""
        retry = topic_of(self._settings.topics.retry)
        lost: set[str] = set()
        if retry not in self.failures.why:
            with self.failures.noted(retry):
                unread = {
                    partition: (self._committed.get(partition, BEFORE_ALL), end)
                    for partition, end in self._last.items()
                    if partition.startswith(f"{self._settings.topics.retry}-partition-")
                }
                lost = lost_requests(self._settings, self._pulsar.reader, delayed, unread, self._now_ms)
        return lost

    def partitions(self, remembered: Unread) -> Unread:
        """Check every partition that is read now, and return what to remember of each."""
        unread: Unread = {}
        for partition in list(self._last):
            with self.failures.noted(partition):
                stats = self._stats_of(partition)
                if stats is None:
                    del self._last[partition], self.lanes[partition]
                    continue
                entries = split_at(self._committed.get(partition, BEFORE_ALL), stats.ledgers)
                before = remembered.get(partition, {})
                gaps = self._gaps(partition, entries, before)
                self.gaps.append(gaps)
                unread[partition] = to_remember(gaps.missing, entries) | {
                    ledger: before[ledger] for ledger in gaps.trimmed
                }
        return unread

    @property
    def existing(self) -> Collection[str]:
        """The partitions of topics that exist."""
        return self._last.keys()

    def former_partitions(self, remembered: Unread) -> Unread:
        """Check the remembered partitions that are no longer read, and return what to remember of each.

        At most MOST_LOST ledgers of each tenant are remembered, because a tenant may create and delete topics for ever.
        """
        former = sorted(remembered.keys() - self._last.keys() - self._later)
        gone = {partition: remembered[partition] for partition in former if self._is_gone(partition)}
        unread: Unread = {}
        with self.failures.noted(*map(base_topic, former)):
            messages = accounted(self._settings.state_dir, gone)
            quotas: dict[str, int] = {}
            for partition, before in gone.items():
                lost = self._lost_ledgers(partition, before, PartitionEntries(), messages[partition].entries())
                quota = quotas.setdefault(tenant_of(partition), MOST_LOST)
                kept = lost[:quota]
                quotas[tenant_of(partition)] = quota - len(kept)
                unread[partition] = {ledger: before[ledger] for ledger in kept}
                if kept:
                    self.gaps.append(PartitionGaps(partition=partition, read=0, unread=0, trimmed=tuple(kept)))
        return unread

    def _stats_of(self, partition: str) -> InternalStats | None:
        """Return a partition's ledgers; None if it is a lane's, and was deleted after it was processed.

        A deleted lane is no failure: former_partitions() checks it.
        """
        try:
            return self._pulsar.admin.internal_stats(partition)
        except RefusedError:
            if partition in self.lanes and self._is_gone(partition):
                return None
            raise

    def _is_listed(self, partition: str) -> bool:
        return base_topic(partition) in self._settings.topics.owned

    def _is_gone(self, partition: str) -> bool:
        """Whether the partition does not exist. One that exists and is not read still has its unread messages."""
        topic = base_topic(partition)
        if topic in self.failures.why:
            return False
        with self.failures.noted(topic):
            if topic not in self._counts:
                self._counts[topic] = self._pulsar.admin.partitions(topic) or 0
            # a topic that was deleted and created again may have fewer partitions
            return partition_index(partition) >= self._counts[topic]
        return False

    def _gaps(self, partition: str, entries: PartitionEntries, before: Mapping[int, int]) -> PartitionGaps:
        read = {ledger for ledger, count in entries.read.items() if count}
        ledgers = {partition: read | (before.keys() - entries.stored.keys())}
        messages = accounted(self._settings.state_dir, ledgers)[partition]
        accounted_entries = messages.entries()
        oldest_ms = self._now_ms - self._settings.state.receipts_days * DAY_MS
        confirmation = Confirmation(self._pulsar.reader, self._markers, oldest_ms)
        missing = confirmation.gaps(partition, missing_of(entries, accounted_entries), messages, entries.stored)
        return PartitionGaps(
            partition=partition,
            read=sum(entries.read.values()),
            unread=sum(count - entries.read[ledger] for ledger, count in entries.unread.items()),
            missing=tuple(missing),
            trimmed=tuple(self._lost_ledgers(partition, before, entries, accounted_entries)),
        )

    def _lost_ledgers(
        self, partition: str, before: Mapping[int, int], entries: PartitionEntries, accounted_entries: AccountedEntries
    ) -> list[int]:
        """Like lost_ledgers(), which gets the fallback's note as `worked_off`."""
        lost = lost_ledgers(before, entries, accounted_entries)
        if not lost:
            return lost
        # the note of the fallback is read only if a ledger seems to be lost
        if self._worked_off is None:
            self._worked_off = WorkedOff(self._settings.state_dir).recall()
        return lost_ledgers(before, entries, accounted_entries, self._worked_off.get(partition, ()))


class _Failures:
    """Topics and partitions that could not be checked. The check continues as long as a broker answers at all."""

    def __init__(self, admin: TopicAdmin) -> None:
        self._admin = admin
        self.why: dict[str, str] = {}  # topic or partition -> error
        self.is_refused = False

    @contextlib.contextmanager
    def noted(self, *names: str) -> Iterator[None]:
        """Note an error of the block for these names, and continue. Raises the error if no broker answers."""
        try:
            yield
        except ReaperError as error:
            try:
                # a broker that answers shows that only this topic can't be checked
                self._admin.clusters()
            except ReaperError:
                raise error from None
            self.why |= dict.fromkeys(names, str(error))
            self.is_refused |= isinstance(error, RefusedError)
