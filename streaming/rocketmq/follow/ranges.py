"""The work of `follow` in the executors: stretches of the commitlog become units."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark import SparkContext

from streaming.errors import SafetyError
from streaming.rocketmq.follow.tail import RANGE_BYTES, LogRange
from streaming.rocketmq.log_files import CommitLog, LogFile, mapped
from udfs.rocketmq import commitlog as c
from udfs.rocketmq.dispatch import DispatchRules, properties_of, tags_code, units_of
from udfs.rocketmq.growth import RecordUnit, UnitChunk, chunks_of


@dataclass(frozen=True, slots=True)
class RangeJob:
    """Indexes ranges of the log as the broker would."""

    rules: DispatchRules

    def run(self, spark: SparkContext, ranges: Sequence[LogRange]) -> list[UnitChunk]:
        """Return the units of all ranges, of each queue in the order of the log.

        Raises Spark's error, with ours in its text, at bytes that are no record.
        """
        if not ranges:
            return []
        found = spark.parallelize(list(enumerate(ranges)), len(ranges)).mapPartitions(self._indexed).collect()
        return [chunk for _number, chunks in sorted(found, key=lambda each: each[0]) for chunk in chunks]

    def _indexed(self, numbered: Iterable[tuple[int, LogRange]]) -> Iterator[tuple[int, list[UnitChunk]]]:
        for number, each in numbered:
            yield number, self.index(each)

    def index(self, each: LogRange) -> list[UnitChunk]:
        """Return the units of one range. Raises SafetyError, which names file and byte, at bytes that are no record."""
        file = each.file
        with mapped(file) as view:
            try:
                return list(chunks_of(self._entries(view, each)))
            except c.BadRecordError as error:
                raise SafetyError(f"{file.path}, byte {error.position}: {error.text}") from error
            except ValueError as error:
                raise SafetyError(f"{file.path}: a record's properties can't be read: {error}") from error

    def _entries(self, view: memoryview, each: LogRange) -> Iterator[RecordUnit]:
        position = each.start - each.file.start
        while each.file.start + position < each.end:
            record = c.record_at(view, each.file.start, position)
            if record is None:
                raise c.BadRecordError(position, "no record begins here any more")
            position += record.size
            properties = properties_of(record.properties)
            tags = tags_code(record, properties, self.rules.delays_ms)
            for unit in units_of(record, properties, self.rules):
                yield RecordUnit(*unit, record.phy, record.size, tags, record.store_time)
        if each.file.start + position != each.end:
            raise c.BadRecordError(position, f"a record ends here, and one had ended at {each.end}")


def ranges_up_to_the_end(log: CommitLog, position: int) -> Iterator[LogRange]:
    """Yield what is left of a log to which nobody writes. Raises SafetyError at bytes that are no record."""
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
