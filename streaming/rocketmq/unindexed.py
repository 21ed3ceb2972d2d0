"""Finds messages of the commitlog that no file queue has, though a file queue has a later message.

A conversion makes rows of the units that the file queues have. Where a queue lost a file, or ends too early, its rows
would have a hole, at which a broker in RocksDB mode stops to read the queue. The units say which bytes of the log they
cover; the messages between are read one by one, and they are few in a healthy store: half messages of transactions, and
those of deleted topics. A message that another queue covers (an LMQ queue) is not missed here, but by `check`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from pyspark import SparkContext

from streaming.errors import SafetyError
from streaming.rocketmq.handed_on import HandedOn
from streaming.rocketmq.index_job import QueueKey
from streaming.rocketmq.inventory import Inventory
from streaming.rocketmq.log_files import CommitLog, LogFile, mapped
from udfs.rocketmq import commitlog as c
from udfs.rocketmq.dispatch import DispatchRules, is_kept, properties_of, units_of
from udfs.rocketmq.units import Longs

_GAPS_PER_TASK = 1000
_SHOWN = 5  # queues in a message


class Gap(NamedTuple):
    """Bytes of one file of the log that no unit covers, by physical offset."""

    file: LogFile
    start: int
    end: int


class Unindexed(NamedTuple):
    """Messages of one queue that it does not have. offset, phy: of the first of them."""

    topic: bytes
    queue_id: int
    messages: int
    offset: int
    phy: int


def note_covered(folder: Path, start: int, blocks: Sequence[tuple[HandedOn, HandedOn]]) -> None:
    """Write down which bytes of the log some units cover.

    Args:
        folder: where `gaps_of` finds the note. A task that runs twice writes two equal notes.
        start: physical offset that the positions count from.
        blocks: of each block of units, where the messages start (u4) and their sizes (i4).
    """
    starts = np.concatenate([each.read("<u4") for each, _sizes in blocks]).astype(np.int64) + start
    ends = starts + np.concatenate([sizes.read(np.int32) for _messages, sizes in blocks])
    np.save(folder / f"{uuid4().hex}.npy", np.stack(merged(starts, ends)))


def merged(starts: Longs, ends: Longs) -> tuple[Longs, Longs]:
    """Join ranges that overlap or touch; returns them in ascending order."""
    if not len(starts):
        return starts, ends
    # Sorted apart, which is faster than in pairs: where as many ranges have ended as have started, none covers what
    # follows. Those of one queue ascend already, which a stable sort makes use of.
    starts, ends = np.sort(starts, kind="stable"), np.sort(ends, kind="stable")
    breaks = np.flatnonzero(starts[1:] > ends[:-1])
    return starts[np.concatenate(([0], breaks + 1))], ends[np.concatenate((breaks, [len(ends) - 1]))]


def gaps_of(folder: Path, log: CommitLog, end: int) -> Iterator[Gap]:
    """Yield what no note covers of the log, up to the physical offset end; each gap starts where a record does."""
    notes = [np.load(path) for path in sorted(folder.glob("*.npy"))]
    pairs = np.concatenate(notes, axis=1) if notes else np.empty((2, 0), dtype=np.int64)
    starts, ends = merged(pairs[0], pairs[1])
    for file in log.used:
        stop = min(file.start + file.size, end)
        first, last = np.searchsorted(ends, file.start, "right"), np.searchsorted(starts, stop, "left")
        froms = [file.start, *map(int, ends[first:last])]
        untils = [*map(int, starts[first:last]), stop]
        yield from (Gap(file, a, b) for a, b in zip(froms, untils, strict=True) if a < b)


def unindexed_of(
    spark: SparkContext, folder: Path, inventory: Inventory, topics: Collection[bytes], rules: DispatchRules
) -> list[Unindexed]:
    """Return the messages before the last indexed one that their queues do not have, by queue.

    A broker indexes what starts after CHECKPOINT itself. Messages of topics that were deleted do not count, nor those
    of an earlier life of a topic that was deleted and created again.

    Args:
        spark: runs the search.
        folder: the notes of `note_covered` about all units.
        inventory: the store.
        topics: those that topics.json has; where it has none, none counts as deleted.
        rules: how the broker makes units of a record.
    """
    gaps = list(gaps_of(folder, inventory.log, inventory.checkpoint))
    if not gaps:
        return []
    ends = {(each.range.topic, each.range.queue_id): (each.range.end, each.last_phy) for each in inventory.queues}
    starts = {(each.range.topic, each.range.queue_id): each.files.start for each in inventory.queues}

    def missed(some: Iterable[Gap]) -> Iterator[tuple[QueueKey, int, int]]:
        for gap in some:
            for topic, queue_id, offset, phy in _units(gap, rules):
                end, last_phy = ends.get((topic, queue_id), (0, -1))
                is_earlier_life = phy < last_phy and (offset >= end or offset >= starts[topic, queue_id])
                if not is_earlier_life and (not topics or is_kept(topic, topics)):
                    yield (topic, queue_id), offset, phy

    found = dict[QueueKey, Unindexed]()
    tasks = min(-(-len(gaps) // _GAPS_PER_TASK), spark.defaultParallelism)
    for name, offset, phy in sorted(spark.parallelize(gaps, tasks).mapPartitions(missed).collect(), key=lambda e: e[2]):
        known = found.get(name, Unindexed(*name, 0, offset, phy))
        found[name] = known._replace(messages=known.messages + 1)
    return sorted(found.values())


def text_of(found: Sequence[Unindexed]) -> str:
    """Say what the queues lack, and what to do."""
    shown = "; ".join(
        f"{each.topic.decode('utf-8', 'replace')} queue {each.queue_id}: {each.messages} messages, from queue offset "
        f"{each.offset}, which starts at {each.phy}"
        for each in found[:_SHOWN]
    )
    more = f"; and {len(found) - _SHOWN} more queues" if len(found) > _SHOWN else ""
    return (
        f"the commitlog has messages that their consume queues do not have, so a file of a queue is missing or ends "
        f"too early: {shown}{more}. A broker in RocksDB mode stops to read a queue at such a hole. Bring the queue's "
        "files back from a copy (queues of a topic that was deleted and created again may have none: docs/rocketmq.md)"
    )


def _units(gap: Gap, rules: DispatchRules) -> Iterator[tuple[bytes, int, int, int]]:
    with mapped(gap.file) as view:
        limit = min(gap.end - gap.file.start, gap.file.size)
        records = c.walk(view[:limit], gap.file.start, gap.start - gap.file.start)
        try:
            for record in records:
                for unit in units_of(record, properties_of(record.properties), rules):
                    yield *unit, record.phy
        except c.BadRecordError as error:
            raise SafetyError(f"{gap.file.path}, byte {error.position}: {error.text}") from error
        finally:
            records.close()  # type: ignore[attr-defined]
