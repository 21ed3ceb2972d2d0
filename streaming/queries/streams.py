"""The streaming queries, unstarted: one for each request topic and one for RETRY, each with its own checkpoint.

A query of its own keeps topics fair to each other: a batch of a million requests has no place for ten that arrive
on another topic meanwhile, but the other's query takes every second turn.
"""

from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from streaming.config.settings import Settings
from streaming.queries.names import Query, checkpoint_of
from streaming.queries.source import read_stream


def stream(
    spark: SparkSession, settings: Settings, query: Query, process: Callable[[str, DataFrame, int], None]
) -> DataStreamWriter:
    """A query, unstarted."""
    rows = read_stream(spark, settings.pulsar, query.topics, settings.topics.subscription)
    return (
        rows.writeStream.queryName(f"ledger_deletion_{query.name}")
        .option("checkpointLocation", checkpoint_of(settings, query.name))
        .trigger(processingTime=f"{settings.service.trigger_seconds} seconds")
        .foreachBatch(partial(process, query.name))
    )
