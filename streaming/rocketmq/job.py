"""The Spark job that turns queue files into sorted files of RocksDB rows.

Three stages, with a shuffle after the first two:
1. by part: read the units of a part, and say of each in which stretch of the commitlog its message lies: in which file,
   or in which piece of one where there are few;
2. by stretch: read what stands at the beginning of those messages, the store time among it, so that each stretch is
   read by one task, from its beginning to its end;
3. by part: put units and store times together, compare them, and write the part's file.

What goes through the shuffles are packed arrays, one for each part and stretch, never single rows. A task needs memory
for the headers of its parts, which are few, and for the rows of one.
"""

import bisect
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from pyspark import Accumulator, SparkContext

from streaming.adapters.rocksdb.database import write_sst
from streaming.errors import SafetyError
from streaming.rocketmq.log_files import CommitLog, LogFile, headers_of, mapped
from streaming.rocketmq.queue_files import QueueFiles
from streaming.rocketmq.work import PartWork, Piece
from udfs.rocketmq import rows
from udfs.rocketmq import units as u
from udfs.rocketmq.dispatch import LMQ_PREFIX, Dispatch, DispatchRules, properties_of, units_of
from udfs.rocketmq.units import Longs

_CHUNK_ROWS = 8_000  # so many keys and values stay in a core's cache
_MOST_TASKS = 2_000
_PARTS_PER_TASK = 8  # to begin a task costs as much as half a part
_LEAST_STRETCHES = 16  # a small store has few files of a gigabyte, and every core shall have its share of them
_HEADER = np.dtype([("time", "<i8"), ("queue_offset", "<i8"), ("size", "<i4"), ("queue_id", "<i4")])

