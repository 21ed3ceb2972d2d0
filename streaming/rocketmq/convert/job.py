"""The Spark job that converts queue files into sorted files of RocksDB rows.

Three stages, with a shuffle after the first two:
1. by part: read the units of a part, and find the section of the commitlog with each message: a file, or a share of a
   file if there are few files;
2. by section: read the fixed parts of those messages, which contain the store time, and check whether they are messages
   of these queues;
3. by part: combine units and store times, compare sizes, and write the part's file.

A stage passes packed arrays to the next, one for each part and section, never single rows. They are in files of ours
(streaming/rocketmq/convert/arrays.py). A task needs memory for the rows of one part.
"""

import bisect
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from pyspark import Accumulator, SparkContext

from streaming.adapters.rocksdb.counted import CountedRows, write_counted
from streaming.adapters.rocksdb.database import write_sst
from streaming.errors import SafetyError
from streaming.rocketmq.convert.arrays import StoredArray, array_writer
from streaming.rocketmq.convert.unindexed import note_covered
from streaming.rocketmq.convert.work import PartWork, Piece
from streaming.rocketmq.store.log_files import CommitLog, LogFile, headers_of
from streaming.rocketmq.store.queue_files import QueueFiles
from streaming.rocketmq.workspace.staging import file_name
from streaming.state.durable import flush
from udfs.rocketmq import commitlog as c
from udfs.rocketmq import queue_units as u
from udfs.rocketmq import rows
from udfs.rocketmq.dispatch import LMQ_PREFIX, Dispatch, DispatchRules, properties_of, units_of
from udfs.rocketmq.queue_units import Ints, Longs

_LEAST_ROWS_OF_A_RUN = 100  # `write_counted` starts a block for each run of a queue, even a short run
_MOST_TASKS = 2_000
_PARTS_PER_TASK = 8  # starting a task costs as much as half a part
_MOST_SECTION_BYTES = 1 << 32  # 4 bytes hold a message's offset in its section
_HEADERS_AT_ONCE = 5_000_000  # of 44 bytes each
_LEAST_SECTIONS = 16  # a small store has few files of a gigabyte, and every core needs work
# consecutive units of a queue: position in the part, count, queue id (-1: any queue), first queue offset
_RUN = np.dtype([("position", "<u4"), ("count", "<u4"), ("queue_id", "<i4"), ("offset", "<i8")])
_ANY_QUEUE = -1


class LogBlock(NamedTuple):
    """Units of a part whose messages are in the same section."""

    part: int
    runs: StoredArray
    messages: StoredArray  # their offsets in the section


class PartBlock(NamedTuple):
    """The fixed parts of the messages of a LogBlock."""

    runs: StoredArray
    least: int  # added to each of the packed times
    times: StoredArray
    sizes: StoredArray
    strange: StoredArray  # positions in the part of units whose message names another queue or offset


class Times(NamedTuple):
    """Store times as packed numbers to which `least` is added; of 4 bytes if they are close enough to each other."""

    least: int
    packed: bytes


class Headers(NamedTuple):
    """The fixed parts of the messages of a part, in the order of its units."""

    times: Longs
    sizes: Ints
    is_strange: NDArray[np.bool_]


class Written(NamedTuple):
    """A finished file."""

    part: int
    name: str
    rows: int
    size: int


