"""Rows of messages that are read another way than by the connector: in the executors, a few thousand entries a task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.controls import Controls
from streaming.adapters.pulsar.entries import fallback_entries
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.queries.side_by_side import side_by_side
from streaming.queries.slots import ReadSlots
from udfs import columns as c
from udfs.entry_ranges import EntrySpan, split
from udfs.spark import found_row, size_of

_ENTRIES_PER_TASK = 2000
_LOTS_PER_TASK = 4
# of a record batch; a worker and the JVM hold a few of them at once
_MOST_ROWS = 1000
_MOST_BYTES = 8 * 1024 * 1024
_ELSEWHERE = 2  # partitions of each of our topics whose entries tell whether the broker shows any
_NOTHING = "nothing int"
_LOT = f"{c.SOURCE} string, ledgers array<long>, firsts array<long>, lasts array<long>"

Lot = tuple[str, list[int], list[int], list[int]]
"""Entries of a partition: of each span the ledger, the first and the last one."""


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """What an executor does with tasks: it reads their entries, and yields a row (schemas.MESSAGE) for each message."""

    settings: Settings
    gives_up: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of a bounded size. Raises UnavailableError, RefusedError."""
        rows: list[dict[str, object]] = []
        size = 0
        for row, row_bytes in self._rows(batches):
            rows.append(row)
            size += row_bytes
            if len(rows) >= _MOST_ROWS or size >= _MOST_BYTES:
                yield pa.RecordBatch.from_pylist(rows, schema=schemas.MESSAGE)
                rows, size = [], 0
        yield pa.RecordBatch.from_pylist(rows, schema=schemas.MESSAGE)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[dict[str, Any], int]]:
        with admin_for(self.settings) as admin:
            lots = [
                lot for batch in batches for lot in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            ]
            yield from side_by_side([self._of(admin, lot) for lot in lots])

    def _of(self, admin: PulsarAdmin, lot: Lot) -> Iterator[tuple[dict[str, Any], int]]:
        most_bytes, topics = self.settings.service.max_request_bytes, self.settings.topics
        ours = (topics.dead_letter, topics.retry, *topics.requests)
        elsewhere = [f"{topic}-partition-{number}" for topic in ours for number in range(_ELSEWHERE)]
        source, *spans = lot
        wanted = [EntrySpan(*each) for each in zip(*spans, strict=True)]
        controls = Controls(admin, source, elsewhere, self.gives_up)
        for position, found in fallback_entries(self.settings.pulsar, admin, source, wanted, controls):
            row = found_row(source, position, found, most_bytes)
            yield row, size_of(row[c.MESSAGE_KEY], row[c.PAYLOAD], row[c.MESSAGE_PROPERTIES])


class ReadRows:
    """One per service: what queries.completion calls a Read. reading: who reads when."""

    def __init__(self, spark: SparkSession, settings: Settings, reading: ReadSlots) -> None:
        # Adaptive execution computes what is kept while it makes a plan of it: all at once, and in nobody's slots.
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")
        self._settings = settings
        self._reading = reading

    def __call__(
        self, query: str, wanted: Mapping[str, Sequence[EntrySpan]], /, *, gives_up: bool = False
    ) -> DataFrame:
        """Read the messages of these entries (by partition), piece by piece, in as many slots as the query may have.

        The slots are given back behind each piece, so that others' reads come in between, however much there is to
        read. They are rows of schemas.MESSAGE, each source's numbered, and kept until unpersist.
        gives_up: entries that the broker does not show, though it shows no other one either.
        """
        # What is kept is read without a shuffle, so that each piece of it can be computed by itself; where adaptive
        # execution is on, Spark also runs a shuffle while it holds a lock, for which every unpersist waits.
        found = self._rows_of(_lots_of(wanted), gives_up=gives_up).persist()
        try:
            keep = found.mapInArrow(_nothing, _NOTHING).rdd
            left = [*range(keep.getNumPartitions())]
            while left:
                most = self._reading.most_tasks(query)
                piece, left = left[:most], left[most:]
                with self._reading.of(query, len(piece)):
                    self._spark.sparkContext.runJob(keep, list, piece)
            return kept(numbered(found))
        finally:
            found.unpersist()

    def _rows_of(self, lots: Sequence[Lot], *, gives_up: bool) -> DataFrame:
        """Return the messages of these lots as rows of schemas.MESSAGE that are not numbered yet."""
        tasks = [*_tasks_of(lots)]
        planned = self._spark.createDataFrame(
            self._spark.sparkContext.parallelize(tasks, max(1, len(tasks))).flatMap(list), _LOT
        )
        return planned.mapInArrow(ReadEntries(self._settings, gives_up), from_arrow_schema(schemas.MESSAGE))


def _lots_of(wanted: Mapping[str, Sequence[EntrySpan]]) -> list[Lot]:
    """Return the entries as rows of _LOT, each as much as is read at once."""
    return [
        (
            partition,
            [span.ledger for span in spans],
            [span.first for span in spans],
            [span.last for span in spans],
        )
        for partition, each in wanted.items()
        for spans in split(each, _ENTRIES_PER_TASK)
    ]


def _tasks_of(lots: Iterable[Lot]) -> Iterator[list[Lot]]:
    """Yield which lots a task reads side by side: together they have no more entries than one may have.

    Most of the time passes while brokers are waited for, so small lots of several partitions take no longer than one.
    """
    task: list[Lot] = []
    size = 0
    for lot in lots:
        entries = sum(last - first + 1 for first, last in zip(lot[2], lot[3], strict=True))
        if task and (size + entries > _ENTRIES_PER_TASK or len(task) >= _LOTS_PER_TASK):
            yield task
            task, size = [], 0
        task.append(lot)
        size += entries
    if task:
        yield task


def _nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take all rows, so that Spark computes and keeps them, and yield none."""
    for _batch in batches:
        pass
    return iter(())


def kept(rows: DataFrame) -> DataFrame:
    """Compute the rows now and keep them until unpersist; where that fails, Spark keeps nothing of them."""
    rows = rows.persist()
    try:
        rows.count()
    except BaseException:
        rows.unpersist()
        raise
    return rows


def numbered(rows: DataFrame) -> DataFrame:
    """Number each source's rows by their positions, a large one as several rows (schemas.ROWS), as udfs.spark does."""
    upto = Window.partitionBy(c.SOURCE).orderBy(*c.POSITION).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    numbers = (F.sum(F.expr(schemas.ROWS)).over(upto) - F.lit(1)).cast("long")
    return rows.withColumn(c.ROW, numbers).select(*schemas.MESSAGE.names)
