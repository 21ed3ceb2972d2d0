"""The work of `follow` in the executors: converts ranges of the commitlog into units."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark import SparkContext

from streaming.errors import SafetyError
from streaming.rocketmq.store.log_files import CommitLog, LogFile, mapped
from udfs.rocketmq import commitlog as c
from udfs.rocketmq.dispatch import DispatchRules, properties_of, tags_code, units_of
from udfs.rocketmq.growth import RecordUnit, UnitChunk, chunks_of

RANGE_BYTES = 8 << 20


class LogRange(NamedTuple):
    """Complete records of a file: those that start at the physical offset `start` or later, and before `end`."""

    file: LogFile
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RangeJob:
    """Indexes ranges of the log as the broker would."""

    rules: DispatchRules

    def run(self, spark: SparkContext, ranges: Sequence[LogRange]) -> list[UnitChunk]:
        """Return the units of all ranges; those of a queue are in the order of the log.

        Raises Spark's error, with ours in its text, at bytes that are no record.
        """
        if not ranges:
            return []
        numbered = spark.parallelize(list(enumerate(ranges)), len(ranges)).mapPartitions(self._indexed).collect()
        return [chunk for _number, chunks in sorted(numbered, key=lambda pair: pair[0]) for chunk in chunks]

    def _indexed(self, numbered: Iterable[tuple[int, LogRange]]) -> Iterator[tuple[int, list[UnitChunk]]]:
        for number, log_range in numbered:
            yield number, self.index(log_range)

    def index(self, log_range: LogRange) -> list[UnitChunk]:
        """Return the units of a range. Raises SafetyError, which names file and byte, at bytes that are no record."""
        file = log_range.file
        with mapped(file) as view:
            try:
                return list(chunks_of(self._entries(view, log_range)))
            except c.BadRecordError as error:
                raise SafetyError(f"{file.path}, byte {error.position}: {error.text}") from error
            except ValueError as error:
                raise SafetyError(f"{file.path}: a record's properties can't be read: {error}") from error

    def _entries(self, view: memoryview, log_range: LogRange) -> Iterator[RecordUnit]:
        position = log_range.start - log_range.file.start
        while log_range.file.start + position < log_range.end:
            record = c.record_at(view, log_range.file.start, position)
            if record is None:
                raise c.BadRecordError(position, "no record starts here any more")
            position += record.size
            properties = properties_of(record.properties)
            tags = tags_code(record, properties, self.rules.delays_ms)
            for unit in units_of(record, properties, self.rules):
                yield RecordUnit(*unit, phy=record.phy, size=record.size, tags=tags, time=record.store_time)
        if log_range.file.start + position != log_range.end:
            raise c.BadRecordError(position, f"a record ends here, and earlier a record ended at {log_range.end}")


def ranges_up_to_the_end(log: CommitLog, position: int) -> Iterator[LogRange]:
    """Yield the rest of a log to which no broker writes. Raises SafetyError at bytes that are no record."""
    for file in log.used:
        if file.start + file.size <= position:
            continue
        at = max(position, file.start)
        with mapped(file) as view:
            yield from _of_file(view, file, at, min(log.end, file.start + file.size))


def _of_file(view: memoryview, file: LogFile, position: int, end: int) -> Iterator[LogRange]:
    while position < end:
        stop = min(position - file.start + RANGE_BYTES, file.size)
        try:
            reached = file.start + c.end_before(view, file.start, position - file.start, stop)
        except c.BadRecordError as error:
            raise SafetyError(f"{file.path}, byte {error.position}: {error.text}") from error
        if reached == position:
            return
        yield LogRange(file, position, reached)
        position = reached
