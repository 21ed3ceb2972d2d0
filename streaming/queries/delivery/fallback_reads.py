"""Reads messages without the connector, in the executors, a few thousand entries per task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.readers.control_entries import ControlEntries
from streaming.adapters.pulsar.readers.entries import fallback_entries
from streaming.adapters.pulsar.source.schema import groups
from streaming.clients import admin_for
from streaming.config.sections import TopicSettings
from streaming.config.settings import Settings
from streaming.queries.delivery.side_by_side import side_by_side
from streaming.queries.delivery.slots import ReadSlots
from udfs import columns as c
from udfs.entry_ranges import EntrySpan, split
from udfs.spark import fallback_row, size_of

_ENTRIES_PER_TASK = 2000
_READS_PER_TASK = 4
_CONTROL_PARTITIONS = 2  # of each of our topics; their entries show whether the broker shows any entry
_NO_ROWS = "nothing int"
_READ = f"{c.SOURCE} string, ledgers array<long>, firsts array<long>, lasts array<long>"

PartitionRead = tuple[str, list[int], list[int], list[int]]
"""Entries of a partition that are read in sequence: each span's ledger, first and last entry."""


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Reads the entries of a task in an executor, and yields a row (schemas.MESSAGE) for each message."""

    settings: Settings
    gives_up: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of a bounded size. Raises UnavailableError, RefusedError."""
        yield from record_batches(self._rows(batches))

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[dict[str, Any], int]]:
        with admin_for(self.settings) as admin:
            reads = [
                read
                for batch in batches
                for read in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            ]
            yield from side_by_side([self._of(admin, read) for read in reads])

    def _of(self, admin: PulsarAdmin, read: PartitionRead) -> Iterator[tuple[dict[str, Any], int]]:
        most_bytes, others = self.settings.service.max_request_bytes, control_partitions(self.settings.topics)
        source, *columns = read
        spans = [EntrySpan(*span) for span in zip(*columns, strict=True)]
        controls = ControlEntries(admin, source, others, self.gives_up)
        for position, message in fallback_entries(self.settings.pulsar, admin, source, spans, controls):
            row = fallback_row(source, position, message, most_bytes)
            yield row, size_of(row[c.MESSAGE_KEY], row[c.PAYLOAD], row[c.MESSAGE_PROPERTIES])


def control_partitions(topics: TopicSettings) -> list[str]:
    """Return partitions of our topics, whose entries show whether the broker returns any entry."""
    ours = (topics.dead_letter, topics.retry, *topics.requests)
    return [f"{topic}-partition-{number}" for topic in ours for number in range(_CONTROL_PARTITIONS)]


def record_batches(rows: Iterable[tuple[dict[str, Any], int]]) -> Iterator[pa.RecordBatch]:
    """Yield rows (schemas.MESSAGE) in record batches of a bounded size. rows: each with its size in bytes."""
    for group in groups(rows):
        yield pa.RecordBatch.from_pylist(group, schema=schemas.MESSAGE)


class ReadRows:
    """Reads entries for the completion of batches and the fallback; implements completion.Read. One per service."""

    def __init__(self, spark: SparkSession, settings: Settings, slots: ReadSlots) -> None:
        # Adaptive execution would compute persisted rows while it plans: all at once, and outside the query's slots.
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")
        self._settings = settings
        self._slots = slots

    def __call__(self, query: str, spans: Mapping[str, Sequence[EntrySpan]], /, *, gives_up: bool = False) -> DataFrame:
        """Read these entries (by partition) in successive jobs, each in as many slots as the query may have.

        Returns rows of schemas.MESSAGE, numbered per source, and kept until unpersist.
        gives_up: give up lost entries, and entries that the broker does not show, even if it shows no other either.
        """
        # Rows are persisted before the shuffle, so that each task can be computed by itself; with adaptive execution
        # Spark would also run a shuffle while it holds a lock for which every unpersist waits.
        rows = self._rows_of(_reads_of(spans), gives_up=gives_up).persist()
        try:
            keep = rows.mapInArrow(no_rows, _NO_ROWS).rdd
            left = [*range(keep.getNumPartitions())]
            while left:
                most = self._slots.most_tasks(query)
                tasks, left = left[:most], left[most:]
                # the slots are released after each job, so that reads of other queries can run in between, however much
                # there is to read
                with self._slots.of(query, len(tasks)):
                    self._spark.sparkContext.runJob(keep, list, tasks)
            return kept(numbered(rows))
        finally:
            rows.unpersist()

    def _rows_of(self, reads: Sequence[PartitionRead], *, gives_up: bool) -> DataFrame:
        """Return the messages of these reads as rows of schemas.MESSAGE, not numbered yet."""
        tasks = [*_tasks_of(reads)]
        planned = self._spark.createDataFrame(
            self._spark.sparkContext.parallelize(tasks, max(1, len(tasks))).flatMap(list), _READ
        )
        return planned.mapInArrow(ReadEntries(self._settings, gives_up), from_arrow_schema(schemas.MESSAGE))


def _reads_of(entries: Mapping[str, Sequence[EntrySpan]]) -> list[PartitionRead]:
    """Return the entries as rows of _READ, each with at most _ENTRIES_PER_TASK entries."""
    return [
        (
            partition,
            [span.ledger for span in spans],
            [span.first for span in spans],
            [span.last for span in spans],
        )
        for partition, partition_spans in entries.items()
        for spans in split(partition_spans, _ENTRIES_PER_TASK)
    ]


def _tasks_of(reads: Iterable[PartitionRead]) -> Iterator[list[PartitionRead]]:
    """Yield the reads that a task runs in parallel; together they have at most _ENTRIES_PER_TASK entries."""
    # most of the time is spent waiting for brokers, so small reads of several partitions take no longer than one read
    task: list[PartitionRead] = []
    size = 0
    for read in reads:
        entries = sum(last - first + 1 for first, last in zip(read[2], read[3], strict=True))
        if task and (size + entries > _ENTRIES_PER_TASK or len(task) >= _READS_PER_TASK):
            yield task
            task, size = [], 0
        task.append(read)
        size += entries
    if task:
        yield task


def no_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Consume all rows, so that Spark computes and persists them, and yield none."""
    for _batch in batches:
        pass
    return iter(())


def kept(rows: DataFrame) -> DataFrame:
    """Compute the rows now and persist them until unpersist; if that fails, Spark keeps none of them."""
    rows = rows.persist()
    try:
        rows.count()
    except BaseException:
        rows.unpersist()
        raise
    return rows


def numbered(rows: DataFrame) -> DataFrame:
    """Number each source's rows by position, counting a large row as several (schemas.ROWS), as udfs.spark does."""
    so_far = Window.partitionBy(c.SOURCE).orderBy(*c.POSITION).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    numbers = (F.sum(F.expr(schemas.ROWS)).over(so_far) - F.lit(1)).cast("long")
    return rows.withColumn(c.ROW, numbers).select(*schemas.MESSAGE.names)