LogBlock = tuple[int, bytes, bytes]  # part, runs of places in it (first, count), physical offsets
PartBlock = tuple[bytes, bytes]  # runs of places in the part, headers


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
    """log: the commitlog. folder: where the files go. done: counts units, each of them once in each stage."""

    log: CommitLog
    folder: str
    done: "Accumulator[int]"

    def run(self, spark: SparkContext, works: Sequence[PartWork]) -> list[Written]:
        """Write a file for each part. Raises Spark's error, with ours in its text, where a task refuses a unit."""
        if not works:
            return []
        stretches, tasks = max(len(stretches_of(self.log)), 1), tasks_of(len(works), spark.defaultParallelism)
        log_tasks = min(stretches, _MOST_TASKS)
        task_of = {work.number: place * tasks // len(works) for place, work in enumerate(works)}
        parts = spark.parallelize(works, tasks)
        by_log = parts.mapPartitions(self.by_log).partitionBy(log_tasks, lambda each: each * log_tasks // stretches)
        headers = by_log.mapPartitions(self.with_headers)
        told = parts.map(lambda work: (work.number, work)).union(headers)
        return told.partitionBy(tasks, lambda part: task_of[part]).mapPartitions(self.write).collect()  # type: ignore[arg-type]

    def by_log(self, works: Iterable[PartWork]) -> Iterator[tuple[int, LogBlock]]:
        """Stage 1: yield the messages of each part, by the stretch of the commitlog that they are in."""
        starts = [start for start, _file in stretches_of(self.log)]
        for work in works:
            runs = dict[int, list[tuple[int, int]]]()
            offsets = dict[int, list[Longs]]()
            for piece in work.pieces:
                found = self._live_units(piece)
                for number, first, end in by_stretch(found.phy, starts):
                    runs.setdefault(number, []).append((piece.place + first, end - first))
                    offsets.setdefault(number, []).append(found.phy[first:end])
                if piece.is_last:
                    require_end(piece.files, piece.end)
            for number, some in runs.items():
                packed = np.concatenate(offsets.pop(number)).astype("<i8").tobytes()
                yield number, (work.number, np.array(some, dtype="<u4").tobytes(), packed)
            self.done.add(work.rows)

    def with_headers(self, blocks: Iterable[tuple[int, LogBlock]]) -> Iterator[tuple[int, PartBlock]]:
        """Stage 2: yield the headers of messages, by the part that they belong to."""
        stretches = stretches_of(self.log)
        for number, of_stretch in groupby(blocks, key=itemgetter(0)):
            _start, file = stretches[number]
            with mapped(file) as view:
                for _number, (part, runs, offsets) in of_stretch:
                    phy = np.frombuffer(offsets, dtype="<i8").astype(np.int64)
                    yield part, (runs, _headers(file, view, phy).tobytes())
                    self.done.add(len(phy))

    def write(self, told: Iterable[tuple[int, PartWork | PartBlock]]) -> Iterator[Written]:
        """Stage 3: write the file of each part."""
        works, headers = dict[int, PartWork](), dict[int, list[PartBlock]]()
        for number, each in told:
            if isinstance(each, PartWork):
                works[number] = each
            else:
                headers.setdefault(number, []).append(each)
        for number, work in works.items():
            yield self._write(work, _in_place(work.rows, headers.pop(number, [])))
            self.done.add(work.rows)

    def _write(self, work: PartWork, headers: NDArray[Any]) -> Written:
        name, aside = file_name(work.number), Path(self.folder) / f".{uuid4().hex}"
        size = write_sst(aside, self._rows(work, headers))
        with aside.open("rb") as handle:
            os.fsync(handle.fileno())
        aside.replace(Path(self.folder) / name)  # a finished file is whole, and the second one of a task is the same
        return Written(work.number, name, work.rows, size)

    def _rows(self, work: PartWork, headers: NDArray[Any]) -> Iterator[tuple[list[bytes], list[bytes]]]:
        for piece in work.pieces:
            prefix, found = rows.queue_prefix(piece.topic, piece.queue_id), self._live_units(piece)
            of_piece = headers[piece.place : piece.place + found.rows]
            self._compare(piece, found, of_piece)
            times = of_piece["time"].astype(np.int64)
            for start in range(0, found.rows, _CHUNK_ROWS):
                some = found.between(start, start + _CHUNK_ROWS)
                keys = rows.unit_keys(prefix, piece.first + start, some.rows)
                yield keys, rows.unit_values(some, times[start : start + _CHUNK_ROWS])

    def _live_units(self, piece: Piece) -> u.Units:
        """The units of a piece. Raises SafetyError, which names file and byte, for one that no healthy queue has."""
        found = piece.files.read(piece.first, piece.end)
        bad = u.first_bad(found, self.log.start, self.log.end)
        if bad is not None:
            raise SafetyError(f"{piece.files.where(piece.first + bad[0])}: the unit {bad[1]}")
        return found

    def _compare(self, piece: Piece, found: u.Units, headers: NDArray[Any]) -> None:
        """Raise SafetyError, which names file and byte, where a unit is not that of the message it points to."""
        wrong = found.size != headers["size"]
        if not piece.topic.startswith(LMQ_PREFIX):
            wrong |= headers["queue_offset"] != np.arange(piece.first, piece.end)
            wrong |= headers["queue_id"] != piece.queue_id
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
    of_a_file = -(-_LEAST_STRETCHES // max(len(log.used), 1))
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


def _headers(file: LogFile, view: memoryview, phy: Longs) -> NDArray[Any]:
    """Read what stands at the beginning of messages of one commitlog file, in their order.

    Raises SafetyError, which names file and byte, where none begins.
    """
    order = np.argsort(phy, kind="stable")  # the disk is read in one direction
    found = headers_of(file, view, phy[order] - file.start)
    moved = found.phy != phy[order]
    if bool(moved.any()):
        position = int(phy[order][np.argmax(moved)]) - file.start
        raise SafetyError(f"{file.path}, byte {position}: the record there names another place as its own")
    headers = np.empty(len(phy), dtype=_HEADER)
    headers["time"][order], headers["queue_offset"][order] = found.store_time, found.queue_offset
    headers["size"][order], headers["queue_id"][order] = found.size, found.queue_id
    return headers


def _in_place(count: int, blocks: Sequence[PartBlock]) -> NDArray[Any]:
    """Put the headers of a part into the order of its units."""
    size = _HEADER.itemsize
    headers, found = np.zeros(count * size, dtype=np.uint8), 0
    for runs, packed in blocks:
        some, at = np.frombuffer(packed, dtype=np.uint8), 0
        for place, length in (np.frombuffer(runs, dtype="<u4").reshape(-1, 2).astype(np.int64) * size).tolist():
            headers[place : place + length] = some[at : at + length]
            at += length
        found += at // size
    if found != count:
        raise RuntimeError(f"a part of {count} units got {found} headers")
    return headers.view(_HEADER)
