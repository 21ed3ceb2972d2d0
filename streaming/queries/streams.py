"""Builds the streaming queries, unstarted: one per request topic and one for RETRY, each with its own checkpoint."""

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from streaming.config.settings import Settings
from streaming.queries.names import Query, checkpoint_of
from streaming.queries.source import read_stream


def stream(
    spark: SparkSession,
    settings: Settings,
    query: Query,
    process: Callable[[str, DataFrame, int], None],
    client: Mapping[str, str],
) -> DataStreamWriter:
    """Return the query, unstarted; process(query name, rows, batch id) is called for each batch.

    client: what read_stream takes.
    """
    # a query for each topic, so that a batch of a million requests of one topic does not delay ten requests of another:
    # the chunks of the queries alternate
    rows = read_stream(spark, settings, query.topics, client)
    return (
        rows.writeStream.queryName(f"ledger_deletion_{query.name}")
        .option("checkpointLocation", checkpoint_of(settings, query.name))
        .trigger(processingTime=f"{settings.service.trigger_seconds} seconds")
        .foreachBatch(partial(process, query.name))
    )


def describe_jobs(spark: SparkSession, query: str, batch_id: int, what: str) -> None:
    """Set the description that Spark's UI shows for the jobs that this thread starts from now on."""
    spark.sparkContext.setJobDescription(f"{query}, batch {batch_id}: {what}")


Describe = Callable[[str, int, str], None]
"""describe_jobs of a Spark session."""
