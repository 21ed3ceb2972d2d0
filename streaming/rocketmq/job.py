"""The Spark job that turns queue files into sorted files of RocksDB rows.

Three stages, with a shuffle after the first two:
1. by part: read the units of a part, and say of each in which stretch of the commitlog its message lies: in which file,
   or in which piece of one where there are few;
2. by stretch: read what stands at the beginning of those messages, the store time among it, so that each stretch is
   read by one task, from its beginning to its end; and look whether they are messages of these queues;
3. by part: put units and store times together, compare sizes, and write the part's file.

What a stage hands to the next one are packed arrays, one for each part and stretch, never single rows: 4 bytes of each
unit to the second stage, and 8 bytes back. They lie in files of ours (streaming/rocketmq/handed_on.py), and Spark's
shuffles carry only where. A task needs memory for the rows of one part.
"""

import bisect
import os
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
from streaming.rocketmq.handed_on import HandedOn, handing_on
from streaming.rocketmq.log_files import CommitLog, LogFile, headers_of
from streaming.rocketmq.queue_files import QueueFiles
from streaming.rocketmq.unindexed import note_covered
from streaming.rocketmq.work import PartWork, Piece
from udfs.rocketmq import commitlog as c
from udfs.rocketmq import rows
from udfs.rocketmq import units as u
from udfs.rocketmq.dispatch import LMQ_PREFIX, Dispatch, DispatchRules, properties_of, units_of
from udfs.rocketmq.units import Ints, Longs

_LEAST_ROWS_OF_A_RUN = 100  # `write_counted` has to begin a block for each run of a queue, however short
_MOST_TASKS = 2_000
_PARTS_PER_TASK = 8  # to begin a task costs as much as half a part
_MOST_STRETCH_BYTES = 1 << 32  # 4 bytes say where in its stretch a message begins
_HEADERS_AT_ONCE = 5_000_000  # of 44 bytes each
_LEAST_STRETCHES = 16  # a small store has few files of a gigabyte, and every core shall have its share of them
# units of a queue that follow each other: place in the part, how many, queue id (-1: of any queue), first queue offset
_RUN = np.dtype([("place", "<u4"), ("count", "<u4"), ("queue_id", "<i4"), ("offset", "<i8")])
_ANY_QUEUE = -1


class LogBlock(NamedTuple):
    """Units of a part whose messages are in one stretch. messages: where they begin in the stretch."""

    part: int
    runs: HandedOn
    messages: HandedOn


class PartBlock(NamedTuple):
    """What the messages of a LogBlock say. strange: places in the part of those that name another queue or offset.

    least: what is added to each of the packed times.
    """

    runs: HandedOn
    least: int
    times: HandedOn
    sizes: HandedOn
    strange: HandedOn


class Times(NamedTuple):
    """Store times as packed numbers to which `least` is added, of 4 bytes where they lie near enough to each other."""

    least: int
    packed: bytes


