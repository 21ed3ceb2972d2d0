"""Shares a batch of the Spark source "pulsar-frames" among partitions, whose next entries are counted in threads."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import zip_longest

from streaming.adapters.pulsar.source.broker import SourceBroker
from streaming.adapters.pulsar.source.counting import Counting
from streaming.errors import UnavailableError
from udfs.entry_ranges import bytes_of, count_of
from udfs.formats.entry import Weight
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.pulsar_source import planning
from udfs.pulsar_source.admission import Admission, Limits, Turns
from udfs.pulsar_source.offsets import PartitionOffset

log = logging.getLogger("pulsar-frames")

PLANNING_SECONDS = 1.0  # after this time a batch is planned without the partitions that have not answered
_LATE_SECONDS = 600.0  # so long no batch waits again for a partition that was counted too late
# Messages as which an entry counts that no reader gets: a task requests it from the admin API, which takes far longer.
# So a sender can't make a batch read such entries for hours.
_NOT_SENT = 50
_ROUNDS = 8  # of sharing what other topics did not use
_MOST_READERS = 200  # partitions of a batch, and readers that are kept open


@dataclass(slots=True)
class Planned:
    """A partition while a batch is planned."""

    name: str
    topic: str
    start: PartitionOffset
    resumed: PartitionOffset
    stats: InternalStats
    admitted: Position | None = None
    is_read: bool = False  # there is no entry that a reader gets now

    @property
    def end(self) -> PartitionOffset:
        """The partition's offset at the end of the batch."""
        if self.admitted is None:
            return self.resumed
        return planning.advance(self.resumed, self.start, self.admitted, self.stats)


