"""The database that `follow` keeps beside a running broker: where to go on, and one atomic batch after the other.

A batch holds units, the `max` rows of their queues and CHECKPOINT, and is durable as a whole. So the database's own
CHECKPOINT says where to go on, and a run that is killed anywhere lags and never leaves a hole. CHECKPOINT is the start
of the last message that is indexed; a message that is indexed again changes nothing.
"""

import bisect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.bounds import bounds_of
from streaming.rocketmq.follow.tail import OvertakenError
from streaming.rocketmq.index_job import QueueKey
from streaming.rocketmq.inventory import Inventory, Queue
from streaming.rocketmq.join import offset_rows
from streaming.rocketmq.log_files import CommitLog
from streaming.rocketmq.place import Place
from udfs.rocketmq import rows
from udfs.rocketmq.dispatch import DispatchRules, properties_of, units_of
from udfs.rocketmq.growth import End, GapError, QueueGrowth, UnitChunk, growth_of
from udfs.rocketmq.units import Longs, Units

_BEHIND_ALL = b"\xff" * 8


class Span(NamedTuple):
    """The rows that the database has of a queue: queue offsets from first up to end."""

    first: int
    end: int


class Followed:
    """The open database. It is the only one that writes to it."""

    def __init__(self, database: Database, rules: DispatchRules) -> None:
        self._database = database
        self._rules = rules
        self._ends, self._spans = dict[QueueKey, End](), dict[QueueKey, Span]()
        self._load()

    @property
    def checkpoint(self) -> int | None:
        """Where the last indexed message begins; None before the first one."""
        value = self._database.get(rows.OFFSET_FAMILY, rows.checkpoint_key())
        return None if value is None else rows.decode_checkpoint(value)

    def resume(self, log: CommitLog) -> int:
        """Return the physical offset at which to go on, and follow the log back where its end was cut off.

        Raises OvertakenError where nothing of the database is of use any more.
        """
        while (checkpoint := self.checkpoint) is not None:
            # a `backfill` that was cut short may have left a message there that is in no queue any more
            newest = max((end.phy for end in self._ends.values()), default=-1)
            for indexed in (checkpoint, newest):
                if 0 <= indexed <= checkpoint and self._agrees(log, indexed):
                    return indexed
            before = [file.start for file in log.files if file.start < checkpoint]
            if len(before) < 2:  # the first file holds nothing that could be kept
                raise OvertakenError("the commitlog has none of the messages any more that were indexed")
            self._cut_off(before[-1])
        return log.start

    def add(self, chunks: Iterable[UnitChunk]) -> int:
        """Write the units in one batch, durably, and return how many were new.

        Raises SafetyError, and writes nothing, where a queue would get a hole.
        """
        ends, units, new = dict(self._ends), list[tuple[bytes, bytes]](), 0
        cleared, newest = set[QueueKey](), -1
        kept = dict[QueueKey, list[UnitChunk]]()
        for chunk in chunks:
            name = (chunk.topic, chunk.queue_id)
            newest = max(newest, int(chunk.units.phy[-1]))
            try:
                step = growth_of(ends.get(name), chunk)
            except GapError as error:
                raise SafetyError(f"{error}: nothing was written") from error
            if step is not None:
                ends[name] = step.end
                _keep(kept.setdefault(name, []), cleared, name, step)
        for name, parts in kept.items():
            for part in parts:
                prefix = rows.queue_prefix(*name)
                keys = rows.unit_keys(prefix, part.first, part.units.rows)
                units += zip(keys, rows.unit_values(part.units, part.times), strict=True)
                new += part.units.rows
        bounds = [(rows.max_key(*name), rows.bound_value(ends[name].phy, ends[name].offset)) for name in kept]
        if newest > (self.checkpoint if self.checkpoint is not None else -1):
            bounds.append((rows.checkpoint_key(), rows.checkpoint_value(newest)))
        gone = [_all_of(name) for name in cleared]
        self._database.put_atomically(
            {DEFAULT_FAMILY: units, rows.OFFSET_FAMILY: bounds}, {DEFAULT_FAMILY: gone} if gone else None
        )
        self._ends = ends
        return new

    def settle(self, inventory: Inventory) -> None:
        """Make the database that of a stopped broker's store: all is indexed, and this is its inventory.

        What the store does not have any more goes: deleted queues, and units whose messages have expired. Raises
        SafetyError, and writes nothing, where the database does not end each queue as its file queue does.
        """
        self._load()
        wanted = {(queue.range.topic, queue.range.queue_id): queue for queue in inventory.queues}
        for name, queue in wanted.items():
            self._require_alike(name, queue)
        gone = [_all_of(name) for name in self._spans if name not in wanted]
        gone += [
            (rows.unit_key(*name, 0), rows.unit_key(*name, queue.range.first))
            for name, queue in wanted.items()
            if name in self._spans and self._spans[name].first < queue.range.first
        ]
        bounds = list(offset_rows(inventory, inventory.checkpoint))
        self._database.put_atomically(
            {rows.OFFSET_FAMILY: bounds},
            {DEFAULT_FAMILY: gone, rows.OFFSET_FAMILY: [(b"", b"\xff" * 300)]},
        )
        self._database.flush()

    def _load(self) -> None:
        found = bounds_of(self._database)
        self._ends = {name: End(each.max[1], each.max[0]) for name, each in found.items() if each.max is not None}
        self._spans = {name: Span(each.first, each.last + 1) for name, each in found.items() if each.first >= 0}

    def _require_alike(self, name: QueueKey, queue: Queue) -> None:
        live = queue.range
        if live.first == live.end:
            return
        span = self._spans.get(name, Span(0, 0))
        row = self._units(name, live.end - 1)
        if not (span.first <= live.first and span.end == live.end and row and row[0].phy[0] == queue.last_phy):
            raise SafetyError(
                f"{queue.name}: the file queue has the offsets {live.first} to {live.end - 1}, and what `follow` made "
                f"has {span.first} to {span.end - 1}: convert the whole store anew with --restart"
            )
        # The newest unit is one that `follow` has made, if any of the queue is. In the schedule topic it says when its
        # message is due, by delays that only the configuration tells.
        if row[0].tags[0] != queue.files.read(live.end - 1, live.end).tags[0]:
            raise SafetyError(
                f"{queue.name}: the last unit, {queue.files.where(live.end - 1)}, is another one than in what `follow` "
                "made. If the broker has a messageDelayLevel of its own, name its configuration with --broker-conf. "
                "Convert the whole store anew with --restart"
            )

    def _agrees(self, log: CommitLog, checkpoint: int) -> bool:
        """Whether the log has the message there that was indexed."""
        try:
            record = log.record_at(checkpoint)
        except SafetyError:
            return False
        if record is None:
            return False
        wanted = (record.phy, record.size, record.store_time)
        names = units_of(record, properties_of(record.properties), self._rules)
        return any(self._row((each.topic, each.queue_id), each.offset) == wanted for each in names)

    def _row(self, name: QueueKey, offset: int) -> tuple[int, int, int] | None:
        found = self._units(name, offset)
        return None if found is None else (int(found[0].phy[0]), int(found[0].size[0]), int(found[1][0]))

    def _units(self, name: QueueKey, offset: int) -> tuple[Units, Longs] | None:
        """The row there, as one unit and one store time; None for nothing."""
        value = self._database.get(DEFAULT_FAMILY, rows.unit_key(*name, offset))
        return None if value is None else rows.decode_values([value])

    def _cut_off(self, cut: int) -> None:
        """Delete all that was made of messages that begin at the physical offset cut, or later."""
        gone, bounds, unknown, newest = list[tuple[bytes, bytes]](), list[tuple[bytes, bytes]](), list[bytes](), -1
        self._load()
        for name, span in self._spans.items():
            end = self._end_before(name, span, cut)
            gone.append((rows.unit_key(*name, end), rows.queue_prefix(*name) + _BEHIND_ALL))
            last = self._row(name, end - 1) if end > span.first else None
            if last is None:
                unknown.append(rows.max_key(*name))
            else:
                bounds.append((rows.max_key(*name), rows.bound_value(last[0], end - 1)))
                newest = max(newest, last[0])
        if newest < 0:
            raise OvertakenError("the commitlog has none of the messages any more that were indexed")
        bounds.append((rows.checkpoint_key(), rows.checkpoint_value(newest)))
        self._database.put_atomically(
            {rows.OFFSET_FAMILY: bounds},
            {DEFAULT_FAMILY: gone, rows.OFFSET_FAMILY: [(key, key + b"\0") for key in unknown]},
        )
        self._load()

    def _end_before(self, name: QueueKey, span: Span, cut: int) -> int:
        def is_behind(offset: int) -> bool:
            row = self._row(name, offset)
            return row is None or row[0] >= cut

        return span.first + bisect.bisect_left(range(*span), True, key=is_behind)


@contextmanager
def followed_of(place: Place) -> Iterator[Followed]:
    """Open the database of a store, which `Base` has made, until the block ends."""
    with opened(place.followed_queues, (rows.OFFSET_FAMILY,), compressed=True) as database:
        yield Followed(database, rules_of(place))


def rules_of(place: Place) -> DispatchRules:
    """How the broker makes units. A message names further queues only where the broker has put it into them."""
    return DispatchRules(place.delays_ms, is_multi=place.conf.is_multi_dispatch is not False, is_file_mode=True)


def _all_of(name: QueueKey) -> tuple[bytes, bytes]:
    """The range of all keys of a queue."""
    prefix = rows.queue_prefix(*name)
    return prefix, prefix + _BEHIND_ALL


def _keep(parts: list[UnitChunk], cleared: set[QueueKey], name: QueueKey, step: QueueGrowth) -> None:
    if step.clears:
        cleared.add(name)
        parts.clear()
    parts.append(step.chunk)
