"""The Spark job of `check`: every unit three times, from the file queue, from the database, and from the commitlog.

1. By commitlog file: walk all records, and make the units of each as the broker would.
2. By part: read the same run of units from the file queues and from the database, and compare.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark import Accumulator, SparkContext

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.log_files import CommitLog, mapped
from streaming.rocketmq.work import PartWork, Piece
from udfs.rocketmq import commitlog as c
from udfs.rocketmq import rows
from udfs.rocketmq import units as u
from udfs.rocketmq.compare import Finding, FindingKind, UnitRun, compare
from udfs.rocketmq.dispatch import Dispatch, DispatchRules, properties_of, tags_code, units_of

_FLUSHED_UNITS = 50_000
_LOOKED_UP = 100  # one row of so many is looked up by its key, too; a block has some hundreds
_MOST_TASKS = 2_000
_UNIT = np.dtype([("place", "<i8"), ("phy", "<i8"), ("size", "<i4"), ("tags", "<i8"), ("time", "<i8")])

_NO_QUEUE = (0, 0, 0, -1)

QueueKey = tuple[bytes, int]
Held = dict[int, list[tuple[int, int, int, int, int]]]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Where each unit of each queue stands among all.

    A topic that was deleted and made anew counts its messages from 0 again, and the commitlog has those of its earlier
    life until they expire. Within one life a higher offset lies further on in the log. So of two messages with one
    offset the later counts, and one behind the end of its queue that begins before the last known message (last_phy) is
    of an earlier life.
    """

    firsts: Mapping[QueueKey, tuple[int, int, int, int]]  # first, end, units before the queue, last_phy
    rows_per_part: int

    def place_of(self, topic: bytes, queue_id: int, offset: int) -> int:
        """Return the number of a unit; -1 where no queue has room for it."""
        first, end, before, _last_phy = self.firsts.get((topic, queue_id), _NO_QUEUE)
        return before + offset - first if first <= offset < end else -1

    def is_of_earlier_life(self, unit: Dispatch, phy: int) -> bool:
        """Whether the message at phy, for whose unit no queue has room, is of a queue that was deleted."""
        _first, end, _before, last_phy = self.firsts.get((unit.topic, unit.queue_id), _NO_QUEUE)
        return unit.offset >= end and phy < last_phy


@dataclass(frozen=True, slots=True)
class IndexJob:
    """rocksdb: folder of the database. done: counts units of the log and of the comparison."""

    log: CommitLog
    rocksdb: str
    rules: DispatchRules
    numbering: Numbering
    done: "Accumulator[int]"

    def run(self, spark: SparkContext, works: Sequence[PartWork]) -> list[Finding]:
        """Return everything that is not as it should be."""
        files, count = len(self.log.used), max(len(works), 1)
        tasks = min(count, _MOST_TASKS)
        walked = spark.parallelize(range(files), max(files, 1)).mapPartitions(self.walk)
        told = spark.parallelize([(work.number, work) for work in works], tasks).union(walked)
        return told.partitionBy(tasks, lambda part: part * tasks // count).mapPartitions(self.compare).collect()

    def walk(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes | Finding]]:
        """Yield the units of some commitlog files, by part."""
        for number in numbers:
            file = self.log.files[number]
            held: Held = {}
            lost = dict[QueueKey, tuple[int, int, int]]()
            with mapped(file) as view:
                limit = min(self.log.end - file.start, file.size)
                records = c.walk(view[:limit] if limit < file.size else view, file.start)
                try:
                    for count, record in enumerate(records, 1):
                        self._take(record, held, lost)
                        if count % _FLUSHED_UNITS == 0:
                            yield from _packed(held)
                            self.done.add(_FLUSHED_UNITS)
                except c.BadRecordError as error:
                    raise SafetyError(f"{file.path}, byte {error.position}: {error.text}") from error
                except ValueError as error:
                    raise SafetyError(f"{file.path}: a record's properties can't be read: {error}") from error
                finally:
                    records.close()  # type: ignore[attr-defined]
            yield from _packed(held)
            for (topic, queue_id), (count, offset, phy) in lost.items():
                text = f"file queue and database end before it; the first such message begins at {phy}"
                yield 0, Finding(topic, queue_id, FindingKind.NO_QUEUE, count, offset, text)

    def _take(self, record: c.CommitLogRecord, held: Held, lost: dict[QueueKey, tuple[int, int, int]]) -> None:
        properties = properties_of(record.properties)
        tags = tags_code(record, properties, self.rules.delays_ms)
        for unit in units_of(record, properties, self.rules):
            place = self.numbering.place_of(*unit)
            if place < 0 and self.numbering.is_of_earlier_life(unit, record.phy):
                continue
            if place < 0:
                count, offset, phy = lost.get(unit[:2], (0, unit.offset, record.phy))
                lost[unit[:2]] = (count + 1, offset, phy)
            else:
                part = place // self.numbering.rows_per_part
                held.setdefault(part, []).append((place, record.phy, record.size, tags, record.store_time))

    def compare(self, told: Iterable[tuple[int, PartWork | bytes | Finding]]) -> Iterator[Finding]:
        """Yield what is wrong with some parts."""
        works, walked = list[PartWork](), dict[int, list[bytes]]()
        for number, each in told:
            if isinstance(each, PartWork):
                works.append(each)
            elif isinstance(each, Finding):
                yield each
            else:
                walked.setdefault(number, []).append(each)
        with opened(Path(self.rocksdb), read_only=True) as database:
            for work in works:
                from_log = np.frombuffer(b"".join(walked.pop(work.number, [])), dtype=_UNIT)
                from_log = from_log[
                    np.lexsort((from_log["phy"], from_log["place"]))
                ]  # of one offset, the later one last
                yield from self._compare(work, from_log, database)
                self.done.add(work.rows)

    def _compare(self, work: PartWork, from_log: np.ndarray, database: Database) -> Iterator[Finding]:
        start = work.number * self.numbering.rows_per_part
        for piece in work.pieces:
            begin, end = (start + piece.place + each for each in (0, piece.end - piece.first))
            places = from_log["place"]
            some = from_log[bisect.bisect_left(places, begin) : bisect.bisect_left(places, end)]
            some = some[np.diff(some["place"], append=np.int64(-1)) != 0]
            log = UnitRun(
                some["place"].astype(np.int64) - begin + piece.first,
                some["phy"].astype(np.int64), some["size"].astype(np.int32), some["tags"].astype(np.int64),
                some["time"].astype(np.int64),
            )  # fmt: skip
            yield from compare(
                (piece.topic, piece.queue_id, piece.first, piece.end),
                queue=_of_files(piece, self.log.start), database=_of_database(piece, database, self.log.start), log=log,
            )  # fmt: skip


