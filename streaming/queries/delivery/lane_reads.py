"""Reads the next entries of many lanes in one Spark job, in bounded time; a lane that is slow or odd stops nothing.

1. Of each lane at most a given number of entries, messages and bytes is read, and only whole entries, but at least one.
2. A lane's read ends early at an entry that its broker sends to no reader, or that has too many messages, and after
   SECONDS. The lane's entries before that are processed; the reason is returned, and deletion/lanes/slow.py continues.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.adapters.pulsar.readers.span_reader import SpanEntry, read_spans
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.queries.delivery.completion import Extent
from streaming.queries.delivery.read_end import ReadEnd, end_in, end_row
from streaming.queries.delivery.side_by_side import side_by_side
from streaming.queries.delivery.slots import ReadSlots
from streaming.spark.job_limit import limited
from udfs import columns as c
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import Position
from udfs.spark import numbered_rows
from udfs.undelivered import found_in_bytes

LANES_PER_TASK = 16
MOST_OF_ENTRY = 1_000  # messages; Pulsar's clients put no more into a batch by default
SECONDS = 4.0  # longer than a healthy broker takes for any lane's entries; one hostile lane may delay a pass so long
LATE = f"not read within {SECONDS:g} s"
_MOST_BYTES = 4 * 1024 * 1024  # of a lane
_JOB_SECONDS = 60.0  # a worker that does not even notice that its time is over
_READ = f"{c.SOURCE} string, ledgers array<long>, firsts array<long>, lasts array<long>, most long"

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ReadLanes:
    """Reads the lanes of a task in an executor.

    Yields a row (schemas.MESSAGE) for each message, and for each lane the row of its ReadEnd.
    """

    settings: Settings
    read: Callable[[PulsarSettings, str, Sequence[EntrySpan]], Iterator[SpanEntry]] = read_spans
    seconds: float = SECONDS

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of a bounded size. Raises nothing for a lane's sake."""
        planned = [
            lane for batch in batches for lane in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
        ends: dict[str, ReadEnd] = {source: ReadEnd(None, LATE) for source, *_ in planned}
        until_s = time.monotonic() + self.seconds
        for source, position, rows, fault in side_by_side([self._lane(*lane) for lane in planned], until_s=until_s):
            end = ends[source]
            if fault is not None:
                ends[source] = replace(end, fault=fault)
                continue
            empty = end.empty if rows else (*end.empty, EntrySpan(position[0], position[1], position[1]))
            last_row = rows[-1][c.ROW] if rows else end.last_row
            ends[source] = ReadEnd(position, end.fault, last_row, empty)
            yield pa.RecordBatch.from_pylist(rows, schema=schemas.MESSAGE)
        yield pa.RecordBatch.from_pylist([end_row(source, end) for source, end in ends.items()], schema=schemas.MESSAGE)

    def _lane(
        self, source: str, ledgers: list[int], firsts: list[int], lasts: list[int], most: int
    ) -> Iterator[tuple[str, Position, Rows, str | None]]:
        """Yield the rows of each entry; at the end the fault, which is "" if all that was planned was read."""
        spans = [EntrySpan(*span) for span in zip(ledgers, firsts, lasts, strict=True)]
        most_bytes = self.settings.service.max_request_bytes
        size, left, last_row = 0, most, -1
        try:
            for entry in self.read(self.settings.pulsar, source, spans):
                if entry.data is None:
                    yield source, entry.position, [], f"the broker sends entry {entry.position} to no reader"
                    return
                messages = list(islice(found_in_bytes(entry.data), MOST_OF_ENTRY + 1))
                if len(messages) > MOST_OF_ENTRY:
                    yield source, entry.position, [], f"entry {entry.position} has more than {MOST_OF_ENTRY} messages"
                    return
                numbered = [*numbered_rows(source, entry.position, messages, most_bytes, last_row)]
                rows, added = [row for row, _bytes in numbered], sum(row_bytes for _row, row_bytes in numbered)
                last_row = rows[-1][c.ROW] if rows else last_row
                if added > _MOST_BYTES:
                    yield source, entry.position, [], f"entry {entry.position} has {added} bytes"
                    return
                if left < most and (len(rows) > left or size + added > _MOST_BYTES):  # the next pass continues here
                    break
                left, size = left - len(rows), size + added
                yield source, entry.position, rows, None
            yield source, (0, 0), [], ""
        except Exception as error:  # also a fault of ours that odd bytes trigger: it must not stop the other lanes
            yield source, (0, 0), [], str(error) if isinstance(error, ReaperError) else repr(error)


@dataclass(frozen=True, slots=True)
class LanesRead:
    """What a pass has read."""

    rows: DataFrame  # schemas.MESSAGE
    ends: Mapping[str, ReadEnd]  # by partition
    unpersist: Callable[[], object]  # drops the rows
    oldest_ledger: int  # no message is in an older ledger

    @property
    def extent(self) -> Extent:
        """Bounds of the rows."""
        last_rows = {lane: end.last_row for lane, end in self.ends.items() if end.last_row >= 0}
        return Extent(last_rows, self.oldest_ledger)


class LaneRows:
    """Reads lanes for a pass. One per service."""

    def __init__(self, spark: SparkSession, settings: Settings, slots: ReadSlots) -> None:
        # as in fallback_reads.ReadRows
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")
        self._settings = settings
        self._slots = slots

    def __call__(self, query: str, spans: Mapping[str, Sequence[EntrySpan]], most_messages: int) -> LanesRead:
        """Read these entries (by partition), of each lane at most so many messages; the caller unpersists the rows.

        Raises what Spark raises, and ReaperError if the job hangs.
        """
        planned = [
            (lane, [e.ledger for e in each], [e.first for e in each], [e.last for e in each], most_messages)
            for lane, each in spans.items()
        ]
        tasks = min(self._slots.most_tasks(query), -(-len(planned) // LANES_PER_TASK))
        source = self._spark.createDataFrame(self._spark.sparkContext.parallelize(planned, tasks), _READ)
        read = source.mapInArrow(ReadLanes(self._settings), from_arrow_schema(schemas.MESSAGE)).persist()
        try:
            # It waits for no read of others: with few slots, all reads share one, which a slow lane may hold for half a
            # minute. It takes SECONDS at most, so deletes wait no longer for it.
            with limited(self._spark, lambda: _JOB_SECONDS, "reading lanes"):
                # computes all rows, and Spark keeps them
                ends = {row[c.SOURCE]: end_in(row) for row in read.where(F.col(c.POSITION_BATCH).isNull()).collect()}
        except BaseException:
            read.unpersist()
            raise
        oldest = min(span.ledger for each in spans.values() for span in each)
        return LanesRead(read.where(F.col(c.POSITION_BATCH).isNotNull()), ends, read.unpersist, oldest)