class Headers(NamedTuple):
    """What the messages of a part's units say, in the order of the units."""

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
    """How many tasks work on so many parts: some for each core, and no task on more than a few parts."""
    return min(max(-(-parts // _PARTS_PER_TASK), min(parts, 2 * cores)), _MOST_TASKS)


def file_name(part: int) -> str:
    """Return the name of a part's file."""
    return f"part-{part:08d}.sst"


@dataclass(frozen=True, slots=True)
class Job:
    """log: the commitlog. folder: where the files go, and meanwhile, below a name that begins with a dot, what a stage
    hands to the next one. done: counts units, each of them once in each stage. covered: folder for the notes about the
    bytes of the log that units cover (streaming/rocketmq/unindexed.py); "" for none.
    """

    log: CommitLog
    folder: str
    done: "Accumulator[int]"
    covered: str = ""

    def run(self, spark: SparkContext, works: Sequence[PartWork]) -> list[Written]:
        """Write a file for each part. Raises Spark's error, with ours in its text, where a task refuses a unit."""
        if not works:
            return []
        self._between.mkdir()
        try:
            return self._run(spark, works)
        finally:
            # Allowed here: the folder is ours, and nobody reads what a stage has handed on once the job is over. Where
            # it has failed, another task may still write; a later run begins with removing what is left.
            shutil.rmtree(self._between, ignore_errors=True)

    def _run(self, spark: SparkContext, works: Sequence[PartWork]) -> list[Written]:
        stretches, tasks = max(len(stretches_of(self.log)), 1), tasks_of(len(works), spark.defaultParallelism)
        log_tasks = min(stretches, _MOST_TASKS)
        task_of = {work.number: place * tasks // len(works) for place, work in enumerate(works)}
        parts = spark.parallelize(works, tasks)
        by_log = parts.mapPartitions(self.by_log).partitionBy(log_tasks, lambda each: each * log_tasks // stretches)
        headers = by_log.mapPartitions(self.with_headers)
        told = parts.map(lambda work: (work.number, work)).union(headers)
        return told.partitionBy(tasks, lambda part: task_of[part]).mapPartitions(self.write).collect()  # type: ignore[arg-type]

    @property
    def _between(self) -> Path:
        return Path(self.folder) / ".between"

    def by_log(self, works: Iterable[PartWork]) -> Iterator[tuple[int, LogBlock]]:
        """Stage 1: yield the messages of each part, by the stretch of the commitlog that they are in."""
        starts = [start for start, _file in stretches_of(self.log)]
        with handing_on(self._between) as hand_on:
            for work in works:
                runs = dict[int, list[tuple[int, int, int, int]]]()
                messages = dict[int, list[Longs]]()
                for piece in work.pieces:
                    found = self._live_units(piece)
                    queue_id = _ANY_QUEUE if piece.topic.startswith(LMQ_PREFIX) else piece.queue_id
                    for number, first, end in by_stretch(found.phy, starts):
                        run = (piece.place + first, end - first, queue_id, piece.first + first)
                        runs.setdefault(number, []).append(run)
                        messages.setdefault(number, []).append(found.phy[first:end] - starts[number])
                    if piece.is_last:
                        require_end(piece.files, piece.end)
                for number, some in runs.items():
                    places = np.concatenate(messages.pop(number)).astype("<u4")
                    yield number, LogBlock(work.number, hand_on(np.array(some, dtype=_RUN)), hand_on(places))
                self.done.add(work.rows)

    def with_headers(self, blocks: Iterable[tuple[int, LogBlock]]) -> Iterator[tuple[int, PartBlock]]:
        """Stage 2: yield what the messages say, by the part that they belong to."""
        stretches = stretches_of(self.log)
        with handing_on(self._between) as hand_on:
            for number, of_stretch in groupby(sorted(blocks, key=itemgetter(0)), key=itemgetter(0)):
                start, file = stretches[number]
                read = list[tuple[HandedOn, HandedOn]]()
                for some in _groups([block for _number, block in of_stretch]):
                    positions = [block.messages.read("<u4").astype(np.int64) + (start - file.start) for block in some]
                    for block, found in zip(some, _headers(file, positions), strict=True):
                        strange = _strange(block.runs.read(_RUN), found).astype("<u4")
                        least, packed = packed_times(found.store_time)
                        handed_on = hand_on(packed), hand_on(found.size), hand_on(strange)
                        read.append((block.messages, handed_on[1]))
                        yield block.part, PartBlock(block.runs, least, *handed_on)
                        self.done.add(len(found.size))
                if self.covered:
                    note_covered(Path(self.covered), start, read)

    def write(self, told: Iterable[tuple[int, PartWork | PartBlock]]) -> Iterator[Written]:
        """Stage 3: write the file of each part."""
        works, headers = dict[int, PartWork](), dict[int, list[PartBlock]]()
        for number, each in told:
            if isinstance(each, PartWork):
                works[number] = each
            else:
                headers.setdefault(number, []).append(each)
        with ThreadPoolExecutor(max_workers=1) as beside:  # the disk stores a part while the next one is made
            being_stored = deque[Future[Written]]()
            for number, work in works.items():
                written, aside = self._write(work, _in_place(work.rows, headers.pop(number, [])))
                being_stored.append(beside.submit(self._stored, written, aside))
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
        """Give a part its name once the disk has all of it."""
        with aside.open("rb") as handle:
            os.fsync(handle.fileno())
        # a finished file is whole, and the second one of a task is the same
        aside.replace(Path(self.folder) / written.name)
        return written

    def _runs(self, work: PartWork, headers: Headers) -> Iterator[CountedRows]:
        for piece in work.pieces:
            found, of_piece = self._live_units(piece), slice(piece.place, piece.place + piece.end - piece.first)
            self._compare(piece, found, headers.is_strange[of_piece] | (found.size != headers.sizes[of_piece]))
            values = rows.packed_values(found, headers.times[of_piece])
            yield CountedRows(rows.queue_prefix(piece.topic, piece.queue_id), piece.first, values)

    def _live_units(self, piece: Piece) -> u.Units:
        """The units of a piece. Raises SafetyError, which names file and byte, for one that no healthy queue has."""
        found = piece.files.read(piece.first, piece.end)
        bad = u.first_bad(found, self.log.start, self.log.end)
        if bad is not None:
            raise SafetyError(f"{piece.files.where(piece.first + bad[0])}: the unit {bad[1]}")
        return found

    def _compare(self, piece: Piece, found: u.Units, wrong: NDArray[np.bool_]) -> None:
        """Raise SafetyError, which names file and byte, where a unit is not that of the message it points to."""
        for place in np.flatnonzero(wrong):
            self._require_own(piece, piece.first + int(place), int(found.phy[place]), int(found.size[place]))

    def _require_own(self, piece: Piece, offset: int, phy: int, size: int) -> None:
        """A queue may name messages of other queues (INNER_MULTI_DISPATCH); the message then says so itself."""
        record = self.log.record_at(phy)
        if record is not None and record.size == size:
            made = units_of(record, properties_of(record.properties), DispatchRules((), is_multi=True))
            if Dispatch(piece.topic, piece.queue_id, offset) in made:
                return
        raise SafetyError(
            f"{piece.files.where(offset)}: the unit is that of queue offset {offset}, and the message at {phy}, to "
            "which it points, is another one"
        )


def require_end(files: QueueFiles, end: int) -> None:
    """Raise SafetyError, which names file and byte, if a written unit stands behind the end of a queue."""
    later = files.later(end)
    if later is not None:
        raise SafetyError(
            f"{files.where(end)}: no unit was written here, but one of the same queue was, at {files.where(later)}"
        )


def stretches_of(log: CommitLog) -> list[tuple[int, LogFile]]:
    """Return the stretches of a commitlog: where each begins, and its file."""
    largest = max((file.size for file in log.used), default=0)
    of_a_file = max(-(-_LEAST_STRETCHES // max(len(log.used), 1)), -(-largest // _MOST_STRETCH_BYTES))
    return [
        (start, file)
        for file in log.used
        for start in range(file.start, min(file.start + file.size, log.end), -(-file.size // of_a_file))
    ]


def by_stretch(phy: Longs, starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield which of a queue's messages are in which stretch: its number, first, end. The messages' places ascend."""
    first = 0
    while first < len(phy):
        number = bisect.bisect_right(starts, int(phy[first])) - 1
        end = int(np.searchsorted(phy, starts[number + 1])) if number + 1 < len(starts) else len(phy)
        yield number, first, end
        first = end


def _keys_and_values(run: CountedRows) -> tuple[list[bytes], list[bytes]]:
    return rows.unit_keys(run.prefix, run.first, len(run.values)), rows.listed(run.values)


def _groups(blocks: Sequence[LogBlock]) -> Iterator[list[LogBlock]]:
    """Divide blocks into groups whose messages are read together, so that their headers do not take too much memory."""
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
    """Read what stands at these bytes of a commitlog file, in the order in which each block has them.

    Raises SafetyError, which names file and byte, where no record begins.
    """
    orders = [_order(positions) for positions in blocks]
    ascending = [
        positions if order is None else positions[order] for positions, order in zip(blocks, orders, strict=True)
    ]
    found = headers_of(file, ascending)
    for positions, order, headers in zip(ascending, orders, found, strict=True):
        moved = headers.phy != positions + file.start
        if bool(moved.any()):
            position = int(positions[np.argmax(moved)])
            raise SafetyError(f"{file.path}, byte {position}: the record there names another place as its own")
        if order is not None:
            for column in headers:
                column[order] = column.copy()
    return found


def _order(positions: Longs) -> NDArray[np.intp] | None:
    """The order in which messages lie on the disk; None where they come in it, as those of one queue do."""
    return np.argsort(positions, kind="stable") if bool((positions[1:] < positions[:-1]).any()) else None


def _strange(runs: NDArray[Any], found: c.RecordHeaders) -> Longs:
    """Return the places of units whose messages name another queue, or another queue offset."""
    places, within = _spread(runs)
    queue_ids = np.repeat(runs["queue_id"], runs["count"])
    is_strange = (found.queue_id != queue_ids) | (
        found.queue_offset != np.repeat(runs["offset"], runs["count"]) + within
    )
    is_strange &= queue_ids != _ANY_QUEUE
    return places[np.flatnonzero(is_strange)]


def packed_times(times: Longs) -> Times:
    """Pack store times; those of a stretch hardly ever lie further apart than 49 days, which 4 bytes hold."""
    least = int(times.min()) if len(times) else 0
    is_near = not len(times) or int(times.max()) - least < 1 << 32
    return Times(least, (times - least).astype("<u4").tobytes()) if is_near else Times(0, times.astype("<i8").tobytes())


def unpacked_times(times: Times, count: int) -> Longs:
    """Return so many store times that `packed_times` has packed."""
    return np.frombuffer(times.packed, dtype="<i8" if len(times.packed) == 8 * count else "<u4") + np.int64(times.least)


def _spread(runs: NDArray[Any]) -> tuple[Longs, Longs]:
    """Return of each unit of the runs its place in the part, and which of its run it is."""
    counts = runs["count"].astype(np.int64)
    before = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(before, counts)
    return np.repeat(runs["place"].astype(np.int64), counts) + within, within


def _in_place(count: int, blocks: Sequence[PartBlock]) -> Headers:
    """Put what was read of a part's messages into the order of its units."""
    headers = Headers(np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count, np.bool_))
    found = 0
    for block in blocks:
        places, _within = _spread(block.runs.read(_RUN))
        headers.times[places] = unpacked_times(Times(block.least, block.times.bytes()), len(places))
        headers.sizes[places] = block.sizes.read("<i4")
        headers.is_strange[block.strange.read("<u4")] = True
        found += len(places)
    if found != count:
        raise RuntimeError(f"a part of {count} units got {found} headers")
    return headers