def _packed(held: Held) -> Iterator[tuple[int, bytes]]:
    for part in list(held):
        yield part, np.array(held.pop(part), dtype=_UNIT).tobytes()


def _of_files(piece: Piece, log_start: int) -> UnitRun:
    """The units that the file queue has of a piece, as far as their messages are there."""
    first, end = max(piece.first, piece.files.start), min(piece.end, piece.files.limit)
    found = piece.files.read(first, end) if first < end else piece.files.read(0, 0)
    offsets = np.arange(first, first + found.rows, dtype=np.int64)
    live = u.is_written(found) & u.is_live(found, log_start)
    return UnitRun(offsets[live], found.phy[live], found.size[live], found.tags[live], None)


def _of_database(piece: Piece, database: Database, log_start: int) -> UnitRun:
    """The rows that the database has of a piece, as far as their messages are there."""
    prefix = rows.queue_prefix(piece.topic, piece.queue_id)
    first, end = (rows.unit_key(piece.topic, piece.queue_id, each) for each in (piece.first, piece.end))
    keys, values = list[bytes](), list[bytes]()
    for key, value in database.rows(DEFAULT_FAMILY, first, end):
        keys.append(key)
        values.append(value)
    try:
        offsets, (units, times) = rows.key_offsets(keys, prefix), rows.decode_values(values)
    except ValueError as error:
        topic = piece.topic.decode("utf-8", "replace")
        raise SafetyError(f"the database has a damaged row of {topic}, queue {piece.queue_id}: {error}") from error
    _require_found_by_key(piece, database, keys[::_LOOKED_UP] + keys[-1:], values[::_LOOKED_UP] + values[-1:])
    live = units.phy >= log_start
    return UnitRun(offsets[live], units.phy[live], units.size[live], units.tags[live], times[live])


def _require_found_by_key(piece: Piece, database: Database, keys: list[bytes], values: list[bytes]) -> None:
    """Raise SafetyError where a row that was read in turn is not found by its key.

    A broker looks rows up, and a file whose index is wrong still has them all in order.
    """
    for key, value in zip(keys, values, strict=True):
        if database.get(DEFAULT_FAMILY, key) != value:
            topic, offset = piece.topic.decode("utf-8", "replace"), rows.decode_key(key).offset
            raise SafetyError(
                f"the database has queue offset {offset} of {topic}, queue {piece.queue_id}, and does not find it by "
                "its key: the index of its file is wrong"
            )