@dataclass(slots=True)
class _Open:
    """The counting of a partition, which continues if the next batch starts where this one ends."""

    counting: Counting
    at: Position
    filling: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a thread still counts."""
        return self.filling is not None and not self.filling.done()

    @property
    def has_failed(self) -> bool:
        """Whether the last thread that counted has failed."""
        return self.filling is not None and self.filling.done() and self.filling.exception() is not None


class Sharing:
    """The counted entries of all partitions of a query, from batch to batch.

    Args:
        threads: count entries; a partition takes one of them at most.
        reads_uncommitted: whether entries after the start of an open transaction count as well.
    """

    def __init__(self, broker: SourceBroker, threads: ThreadPoolExecutor, *, reads_uncommitted: bool) -> None:
        self._broker = broker
        self._threads = threads
        self._reads_uncommitted = reads_uncommitted
        self._turns = Turns()
        self._open: dict[str, _Open] = {}
        self._late_until_s: dict[str, float] = {}
        self._waits = False  # for every partition

    def share(self, planned: list[Planned], limits: Limits, target: Mapping[str, Position] | None) -> None:
        """Let the batch take entries of all partitions; their `admitted` is set.

        Args:
            planned: the partitions.
            limits: of the batch.
            target: partition -> the last entry that may be read, for trigger(availableNow=True); None: no limit.

        Raises RefusedError, and with a target UnavailableError.
        """
        admission = Admission(limits)
        self._waits = target is not None
        deadline_s = time.monotonic() + PLANNING_SECONDS
        self._wait_until(deadline_s)  # for what was counted while the last batch ran
        by_name = {part.name: part for part in planned if self._opened(part, target)}
        order = _first_of_each_topic([by_name[name] for name in self._turns.ordered(by_name)], _MOST_READERS)
        for _ in range(_ROUNDS):
            if not order or admission.left.is_none:
                break
            shares = admission.shares(_by_topic(by_name[name] for name in order))
            self._fill(shares, deadline_s)
            order = [name for name in order if self._take(by_name[name], shares[name], admission)]
        self._count_ahead(by_name.values(), limits)

    def close(self) -> None:
        """Close all readers."""
        for name in [*self._open]:
            self._forget(name)

    def _count_ahead(self, parts: Collection[Planned], limits: Limits) -> None:
        """Count for the next batch while this one runs; all partitions together no more than one batch."""
        shares = Admission(limits).shares(_by_topic(parts))
        readers = sum(known.filling is not None for known in self._open.values())
        for part in parts:
            known = self._open.get(part.name)
            if known is not None and (part.admitted is not None or not known.is_busy):
                known.at = part.end.at
                # A partition whose entries this batch has is asked once more: Spark lets us acknowledge them after the
                # next plan, and that plan must see that their ledger was closed, before Pulsar deletes it.
                part.is_read = part.admitted is None and known.counting.is_empty
                if part.admitted is None or known.is_busy:
                    continue
                if readers > _MOST_READERS:
                    self._forget(part.name)
                    readers -= 1
                else:
                    known.filling = self._threads.submit(known.counting.fill, shares[part.name])

    def _opened(self, part: Planned, target: Mapping[str, Position] | None) -> bool:
        """Whether the partition has unread entries, which are then being counted."""
        upto = planning.END_OF_ALL if target is None else target.get(part.name, BEFORE_ALL)
        spans = planning.unread(part.resumed.at, part.stats, upto)
        known = self._open.get(part.name)
        if known is not None and known.is_busy:
            return known.at == part.resumed.at
        if known is not None and (known.at != part.resumed.at or not spans or known.has_failed):
            self._forget(part.name)
        if not spans:
            part.is_read = True
            return False
        if part.name not in self._open:
            uncounted = Weight(_NOT_SENT, max(1, bytes_of(spans, part.stats) // count_of(spans)))
            counting = Counting(self._broker, part.name, uncounted=uncounted, reads_uncommitted=self._reads_uncommitted)
            self._open[part.name] = _Open(counting, part.resumed.at)
        self._open[part.name].counting.update(spans)
        return True

    def _fill(self, shares: Mapping[str, Limits], deadline_s: float) -> None:
        """Count until each partition's share is full, or until the deadline."""
        for name, share in shares.items():
            known = self._open[name]
            # of a partition for which no batch waits, the batch takes what is counted already
            if not (known.is_busy or known.has_failed or (known.counting.has_entries and not self._is_awaited(name))):
                known.filling = self._threads.submit(known.counting.fill, share)
        self._wait_until(deadline_s)

    def _wait_until(self, deadline_s: float) -> None:
        """Wait for the threads that count, but not for partitions that were late before: anyone can make a topic slow.

        Such a partition is in the batches that are planned after it was counted.
        """
        awaited = [
            known.filling for name, known in self._open.items() if known.filling is not None and self._is_awaited(name)
        ]
        wait(awaited, None if self._waits else max(0.0, deadline_s - time.monotonic()))

    def _is_awaited(self, partition: str) -> bool:
        return self._waits or self._late_until_s.get(partition, 0.0) <= time.monotonic()

    def _set_late(self, partition: str) -> None:
        if self._is_awaited(partition):
            log.warning("%s is left out of batches until its entries are counted: its broker is slow", partition)
        self._late_until_s[partition] = time.monotonic() + _LATE_SECONDS

    def _take(self, part: Planned, share: Limits, admission: Admission) -> bool:
        """Let the batch take the partition's share; return whether the partition may have more for it."""
        known = self._open[part.name]
        if known.is_busy and not known.counting.has_entries:
            self._set_late(part.name)
            return False
        try:
            if known.filling is not None and known.filling.done():
                known.filling.result()
        except UnavailableError as error:
            self._forget(part.name)
            if self._waits:
                raise
            log.warning("%s is left out of the batch: %s", part.name, error)
            return False
        taken = admission.admit(known.counting.weights(), share)
        if taken:
            part.admitted = known.counting.take(taken)
            self._turns.took(part.name)
        return bool(taken) and not known.counting.is_empty

    def _forget(self, partition: str) -> None:
        known = self._open.pop(partition)
        if not known.is_busy:
            known.counting.close()


def _first_of_each_topic(parts: Sequence[Planned], most: int) -> list[str]:
    """Return the partitions, or so many of them: the first of each topic, the second of each, and so on."""
    if len(parts) <= most:
        return [part.name for part in parts]
    turns = zip_longest(*_by_topic(parts).values())
    return [name for turn in turns for name in turn if name is not None][:most]


def _by_topic(parts: Iterable[Planned]) -> dict[str, list[str]]:
    topics: dict[str, list[str]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(part.name)
    return topics
