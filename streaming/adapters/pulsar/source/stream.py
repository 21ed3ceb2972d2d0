"""Plans the batches of the Spark source "pulsar-frames"; one per query, in the driver's Python process.

1. The offset at a batch's end names all of its entries (udfs/pulsar_source/offsets.py). So partitions() and the tasks
   need nothing else, and a replay of the batch reads the same.
2. latest_offset() counts messages and bytes by reading the entries once here (counting.py); the tasks read them again.
3. A partition that does not answer is left out of batches until it does. It delays one of them, by PLANNING_SECONDS at
   most, as long as no more than _THREADS partitions do not answer.
4. A partition that is read to its end is asked again when it rings (doorbell/), and every _QUIET_SECONDS.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from streaming.adapters.pulsar.source import sharing
from streaming.adapters.pulsar.source.broker import SourceBroker
from streaming.adapters.pulsar.source.options import OnGap, SourceOptions, Start
from streaming.adapters.pulsar.source.sharing import Planned, Sharing
from streaming.errors import RefusedError, SafetyError, UnavailableError
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import InternalStats, Position
from udfs.paths import base_topic
from udfs.pulsar_source import planning
from udfs.pulsar_source.admission import Limits
from udfs.pulsar_source.offsets import Gap, PartitionOffset, from_json, shown, to_json

log = logging.getLogger("pulsar-frames")

_THREADS = 32
_PARTITIONS_SECONDS = 30.0  # how often topics are asked for added partitions
# how often partitions without new entries are asked for what does not ring: markers, new and deleted ledgers
_QUIET_SECONDS = 10.0
_UNCOMMITTED_SECONDS = 1.0  # the same, if open transactions are read, which do not ring either
_FAULT_SECONDS = 10.0  # a cursor that does not move for so long is reported, and then every _REPORT_SECONDS
_REPORT_SECONDS = 600.0
# In an offset that initial() returned. Spark does not store it: a query that starts again and repeats its first batch
# asks for it again, and would start elsewhere by then. The batch's end names all of its entries.
_INITIAL = "initial"
_PAUSE_SECONDS = 0.5  # between two plans while latest_offset() waits


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """The entries of a batch that one task reads, in order."""

    partition: str
    spans: tuple[EntrySpan, ...]
    gap: Gap | None


class PulsarStream:
    """Takes and returns offsets as the JSON objects that Spark stores."""

    def __init__(self, options: SourceOptions, broker: SourceBroker) -> None:
        self._options = options
        self._broker = broker
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pulsar-frames")
        self._sharing = Sharing(broker, self._threads, reads_uncommitted=options.reads_uncommitted)
        self._partitions: dict[str, str] = {}  # partition -> topic
        self._refresh_s = 0.0  # when the topics are asked again
        self._asked: dict[str, Future[InternalStats | None]] = {}  # requests that may not have ended
        self._subscribed: set[str] = set()
        self._target: dict[str, Position] | None = None  # of trigger(availableNow=True)
        self._acknowledged: dict[str, Position] = {}
        self._quiet_until_s: dict[str, float] = {}  # when a partition that has no new entries is asked again
        self._report_s: dict[str, float] = {}  # when it is reported again that the partition's cursor does not move
        self._absent: set[str] = set()  # topics that did not exist in the last plan
        self._has_planned = False
        self.requires_topics = True  # False: a topic that does not exist ends only a query without a checkpoint

    def initial(self) -> dict[str, Any]:
        """Return the offset at which a query without a checkpoint starts.

        Raises UnavailableError, and RefusedError if a topic does not exist.
        """
        self._refresh()
        self._require_topics({})
        offset: dict[str, PartitionOffset] = {}
        for partition in self._partitions:
            self._subscribe(partition)
            if (stats := self._broker.stats(partition)) is not None:
                offset[partition] = self._first(stats)
        return to_json(offset) | {_INITIAL: True}

    def set_target(self) -> None:
        """Read nothing that is published from now on (trigger(availableNow=True)). Raises UnavailableError."""
        self._target = {}
        found = self._all_stats()
        self._target = {name: stats.last for name, stats in found.items() if stats is not None}

    def latest_offset(self, start: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """Return the end of the next batch; `start` if there is nothing to read.

        Waits up to wait_seconds for an entry.

        Raises UnavailableError if no partition answers, and with trigger(availableNow=True) if one does not;
        RefusedError, in the first call also if a topic does not exist that `start` does not name; SafetyError if a
        partition has only ledgers older than its offset.
        """
        deadline_s = time.monotonic() + self._options.wait_seconds
        while True:
            end = self._end_of_batch(start, limits)
            left_s = deadline_s - time.monotonic()
            if end is not None or left_s <= 0 or self._target is not None:
                return dict(start) if end is None else end
            self._wait(left_s)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[PartitionBatch]:
        """Return the reads of a batch, one for each partition; they depend on the two offsets only.

        Raises SafetyError if the offsets are not those of one batch, or if entries were lost and onDataLoss is "fail".
        """
        before = {} if start.get(_INITIAL) else from_json(start)
        batches = []
        for name, part in from_json(end).items():
            known = before.get(name)
            if known == part:
                continue
            if known is not None and known.at != part.after:
                raise SafetyError(
                    f"{name}: the batch starts at {shown(known.at)}, and its end was planned from {shown(part.after)}; "
                    "was the checkpoint changed by hand? Start the query with a new checkpoint"
                )
            if part.gap is not None and part.gap.is_certain and self._options.on_gap is OnGap.FAIL:
                raise SafetyError(
                    f"{name}: entries after {shown(part.gap.after)} and before {shown(part.gap.before)} were deleted "
                    'before they were read; to continue without them, set onDataLoss to "row"'
                )
            if part.spans or part.gap is not None:
                batches.append(PartitionBatch(name, part.spans, part.gap))
        return batches

    def commit(self, end: Mapping[str, Any]) -> None:
        """Move the subscription's cursors, soon; a cursor that can't be moved now is moved later."""
        if not self._options.subscription:
            return
        for name, part in from_json(end).items():
            # to acknowledge would create the subscription again, if it was deleted because the topic is no longer read
            if not {name, base_topic(name)} & {*self._options.topics}:
                continue
            upto = planning.acknowledged_by(part)
            if upto is not None and upto != self._acknowledged.get(name):
                self._broker.acknowledge(name, upto)
                self._acknowledged[name] = upto

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._sharing.close()
        self._broker.close()

    def _end_of_batch(self, start: Mapping[str, Any], limits: Limits) -> dict[str, Any] | None:
        """Return the end of the next batch; None if there is nothing to read."""
        offset = from_json(start)
        found = self._all_stats()
        if self.requires_topics and not self._has_planned:
            self._require_topics(offset)
        self._has_planned = True
        self._report_absent()
        self._report_faults()
        planned = [self._plan(name, offset, stats) for name, stats in found.items() if stats is not None]
        self._sharing.share(planned, limits, self._target)
        ends = {part.name: part.end for part in planned if part.name in offset or part.admitted is not None}
        self._require_nothing_unread({name: part for name, part in offset.items() if name not in self._partitions})
        changed = {name: part for name, part in ends.items() if name not in offset or part.at != offset[name].at}
        self._listen([part for part in planned if part.is_read])
        return to_json({**offset, **changed}) if changed else None

    def _listen(self, read: Iterable[Planned]) -> None:
        """Ask these partitions again when they have entries."""
        if self._target is not None:
            return
        quiet_s = _UNCOMMITTED_SECONDS if self._options.reads_uncommitted else _QUIET_SECONDS
        for part in read:
            self._broker.listen(part.name, part.end.at)
            self._quiet_until_s[part.name] = time.monotonic() + quiet_s

    def _due(self) -> list[str]:
        """Return the partitions that may have new entries."""
        for name in self._broker.rung(0):
            self._quiet_until_s.pop(name, None)
        for name in self._broker.not_listening():
            self._quiet_until_s.pop(name, None)
        now_s = time.monotonic()
        return [name for name in self._partitions if self._quiet_until_s.get(name, 0.0) <= now_s]

    def _wait(self, seconds: float) -> None:
        """Wait until a partition rings; not for long if one may have entries without ringing."""
        if len(self._quiet_until_s) < len(self._partitions):
            seconds = min(seconds, _PAUSE_SECONDS)
        for name in self._broker.rung(seconds):
            self._quiet_until_s.pop(name, None)

    def _refresh(self) -> None:
        """Ask the topics for their partitions, every _PARTITIONS_SECONDS."""
        now_s = time.monotonic()
        if now_s < self._refresh_s:
            return
        for topic in self._options.topics:
            try:
                partitions = self._broker.partitions(topic)
            except UnavailableError as error:
                if self._target is not None or topic not in self._partitions.values():
                    raise
                log.warning("added partitions of %s are looked for later: %s", topic, error)
                continue
            known = {name for name, of in self._partitions.items() if of == topic}
            for gone in known - {*partitions}:
                del self._partitions[gone]
                self._subscribed.discard(gone)  # it may be created again
            self._partitions |= dict.fromkeys(partitions, topic)
        self._refresh_s = now_s + _PARTITIONS_SECONDS

    def _require_topics(self, offset: Iterable[str]) -> None:
        """Raise RefusedError if a topic does not exist, unless the offset names it or a partition of it."""
        read = {topic for name in offset for topic in (name, base_topic(name))}
        if missing := sorted(self._topics_absent() - read):
            raise RefusedError(f"{', '.join(missing)}: no such topic; create it, or take it out of the option topics")

    def _report_absent(self) -> None:
        absent = self._topics_absent()
        if new := sorted(absent - self._absent):
            log.warning("%s: no such topic; it is read once it is created", ", ".join(new))
        self._absent = absent

    def _report_faults(self) -> None:
        """Warn of cursors that do not move. With trigger(availableNow=True) at once: the query may end soon."""
        if not self._options.subscription:
            return
        now_s = time.monotonic()
        faults = self._broker.faults(_FAULT_SECONDS if self._target is None else 0.0)
        known = sorted(faults.keys() & self._partitions.keys())
        due = [name for name in known if self._report_s.get(name, 0.0) <= now_s]
        self._report_s |= dict.fromkeys(due, now_s + _REPORT_SECONDS)
        if due:
            others = f" and of {len(due) - 1} other partitions" if due[1:] else ""
            log.warning(
                "the cursor of %s%s does not move, so ledgers are kept: %s; no other query or consumer may use the "
                "subscription",
                due[0],
                others,
                faults[due[0]],
            )

    def _topics_absent(self) -> set[str]:
        return {*self._options.topics} - {*self._partitions.values()}

    def _subscribe(self, partition: str) -> None:
        """Create the subscription, so that nothing is deleted before it is read."""
        if self._options.subscription and partition not in self._subscribed:
            self._broker.ensure_subscription(partition, self._options.subscription)
            self._subscribed.add(partition)

    def _first(self, stats: InternalStats) -> PartitionOffset:
        if self._options.start is Start.LATEST:
            return planning.last_offset(stats)
        if self._options.start is Start.SUBSCRIPTION and stats.has_subscription(self._options.subscription):
            return planning.offset_after(stats.mark_deleted(self._options.subscription), stats)
        return planning.first_offset(stats)

    def _all_stats(self) -> dict[str, InternalStats | None]:
        """Return the stats of the partitions that are due and answer in time; None: the partition does not exist."""
        self._refresh()
        due = self._due() if self._target is None else [*self._partitions]
        # only the first batch waits for a partition that hangs
        new = {name: self._threads.submit(self._stats, name) for name in due if name not in self._asked}
        self._asked |= new
        if self._target is None:
            wait(new.values(), sharing.PLANNING_SECONDS)
        else:
            wait(self._asked.values())
        found: dict[str, InternalStats | None] = {}
        errors: list[UnavailableError] = []
        for name in [name for name, request in self._asked.items() if request.done()]:
            try:
                stats = self._asked.pop(name).result()
            except UnavailableError as error:
                log.warning("%s is left out of the batch: %s", name, error)
                errors.append(error)
                continue
            if name in self._partitions:
                found[name] = stats
        if errors and (self._target is not None or len(errors) == len(self._partitions)):
            raise errors[0]
        return found

    def _stats(self, partition: str) -> InternalStats | None:
        stats = self._broker.stats(partition)
        if stats is not None:
            self._subscribe(partition)
        return stats

    def _plan(self, name: str, offset: Mapping[str, PartitionOffset], stats: InternalStats) -> Planned:
        start = offset.get(name) or planning.first_offset(stats)
        try:
            resumed = planning.resume(start, stats)
        except planning.UnknownPositionError as error:
            raise SafetyError(f"{name}: {error}") from error
        return Planned(name, self._partitions[name], start, resumed, stats)

    def _require_nothing_unread(self, gone: Mapping[str, PartitionOffset]) -> None:
        """Raise SafetyError if one of our topics was deleted before it was read."""
        for name, part in gone.items():
            topic = base_topic(name)
            if topic in self._options.topics and part.seen > part.at:
                raise SafetyError(
                    f"{name} was deleted, and its entries after {shown(part.at)}, up to {shown(part.seen)} at least, "
                    f"were not read; create {topic} again (a row then reports the loss), or take it out of the option "
                    "topics"
                )
