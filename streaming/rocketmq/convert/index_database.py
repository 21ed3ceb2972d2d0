"""The database that `follow` extends, while the broker runs, by one atomic batch after another.

`follow` resumes at the database's own CHECKPOINT, which is the start of the last indexed message. To index a message
again changes nothing.
"""

import bisect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.convert.join import offset_rows
from streaming.rocketmq.store.bounds import bounds_of
from streaming.rocketmq.store.inventory import Inventory, Queue
from streaming.rocketmq.store.log_files import CommitLog
from streaming.rocketmq.store.store_paths import StorePaths
from udfs.rocketmq import rows
from udfs.rocketmq.dispatch import DispatchRules, properties_of, units_of
from udfs.rocketmq.growth import End, GapError, QueueGrowth, UnitChunk, growth_of
from udfs.rocketmq.parts import QueueKey
from udfs.rocketmq.queue_units import Longs, Units

_AFTER_ALL = b"\xff" * 8


class OvertakenError(Exception):
    """The broker has deleted files of the log that were not read yet."""


class Span(NamedTuple):
    """The rows of a queue in the database: queue offsets from `first` up to `end`."""

    first: int
    end: int


class IndexDatabase:
    """The open database, to which nothing else writes."""

    def __init__(self, database: Database, rules: DispatchRules) -> None:
        self._database = database
        self._rules = rules
        self._ends, self._spans = dict[QueueKey, End](), dict[QueueKey, Span]()
        self._load()

    @property
    def checkpoint(self) -> int | None:
        """Start of the last indexed message; None before the first message."""
        value = self._database.get(rows.OFFSET_FAMILY, rows.checkpoint_key())
        return None if value is None else rows.decode_checkpoint(value)

    def resume(self, log: CommitLog) -> int:
        """Return the physical offset at which to resume; if the log was truncated, first delete the rows after its end.

        Raises OvertakenError if the log has none of the indexed messages any more.
        """
        while (checkpoint := self.checkpoint) is not None:
            # an interrupted `backfill` may have left the CHECKPOINT of a message that is in no queue any more
            newest = max((end.phy for end in self._ends.values()), default=-1)
            for indexed in (checkpoint, newest):
                if 0 <= indexed <= checkpoint and self._agrees(log, indexed):
                    return indexed
            # the broker has truncated its log: delete rows of its last file, then of earlier files, until both agree
            before = [file.start for file in log.files if file.start < checkpoint]
            if len(before) < 2:  # nothing of the first file could be kept
                raise OvertakenError("none of the indexed messages is in the commitlog any more")
            self._cut_off(before[-1])
        return log.start

    def add(self, chunks: Iterable[UnitChunk]) -> int:
        """Write the units in one batch, durably, and return the number of new units.

        Raises SafetyError, and writes nothing, if a queue would get a hole.
        """
        ends, units, new = dict(self._ends), list[tuple[bytes, bytes]](), 0
        cleared, newest = set[QueueKey](), -1
        added = dict[QueueKey, list[UnitChunk]]()
        for chunk in chunks:
            name = (chunk.topic, chunk.queue_id)
            newest = max(newest, int(chunk.units.phy[-1]))
            try:
                growth = growth_of(ends.get(name), chunk)
            except GapError as error:
                raise SafetyError(f"{error}: nothing was written") from error
            if growth is not None:
                ends[name] = growth.end
                _add(added.setdefault(name, []), cleared, name, growth)
        for name, parts in added.items():
            for part in parts:
                prefix = rows.queue_prefix(*name)
                keys = rows.unit_keys(prefix, part.first, part.units.rows)
                units += zip(keys, rows.unit_values(part.units, part.times), strict=True)
                new += part.units.rows
        bounds = [(rows.max_key(*name), rows.bound_value(ends[name].phy, ends[name].offset)) for name in added]
        if newest > (self.checkpoint if self.checkpoint is not None else -1):
            # in the same batch as the units: the batch is durable as a whole, so a killed run leaves no hole
            bounds.append((rows.checkpoint_key(), rows.checkpoint_value(newest)))
        deleted = [_all_of(name) for name in cleared]
        self._database.put_atomically(
            {DEFAULT_FAMILY: units, rows.OFFSET_FAMILY: bounds}, {DEFAULT_FAMILY: deleted} if deleted else None
        )
        self._ends = ends
        return new

    def settle(self, inventory: Inventory) -> None:
        """Adjust the database to a stopped broker's inventory, once everything is indexed.

        Deletes the rows of deleted queues and of expired messages, which the store does not have any more. Raises
        SafetyError, and writes nothing, unless each queue ends in the database where its file queue ends.
        """
        self._load()
        queues = {queue.range.key: queue for queue in inventory.queues}
        for name, queue in queues.items():
            # before the first write, so that a refusal leaves the database as it was
            self._require_equal_ends(name, queue)
        deleted = [_all_of(name) for name in self._spans if name not in queues]
        deleted += [
            (rows.unit_key(*name, 0), rows.unit_key(*name, queue.range.first))
            for name, queue in queues.items()
            if name in self._spans and self._spans[name].first < queue.range.first
        ]
        bounds = list(offset_rows(inventory, inventory.checkpoint))
        self._database.put_atomically(
            {rows.OFFSET_FAMILY: bounds},
            {DEFAULT_FAMILY: deleted, rows.OFFSET_FAMILY: [(b"", b"\xff" * 300)]},
        )
        self._database.flush()

    def _load(self) -> None:
        bounds = bounds_of(self._database)
        self._ends = {name: End(bound.max[1], bound.max[0]) for name, bound in bounds.items() if bound.max is not None}
        self._spans = {name: Span(bound.first, bound.last + 1) for name, bound in bounds.items() if bound.first >= 0}

    def _require_equal_ends(self, name: QueueKey, queue: Queue) -> None:
        live = queue.range
        if live.first == live.end:
            return
        span = self._spans.get(name, Span(0, 0))
        row = self._units(name, live.end - 1)
        if not (span.first <= live.first and span.end == live.end and row and row[0].phy[0] == queue.last_phy):
            raise SafetyError(
                f"{queue.name}: the file queue has the offsets {live.first} to {live.end - 1}, and the result of "
                f"`follow` has {span.first} to {span.end - 1}: convert the whole store again with --restart"
            )
        # If `follow` has created any unit of the queue, it has created the newest. In the schedule topic, a unit
        # contains the due time of its message; the delays are only in the broker's configuration.
        if row[0].tags[0] != queue.files.read(live.end - 1, live.end).tags[0]:
            raise SafetyError(
                f"{queue.name}: the last unit, {queue.files.where(live.end - 1)}, differs from the result of "
                "`follow`. If the broker has its own messageDelayLevel, name its configuration with --broker-conf. "
                "Convert the whole store again with --restart"
            )

    def _agrees(self, log: CommitLog, checkpoint: int) -> bool:
        """Whether the log still has the indexed message that starts at `checkpoint`."""
        try:
            record = log.record_at(checkpoint)
        except SafetyError:
            return False
        if record is None:
            return False
        expected = (record.phy, record.size, record.store_time)
        units = units_of(record, properties_of(record.properties), self._rules)
        return any(self._row((unit.topic, unit.queue_id), unit.offset) == expected for unit in units)

    def _row(self, name: QueueKey, offset: int) -> tuple[int, int, int] | None:
        row = self._units(name, offset)
        return None if row is None else (int(row[0].phy[0]), int(row[0].size[0]), int(row[1][0]))

    def _units(self, name: QueueKey, offset: int) -> tuple[Units, Longs] | None:
        """Return the row as (one unit, one store time); None if there is no row."""
        value = self._database.get(DEFAULT_FAMILY, rows.unit_key(*name, offset))
        return None if value is None else rows.decode_values([value])

    def _cut_off(self, cut: int) -> None:
        """Delete everything about messages that start at the physical offset `cut` or later."""
        deleted, bounds, empty, newest = list[tuple[bytes, bytes]](), list[tuple[bytes, bytes]](), list[bytes](), -1
        self._load()
        for name, span in self._spans.items():
            end = self._end_before(name, span, cut)
            deleted.append((rows.unit_key(*name, end), rows.queue_prefix(*name) + _AFTER_ALL))
            last = self._row(name, end - 1) if end > span.first else None
            if last is None:
                empty.append(rows.max_key(*name))
            else:
                bounds.append((rows.max_key(*name), rows.bound_value(last[0], end - 1)))
                newest = max(newest, last[0])
        if newest < 0:
            raise OvertakenError("none of the indexed messages is in the commitlog any more")
        bounds.append((rows.checkpoint_key(), rows.checkpoint_value(newest)))
        self._database.put_atomically(
            {rows.OFFSET_FAMILY: bounds},
            {DEFAULT_FAMILY: deleted, rows.OFFSET_FAMILY: [(key, key + b"\0") for key in empty]},
        )
        self._load()

    def _end_before(self, name: QueueKey, span: Span, cut: int) -> int:
        def is_after(offset: int) -> bool:
            row = self._row(name, offset)
            return row is None or row[0] >= cut

        return span.first + bisect.bisect_left(range(*span), True, key=is_after)


@contextmanager
def open_index_database(paths: StorePaths) -> Iterator[IndexDatabase]:
    """Open the database of a store, which `Base` has created, until the block ends."""
    with opened(paths.follow_queues, (rows.OFFSET_FAMILY,), compressed=True) as database:
        yield IndexDatabase(database, rules_of(paths))


def rules_of(paths: StorePaths) -> DispatchRules:
    """Return how the broker creates units.

    Unless the configuration disables multi-dispatch, all queues that a message names count, because a message names
    only queues into which the broker has put it.
    """
    return DispatchRules(paths.delays_ms, is_multi=paths.conf.is_multi_dispatch is not False, is_file_mode=True)


def _all_of(name: QueueKey) -> tuple[bytes, bytes]:
    """Return the range of all keys of a queue."""
    prefix = rows.queue_prefix(*name)
    return prefix, prefix + _AFTER_ALL


def _add(parts: list[UnitChunk], cleared: set[QueueKey], name: QueueKey, growth: QueueGrowth) -> None:
    if growth.clears:
        cleared.add(name)
        parts.clear()
    parts.append(growth.chunk)
