"""Functions from DataFrame to DataFrame. They need no session and no clock, and run nothing."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from udfs import columns as c
from udfs.spark import annotate

_ROWS_PER_TASK = 500  # below that, a second Python worker costs more than it brings


def messages(source: DataFrame) -> DataFrame:
    """Turn the connector's rows into schemas.MESSAGE: position, due time, and what could refer to the ledger."""
    raw = source.select(
        F.col(c.TOPIC),
        F.col(c.MESSAGE_ID),
        _millis(F.col(c.PUBLISH_TIME)),
        F.col(c.KEY).cast("binary"),
        F.col(c.VALUE).cast("binary"),
        F.col(c.PROPERTIES),
    )
    return raw.mapInArrow(_annotate, from_arrow_schema(schemas.MESSAGE))


def _annotate(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return annotate(batches, schemas.MESSAGE)


def _millis(timestamp: Column) -> Column:
    return F.unix_millis(timestamp)


def slice_of(rows: DataFrame, start: int, stop: int) -> DataFrame:
    """Keep the messages whose row number within their source partition is in [start, stop)."""
    return rows.where((F.col(c.ROW) >= start) & (F.col(c.ROW) < stop))


def grouped_by_owner(rows: DataFrame, *, total: int, parallelism: int) -> DataFrame:
    """Bring one owner's requests into one partition, next to each other; small work gets few partitions."""
    tasks = tasks_for(total, parallelism)
    spread = F.coalesce(F.col(c.REFERENCE_KEY), F.col(c.SOURCE))
    return rows.repartition(tasks, spread).sortWithinPartitions(c.REFERENCE_KEY, *c.POSITION)


def tasks_for(total: int, parallelism: int) -> int:
    """Return how many tasks `total` requests are worth."""
    return max(1, min(parallelism, -(-total // _ROWS_PER_TASK)))
