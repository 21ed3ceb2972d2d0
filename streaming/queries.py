"""The streaming queries, unstarted: one for each request topic and one for RETRY, each with its own checkpoint.

A query of its own keeps topics fair to each other: a batch of a million requests has no place for ten that arrive
on another topic meanwhile, but the other's query takes every second turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from streaming.config import Settings
from streaming.sources import read_stream
from streaming.worker import REQUESTS, RETRY

VERSION = "v1"  # of what a checkpoint means; checkpoints/README.md says when it must change
FURTHER = f"{REQUESTS}-"


@dataclass(frozen=True, slots=True)
class Query:
    """name: of its checkpoint's folder and in the Spark UI; it stays the same while its topics do."""

    name: str
    topics: tuple[str, ...]


def queries_of(settings: Settings, matched: Sequence[str] = ()) -> tuple[Query, ...]:
    """The first request topic's query is `requests`, a further one's carries a digest of its topic; RETRY is last.

    matched: topics that match topics.requests_pattern; their queries are named as those of further listed ones, so a
    topic may move from one to the other.
    """
    first, *further = settings.topics.requests
    return (
        Query(REQUESTS, (first,)),
        *(Query(f"{FURTHER}{sha256(topic.encode()).hexdigest()[:8]}", (topic,)) for topic in (*further, *matched)),
        Query(RETRY, (settings.topics.retry,)),
    )


def checkpoint_of(settings: Settings, name: str) -> str:
    """Where a query's checkpoint is."""
    return f"{settings.checkpoints.dir.rstrip('/')}/{name}/{VERSION}"


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