def tasks_of(parts: int, cores: int) -> int:
    """Return the number of tasks for so many parts: some for each core, and few parts for each task."""
    return min(max(-(-parts // _PARTS_PER_TASK), min(parts, 2 * cores)), _MOST_TASKS)


@dataclass(frozen=True, slots=True)
class Job:
    """The job, for a store."""

    log: CommitLog
    folder: str  # of the results; a hidden folder in it holds the arrays between stages
    done: "Accumulator[int]"  # counts each unit once in each stage
    covered: str = (
        ""  # folder for notes about the indexed bytes of the log (streaming/rocketmq/convert/unindexed.py); "": none
    )

    def run(self, spark: SparkContext, works: Sequence[PartWork]) -> list[Written]:
        """Write a file for each part. Raises Spark's error, with ours in its text, if a task refuses a unit."""
        if not works:
            return []
        self._between.mkdir()
        try:
            return self._run(spark, works)
        finally:
            # Allowed here: the folder is ours, and the job is over, so no stage reads it. After a failure, another task
            # may still write; a later run starts by removing the rest.
            shutil.rmtree(self._between, ignore_errors=True)

    def _run(self, spark: SparkContext, works: Sequence[PartWork]) -> list[Written]:
        sections, tasks = max(len(sections_of(self.log)), 1), tasks_of(len(works), spark.defaultParallelism)
        log_tasks = min(sections, _MOST_TASKS)
        task_of = {work.number: index * tasks // len(works) for index, work in enumerate(works)}
        parts = spark.parallelize(works, tasks)
        # one task for each section, which reads it from its start to its end
        by_log = parts.mapPartitions(self.by_log).partitionBy(log_tasks, lambda number: number * log_tasks // sections)
        headers = by_log.mapPartitions(self.with_headers)
        inputs = parts.map(lambda work: (work.number, work)).union(headers)
        return inputs.partitionBy(tasks, lambda part: task_of[part]).mapPartitions(self.write).collect()  # type: ignore[arg-type]

    @property
    def _between(self) -> Path:
        return Path(self.folder) / ".between"

    def by_log(self, works: Iterable[PartWork]) -> Iterator[tuple[int, LogBlock]]:
        """Stage 1: yield the messages of each part, by section of the commitlog."""
        starts = [start for start, _file in sections_of(self.log)]
        with array_writer(self._between) as save:
            for work in works:
                runs = dict[int, list[tuple[int, int, int, int]]]()
                messages = dict[int, list[Longs]]()
                for piece in work.pieces:
                    units = self._live_units(piece)
                    queue_id = _ANY_QUEUE if piece.topic.startswith(LMQ_PREFIX) else piece.queue_id
                    for number, first, end in by_section(units.phy, starts):
                        run = (piece.position + first, end - first, queue_id, piece.first + first)
                        runs.setdefault(number, []).append(run)
                        messages.setdefault(number, []).append(units.phy[first:end] - starts[number])
                    if piece.is_last:
                        require_end(piece.files, piece.end)
                for number, of_number in runs.items():
                    # 4 bytes of each unit go to the second stage, and 8 come back: store time and size
                    positions = np.concatenate(messages.pop(number)).astype("<u4")
                    yield number, LogBlock(work.number, save(np.array(of_number, dtype=_RUN)), save(positions))
                self.done.add(work.rows)

    def with_headers(self, blocks: Iterable[tuple[int, LogBlock]]) -> Iterator[tuple[int, PartBlock]]:
        """Stage 2: yield the fixed parts of the messages, by part."""
        sections = sections_of(self.log)
        with array_writer(self._between) as save:
            for number, of_section in groupby(sorted(blocks, key=itemgetter(0)), key=itemgetter(0)):
                start, file = sections[number]
                read = list[tuple[StoredArray, StoredArray]]()
                for group in _groups([block for _number, block in of_section]):
                    positions = [block.messages.read("<u4").astype(np.int64) + (start - file.start) for block in group]
                    for block, headers in zip(group, _headers(file, positions), strict=True):
                        strange = _strange(block.runs.read(_RUN), headers).astype("<u4")
                        least, packed = packed_times(headers.store_time)
                        stored = save(packed), save(headers.size), save(strange)
                        read.append((block.messages, stored[1]))
                        yield block.part, PartBlock(block.runs, least, *stored)
                        self.done.add(len(headers.size))
                if self.covered:
                    note_covered(Path(self.covered), start, read)

    def write(self, inputs: Iterable[tuple[int, PartWork | PartBlock]]) -> Iterator[Written]:
        """Stage 3: write the file of each part."""
        works, headers = dict[int, PartWork](), dict[int, list[PartBlock]]()
        for number, value in inputs:
            if isinstance(value, PartWork):
                works[number] = value
            else:
                headers.setdefault(number, []).append(value)
        with ThreadPoolExecutor(max_workers=1) as thread:  # the disk stores a part while the next part is built
            being_stored = deque[Future[Written]]()
            for number, work in works.items():
                written, aside = self._write(work, _in_place(work.rows, headers.pop(number, [])))
                being_stored.append(thread.submit(self._stored, written, aside))
                self.done.add(work.rows)
                if len(being_stored) > 1:
                    yield being_stored.popleft().result()
            for left in being_stored:
                yield left.result()

    def _write(self, work: PartWork, headers: Headers) -> tuple[Written, Path]:
        aside = Path(self.folder) / f".{uuid4().hex}"
        runs = self._runs(work, headers)
        if work.rows >= len(work.pieces) * _LEAST_ROWS_OF_A_RUN:
            size = write_counted(aside, runs)
        else:
            size = write_sst(aside, map(_keys_and_values, runs))
        return Written(work.number, file_name(work.number), work.rows, size), aside

    def _stored(self, written: Written, aside: Path) -> Written:
        """Give a part its name once the disk has stored it completely."""
        flush(aside)
        # a finished file is complete, and a repeated task writes an equal file
        aside.replace(Path(self.folder) / written.name)
        return written

    def _runs(self, work: PartWork, headers: Headers) -> Iterator[CountedRows]:
        for piece in work.pieces:
            units, of_piece = self._live_units(piece), slice(piece.position, piece.position + piece.end - piece.first)
            self._compare(piece, units, headers.is_strange[of_piece] | (units.size != headers.sizes[of_piece]))
            values = rows.packed_values(units, headers.times[of_piece])
            yield CountedRows(rows.queue_prefix(piece.topic, piece.queue_id), piece.first, values)

    def _live_units(self, piece: Piece) -> u.Units:
        """Read the units of a piece. Raises SafetyError, with file and byte, for a unit that no healthy queue has."""
        units = piece.files.read(piece.first, piece.end)
        bad = u.first_bad(units, self.log.start, self.log.end)
        if bad is not None:
            raise SafetyError(f"{piece.files.where(piece.first + bad[0])}: the unit {bad[1]}")
        return units

    def _compare(self, piece: Piece, units: u.Units, wrong: NDArray[np.bool_]) -> None:
        """Raise SafetyError, which names file and byte, if a unit is not that of the message to which it points."""
        for index in np.flatnonzero(wrong):
            self._require_own(piece, piece.first + int(index), int(units.phy[index]), int(units.size[index]))

    def _require_own(self, piece: Piece, offset: int, phy: int, size: int) -> None:
        """Raise SafetyError unless the message itself names this queue, too (INNER_MULTI_DISPATCH)."""
        record = self.log.record_at(phy)
        if record is not None and record.size == size:
            units = units_of(record, properties_of(record.properties), DispatchRules((), is_multi=True))
            if Dispatch(piece.topic, piece.queue_id, offset) in units:
                return
        raise SafetyError(
            f"{piece.files.where(offset)}: the unit is that of queue offset {offset}, and the message at {phy}, to "
            "which it points, is another message"
        )


def require_end(files: QueueFiles, end: int) -> None:
    """Raise SafetyError, which names file and byte, if a written unit is after the end of a queue."""
    later = files.later(end)
    if later is not None:
        raise SafetyError(
            f"{files.where(end)}: no unit was written here, but a later unit of the queue was, at {files.where(later)}"
        )


def sections_of(log: CommitLog) -> list[tuple[int, LogFile]]:
    """Return the sections of a commitlog: the start and the file of each."""
    largest = max((file.size for file in log.used), default=0)
    of_a_file = max(-(-_LEAST_SECTIONS // max(len(log.used), 1)), -(-largest // _MOST_SECTION_BYTES))
    return [
        (start, file)
        for file in log.used
        for start in range(file.start, min(file.start + file.size, log.end), -(-file.size // of_a_file))
    ]


def by_section(phy: Longs, starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the section number, and the first and end index in `phy`, of runs of messages. Their positions ascend."""
    first = 0
    while first < len(phy):
        number = bisect.bisect_right(starts, int(phy[first])) - 1
        end = int(np.searchsorted(phy, starts[number + 1])) if number + 1 < len(starts) else len(phy)
        yield number, first, end
        first = end


def _keys_and_values(run: CountedRows) -> tuple[list[bytes], list[bytes]]:
    return rows.unit_keys(run.prefix, run.first, len(run.values)), rows.listed(run.values)


def _groups(blocks: Sequence[LogBlock]) -> Iterator[list[LogBlock]]:
    """Divide blocks into groups whose messages are read together, to bound the memory of their headers."""
    group, messages = list[LogBlock](), 0
    for block in blocks:
        group.append(block)
        messages += block.messages.size // 4
        if messages >= _HEADERS_AT_ONCE:
            yield group
            group, messages = [], 0
    if group:
        yield group


def _headers(file: LogFile, blocks: Sequence[Longs]) -> list[c.RecordHeaders]:
    """Read the fixed parts of messages at these bytes of a commitlog file, in the order of each block.

    Raises SafetyError, which names file and byte, if no record starts at one of them.
    """
    orders = [_order(positions) for positions in blocks]
    ascending = [
        positions if order is None else positions[order] for positions, order in zip(blocks, orders, strict=True)
    ]
    headers_of_blocks = headers_of(file, ascending)
    for positions, order, headers in zip(ascending, orders, headers_of_blocks, strict=True):
        moved = headers.phy != positions + file.start
        if bool(moved.any()):
            position = int(positions[np.argmax(moved)])
            raise SafetyError(f"{file.path}, byte {position}: the record there names another position as its own")
        if order is not None:
            for column in headers:
                column[order] = column.copy()
    return headers_of_blocks


def _order(positions: Longs) -> NDArray[np.intp] | None:
    """Return the order of messages on the disk; None if they are in it already, as those of a single queue are."""
    return np.argsort(positions, kind="stable") if bool((positions[1:] < positions[:-1]).any()) else None


def _strange(runs: NDArray[Any], headers: c.RecordHeaders) -> Longs:
    """Return the positions of units whose messages name another queue, or another queue offset."""
    positions, within = _spread(runs)
    queue_ids = np.repeat(runs["queue_id"], runs["count"])
    is_strange = (headers.queue_id != queue_ids) | (
        headers.queue_offset != np.repeat(runs["offset"], runs["count"]) + within
    )
    is_strange &= queue_ids != _ANY_QUEUE
    return positions[np.flatnonzero(is_strange)]


def packed_times(times: Longs) -> Times:
    """Pack store times; those of a section hardly ever differ by more than 49 days, which fit into 4 bytes."""
    least = int(times.min()) if len(times) else 0
    is_near = not len(times) or int(times.max()) - least < 1 << 32
    return Times(least, (times - least).astype("<u4").tobytes()) if is_near else Times(0, times.astype("<i8").tobytes())


def unpacked_times(times: Times, count: int) -> Longs:
    """Unpack `count` store times that `packed_times` has packed."""
    return np.frombuffer(times.packed, dtype="<i8" if len(times.packed) == 8 * count else "<u4") + np.int64(times.least)


def _spread(runs: NDArray[Any]) -> tuple[Longs, Longs]:
    """Return each unit's position in the part, and its index in its run."""
    counts = runs["count"].astype(np.int64)
    before = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(before, counts)
    return np.repeat(runs["position"].astype(np.int64), counts) + within, within


def _in_place(count: int, blocks: Sequence[PartBlock]) -> Headers:
    """Arrange the fixed parts of a part's messages in the order of its units."""
    headers = Headers(np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count, np.bool_))
    count_read = 0
    for block in blocks:
        positions, _within = _spread(block.runs.read(_RUN))
        headers.times[positions] = unpacked_times(Times(block.least, block.times.bytes()), len(positions))
        headers.sizes[positions] = block.sizes.read("<i4")
        headers.is_strange[block.strange.read("<u4")] = True
        count_read += len(positions)
    if count_read != count:
        raise RuntimeError(f"a part of {count} units got {count_read} headers")
    return headers
