"""Functions from DataFrame to DataFrame. They need no session and no clock, and start no Spark job."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from udfs import columns as c
from udfs.requests.retry import CUT_FROM, KEPT, MAX_ABOUT_BYTES, MAX_PROPERTY_BYTES
from udfs.spark import annotate

_ROWS_PER_TASK = 500  # below that, a second Python worker costs more than it brings


def messages(source: DataFrame, most_bytes: int, most_tasks: int) -> DataFrame:
    """Convert the connector's rows to schemas.MESSAGE: position, due time, and what could refer to the ledger.

    They are read in most_tasks tasks at most, source partition for source partition.

    A payload of more than most_bytes is no request: it is cut to most_bytes + 1, and the property CUT_FROM contains its
    size. Key and properties are bounded like those of a copy.
    """
    payload, key, properties = F.col(c.VALUE).cast("binary"), F.col(c.KEY).cast("binary"), F.col(c.PROPERTIES)
    is_cut, has_much_about = _bytes(payload) > most_bytes + 1, _bytes_about(key, properties) > MAX_ABOUT_BYTES
    properties = F.when(has_much_about, F.map_filter(properties, _is_kept)).otherwise(properties)
    # The JVM cuts row by row, as the connector delivers them, so that no later stage (a record batch for Python, a
    # chunk, a receipt) ever holds many megabytes of one message, which cost a sender only a few compressed kilobytes.
    raw = source.coalesce(most_tasks).select(
        F.col(c.TOPIC),
        F.col(c.MESSAGE_ID),
        _millis(F.col(c.PUBLISH_TIME)),
        F.when(has_much_about, F.lit(None)).otherwise(key).alias(c.MESSAGE_KEY),
        F.when(is_cut, F.substring(payload, 1, most_bytes + 1)).otherwise(payload).alias(c.PAYLOAD),
        F.when(is_cut, _with_cut_from(properties, _bytes(payload))).otherwise(properties).alias(c.MESSAGE_PROPERTIES),
    )
    return raw.mapInArrow(partial(_annotate, most_bytes=most_bytes), from_arrow_schema(schemas.MESSAGE))


def _annotate(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    return annotate(batches, schemas.MESSAGE, most_bytes)


def _bytes(column: Column) -> Column:
    return F.coalesce(F.octet_length(column), F.lit(0))


def _bytes_about(key: Column, properties: Column) -> Column:
    def added(total: Column, entry: Column) -> Column:
        return total + _bytes(entry["key"]) + _bytes(entry["value"])

    return _bytes(key) + F.coalesce(F.aggregate(F.map_entries(properties), F.lit(0), added), F.lit(0))


def _is_kept(name: Column, value: Column) -> Column:
    return name.isin(*KEPT) & (_bytes(value) <= MAX_PROPERTY_BYTES)


def _with_cut_from(properties: Column, size: Column) -> Column:
    others = F.map_filter(properties, lambda name, _value: name != CUT_FROM)
    cut_from = F.create_map(F.lit(CUT_FROM), size.cast("string"))
    return F.coalesce(F.map_concat(others, cut_from), cut_from)


def _millis(timestamp: Column) -> Column:
    return F.unix_millis(timestamp)


def chunks_of(rows: DataFrame, bounds: Sequence[int]) -> Iterator[DataFrame]:
    """Divide messages by their row numbers within their source partitions: a chunk up to each bound, and the rest.

    With any bounds, each message is in exactly one chunk.
    """
    for start, stop in pairwise([None, *bounds, None]):
        chunk = rows if start is None else rows.where(F.col(c.ROW) >= start)
        yield chunk if stop is None else chunk.where(F.col(c.ROW) < stop)


def grouped_by_owner(rows: DataFrame, *, total: int, parallelism: int) -> DataFrame:
    """Bring one owner's requests into one partition, next to each other; few requests get few partitions."""
    tasks = tasks_for(total, parallelism)
    owner = F.coalesce(F.col(c.REFERENCE_KEY), F.col(c.SOURCE))
    return rows.repartition(tasks, owner).sortWithinPartitions(c.REFERENCE_KEY, *c.POSITION)


def tasks_for(total: int, parallelism: int) -> int:
    """Return how many tasks `total` requests are worth."""
    return max(1, min(parallelism, -(-total // _ROWS_PER_TASK)))
