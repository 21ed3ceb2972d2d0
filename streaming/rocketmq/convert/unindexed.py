"""Finds messages of the commitlog that are missing from the file queues, although a file queue has a later message.

A conversion creates rows from the units of the file queues. If a queue lost a file, or ends too early, its rows would
have a hole, at which a broker in RocksDB mode stops reading the queue.

This module reads only those bytes of the log that no unit of any queue covers. So it does not notice if a message that
belongs to several queues (LMQ) is missing from only some of them; `check` finds that.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from pyspark import SparkContext

from streaming.errors import SafetyError
from streaming.rocketmq.convert.arrays import StoredArray
from streaming.rocketmq.store.inventory import Inventory
from streaming.rocketmq.store.log_files import CommitLog, LogFile, mapped
from udfs.rocketmq import commitlog as c
from udfs.rocketmq.dispatch import DispatchRules, is_kept, properties_of, units_of
from udfs.rocketmq.parts import QueueKey
from udfs.rocketmq.queue_units import Longs

_GAPS_PER_TASK = 1000
_SHOWN = 5  # queues in a message


class Gap(NamedTuple):
    """Bytes of one file of the log that no unit covers, by physical offset."""

    file: LogFile
    start: int
    end: int


class Unindexed(NamedTuple):
    """Messages that are missing from a queue."""

    topic: bytes
    queue_id: int
    messages: int
    offset: int  # of the first message
    phy: int  # start of the first message


def note_covered(folder: Path, start: int, blocks: Sequence[tuple[StoredArray, StoredArray]]) -> None:
    """Record which bytes of the log some units cover.

    Args:
        folder: where `gaps_of` finds the note. A task that runs twice writes two equal notes.
        start: physical offset that the positions count from.
        blocks: of each block of units, where the messages start (u4) and their sizes (i4).
    """
    starts = np.concatenate([messages.read("<u4") for messages, _sizes in blocks]).astype(np.int64) + start
    ends = starts + np.concatenate([sizes.read(np.int32) for _messages, sizes in blocks])
    np.save(folder / f"{uuid4().hex}.npy", np.stack(merged(starts, ends)))


def merged(starts: Longs, ends: Longs) -> tuple[Longs, Longs]:
    """Join ranges that overlap or touch; returns them in ascending order."""
    if not len(starts):
        return starts, ends
    # Starts and ends are sorted separately, which is faster than to sort pairs. It suffices: a joined range ends where
    # as many ranges have ended as have started. The ranges of one queue ascend already, so a stable sort is faster.
    starts, ends = np.sort(starts, kind="stable"), np.sort(ends, kind="stable")
    breaks = np.flatnonzero(starts[1:] > ends[:-1])
    return starts[np.concatenate(([0], breaks + 1))], ends[np.concatenate((breaks, [len(ends) - 1]))]


def gaps_of(folder: Path, log: CommitLog, end: int) -> Iterator[Gap]:
    """Yield the bytes of the log that no note covers, up to the physical offset `end`; each gap starts at a record."""
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
    """Return the messages before the last indexed message that are missing from their queues, by queue.

    The broker itself indexes later messages, which start after CHECKPOINT. Messages of deleted topics do not count.

    Args:
        spark: runs the search.
        folder: the notes of `note_covered` about all units.
        inventory: the store.
        topics: those of topics.json; without any, no topic counts as deleted.
        rules: how the broker creates units of a record.
    """
    # units show which bytes of the log they cover; a healthy store has few messages between them: half messages of
    # transactions, and messages of deleted topics
    gaps = list(gaps_of(folder, inventory.log, inventory.checkpoint))
    if not gaps:
        return []
    ends = {queue.range.key: (queue.range.end, queue.last_phy) for queue in inventory.queues}
    starts = {queue.range.key: queue.files.start for queue in inventory.queues}

    def missing(chunk: Iterable[Gap]) -> Iterator[tuple[QueueKey, int, int]]:
        for gap in chunk:
            for topic, queue_id, offset, phy in _units(gap, rules):
                end, last_phy = ends.get((topic, queue_id), (0, -1))
                # The message is from before its topic was deleted and created again: a later message of the queue
                # has the same offset or a lower one
                is_earlier = phy < last_phy and (offset >= end or offset >= starts[topic, queue_id])
                if not is_earlier and (not topics or is_kept(topic, topics)):
                    yield (topic, queue_id), offset, phy

    unindexed = dict[QueueKey, Unindexed]()
    tasks = min(-(-len(gaps) // _GAPS_PER_TASK), spark.defaultParallelism)
    messages = spark.parallelize(gaps, tasks).mapPartitions(missing).collect()
    for name, offset, phy in sorted(messages, key=lambda message: message[2]):
        of_queue = unindexed.get(name, Unindexed(*name, messages=0, offset=offset, phy=phy))
        unindexed[name] = of_queue._replace(messages=of_queue.messages + 1)
    return sorted(unindexed.values())


def text_of(unindexed: Sequence[Unindexed]) -> str:
    """Describe what is missing from the queues, and what to do."""
    shown = "; ".join(
        f"{queue.topic.decode('utf-8', 'replace')} queue {queue.queue_id}: {queue.messages} messages, "
        f"from queue offset {queue.offset}, which starts at {queue.phy}"
        for queue in unindexed[:_SHOWN]
    )
    more = f"; and {len(unindexed) - _SHOWN} more queues" if len(unindexed) > _SHOWN else ""
    return (
        f"messages of the commitlog are missing from their consume queues, so a file of a queue is missing or ends "
        f"too early: {shown}{more}. A broker in RocksDB mode stops reading a queue at such a hole. Restore the queue's "
        "files from a copy (queues of a topic that was deleted and created again may have none: docs/rocketmq.md)"
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
