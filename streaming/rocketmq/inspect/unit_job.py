"""The Spark job of `check`: compares every unit of the file queues, of the database, and of the commitlog.

1. By commitlog file: walk all records, and create their units as the broker would.
2. By part: read the same units from the file queues and from the database, and compare.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark import Accumulator, SparkContext

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.convert.work import PartWork, Piece
from streaming.rocketmq.store.inventory import Queue
from streaming.rocketmq.store.log_files import CommitLog, mapped
from udfs.rocketmq import commitlog as c
from udfs.rocketmq import queue_units as u
from udfs.rocketmq import rows
from udfs.rocketmq.compare import Finding, FindingKind, UnitRun, compare
from udfs.rocketmq.dispatch import Dispatch, DispatchRules, properties_of, tags_code, units_of
from udfs.rocketmq.parts import QueueKey

_FLUSHED_UNITS = 50_000
_ROWS_PER_KEY_READ = 100  # of this many rows, one is also read by its key; a block of RocksDB has some hundreds
_MOST_TASKS = 2_000
_UNIT = np.dtype([("position", "<i8"), ("phy", "<i8"), ("size", "<i4"), ("tags", "<i8"), ("time", "<i8")])

_NO_QUEUE = (0, 0, 0, -1)

UnitsByPart = dict[int, list[tuple[int, int, int, int, int]]]


@dataclass(frozen=True, slots=True)
class Numbering:
    """The number of each unit of each queue among all units.

    A topic that was deleted and created again counts its messages from 0 again, and the commitlog keeps the messages of
    its earlier incarnation until they expire.
    """

    firsts: Mapping[QueueKey, tuple[int, int, int, int]]  # first, end, units before the queue, last_phy
    rows_per_part: int

    def number_of(self, topic: bytes, queue_id: int, offset: int) -> int:
        """Return the number of a unit; -1 if its queue does not extend to it."""
        first, end, before, _last_phy = self.firsts.get((topic, queue_id), _NO_QUEUE)
        return before + offset - first if first <= offset < end else -1

    def is_of_earlier_incarnation(self, unit: Dispatch, phy: int) -> bool:
        """Whether the message at `phy`, whose unit is outside of its queue, belongs to a queue that was deleted."""
        _first, end, _before, last_phy = self.firsts.get((unit.topic, unit.queue_id), _NO_QUEUE)
        # within an incarnation, a higher offset is later in the log
        return unit.offset >= end and phy < last_phy


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitJob:
    """The job, for a store."""

    log: CommitLog
    rocksdb: str  # folder of the database
    rules: DispatchRules
    numbering: Numbering
    done: "Accumulator[int]"  # counts units of the log and of the comparison

    def run(self, spark: SparkContext, works: Sequence[PartWork]) -> list[Finding]:
        """Return all findings."""
        files, count = len(self.log.used), max(len(works), 1)
        tasks = min(count, _MOST_TASKS)
        walked = spark.parallelize(range(files), max(files, 1)).mapPartitions(self.walk)
        inputs = spark.parallelize([(work.number, work) for work in works], tasks).union(walked)
        return inputs.partitionBy(tasks, lambda part: part * tasks // count).mapPartitions(self.compare).collect()

    def walk(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes | Finding]]:
        """Yield the units of some commitlog files, by part."""
        for number in numbers:
            file = self.log.files[number]
            units: UnitsByPart = {}
            lost = dict[QueueKey, tuple[int, int, int]]()
            with mapped(file) as view:
                limit = min(self.log.end - file.start, file.size)
                records = c.walk(view[:limit] if limit < file.size else view, file.start)
                try:
                    for count, record in enumerate(records, 1):
                        self._take(record, units, lost)
                        if count % _FLUSHED_UNITS == 0:
                            yield from _packed(units)
                            self.done.add(_FLUSHED_UNITS)
                except c.BadRecordError as error:
                    raise SafetyError(f"{file.path}, byte {error.position}: {error.text}") from error
                except ValueError as error:
                    raise SafetyError(f"{file.path}: a record's properties can't be read: {error}") from error
                finally:
                    records.close()  # type: ignore[attr-defined]
            yield from _packed(units)
            for (topic, queue_id), (count, offset, phy) in lost.items():
                text = f"neither file queue nor database has it; the first such message starts at {phy}"
                finding = Finding(
                    topic=topic, queue_id=queue_id, kind=FindingKind.NO_QUEUE, count=count, offset=offset, text=text
                )
                yield 0, finding

    def _take(self, record: c.CommitLogRecord, units: UnitsByPart, lost: dict[QueueKey, tuple[int, int, int]]) -> None:
        properties = properties_of(record.properties)
        tags = tags_code(record, properties, self.rules.delays_ms)
        for unit in units_of(record, properties, self.rules):
            position = self.numbering.number_of(*unit)
            if position < 0 and self.numbering.is_of_earlier_incarnation(unit, record.phy):
                continue
            if position < 0:
                count, offset, phy = lost.get(unit[:2], (0, unit.offset, record.phy))
                lost[unit[:2]] = (count + 1, offset, phy)
            else:
                part = position // self.numbering.rows_per_part
                units.setdefault(part, []).append((position, record.phy, record.size, tags, record.store_time))

    def compare(self, inputs: Iterable[tuple[int, PartWork | bytes | Finding]]) -> Iterator[Finding]:
        """Yield the findings of some parts."""
        works, walked = list[PartWork](), dict[int, list[bytes]]()
        for number, value in inputs:
            if isinstance(value, PartWork):
                works.append(value)
            elif isinstance(value, Finding):
                yield value
            else:
                walked.setdefault(number, []).append(value)
        with opened(Path(self.rocksdb), read_only=True) as database:
            for work in works:
                from_log = np.frombuffer(b"".join(walked.pop(work.number, [])), dtype=_UNIT)
                # Of units with the same offset, the later message's comes last, and only that one counts: the queue of
                # the earlier message was deleted
                from_log = from_log[np.lexsort((from_log["phy"], from_log["position"]))]
                yield from self._compare(work, from_log, database)
                self.done.add(work.rows)

    def _compare(self, work: PartWork, from_log: np.ndarray, database: Database) -> Iterator[Finding]:
        start = work.number * self.numbering.rows_per_part
        for piece in work.pieces:
            begin, end = (start + piece.position + offset for offset in (0, piece.end - piece.first))
            positions = from_log["position"]
            of_piece = from_log[bisect.bisect_left(positions, begin) : bisect.bisect_left(positions, end)]
            of_piece = of_piece[np.diff(of_piece["position"], append=np.int64(-1)) != 0]
            log = UnitRun(
                offset=of_piece["position"].astype(np.int64) - begin + piece.first,
                phy=of_piece["phy"].astype(np.int64),
                size=of_piece["size"].astype(np.int32),
                tags=of_piece["tags"].astype(np.int64),
                time=of_piece["time"].astype(np.int64),
            )
            yield from compare(
                (piece.topic, piece.queue_id, piece.first, piece.end),
                queue=_of_files(piece, self.log.start),
                database=_of_database(piece, database, self.log.start),
                log=log,
            )


def _packed(units: UnitsByPart) -> Iterator[tuple[int, bytes]]:
    for part in list(units):
        yield part, np.array(units.pop(part), dtype=_UNIT).tobytes()


def _of_files(piece: Piece, log_start: int) -> UnitRun:
    """Return the units of a piece in the file queue whose messages exist."""
    first, end = max(piece.first, piece.files.start), min(piece.end, piece.files.limit)
    units = piece.files.read(first, end) if first < end else piece.files.read(0, 0)
    offsets = np.arange(first, first + units.rows, dtype=np.int64)
    live = u.is_written(units) & u.is_live(units, log_start)
    return UnitRun(offset=offsets[live], phy=units.phy[live], size=units.size[live], tags=units.tags[live], time=None)


def _of_database(piece: Piece, database: Database, log_start: int) -> UnitRun:
    """Return the rows of a piece in the database whose messages exist."""
    prefix = rows.queue_prefix(piece.topic, piece.queue_id)
    first, end = (rows.unit_key(piece.topic, piece.queue_id, offset) for offset in (piece.first, piece.end))
    keys, values = list[bytes](), list[bytes]()
    for key, value in database.rows(DEFAULT_FAMILY, first, end):
        keys.append(key)
        values.append(value)
    try:
        offsets, (units, times) = rows.key_offsets(keys, prefix), rows.decode_values(values)
    except ValueError as error:
        topic = piece.topic.decode("utf-8", "replace")
        raise SafetyError(f"the database has a damaged row of {topic}, queue {piece.queue_id}: {error}") from error
    _require_found_by_key(
        piece, database, keys[::_ROWS_PER_KEY_READ] + keys[-1:], values[::_ROWS_PER_KEY_READ] + values[-1:]
    )
    live = units.phy >= log_start
    return UnitRun(
        offset=offsets[live], phy=units.phy[live], size=units.size[live], tags=units.tags[live], time=times[live]
    )


def _require_found_by_key(piece: Piece, database: Database, keys: list[bytes], values: list[bytes]) -> None:
    """Raise SafetyError if the database does not find a row by its key that it returned in order."""
    # a broker reads rows by key, and a file whose index is wrong still has them all in order
    for key, value in zip(keys, values, strict=True):
        if database.get(DEFAULT_FAMILY, key) != value:
            topic, offset = piece.topic.decode("utf-8", "replace"), rows.decode_key(key).offset
            raise SafetyError(
                f"the database has queue offset {offset} of {topic}, queue {piece.queue_id}, and does not find it by "
                "its key: the index of its file is wrong"
            )


def numbering_of(queues: Sequence[Queue], rows_per_part: int) -> Numbering:
    """Number the units of queues, one after another."""
    firsts, before = dict[QueueKey, tuple[int, int, int, int]](), 0
    for queue in queues:
        live = queue.range
        firsts[live.key] = (live.first, live.end, before, queue.last_phy)
        before += live.end - live.first
    return Numbering(firsts, rows_per_part)
