"""The DataFrames of a query, from Pulsar to the tasks of a sweep; nothing here starts a Spark job.

1. stream() builds a query, unstarted: each request topic and RETRY have one, with a checkpoint of its own.
2. read_stream() reads Pulsar through the pulsar-spark connector. A comment beside each option names what it prevents.
   read_source() reads Pulsar through our own source, where Spark has no connector (spark/installed.py).
3. The service converts each batch to messages, divides them into chunks, and groups each chunk by owner.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from streaming import schemas
from streaming.adapters.pulsar.credentials import Credentials
from streaming.adapters.pulsar.http import answering, require_safe_secret
from streaming.clients import admin_settings
from streaming.config.hosts import is_tls
from streaming.config.settings import Settings
from streaming.queries.names import Query, checkpoint_of
from udfs import columns as c
from udfs.requests.retry import CUT_FROM, KEPT, MAX_ABOUT_BYTES, MAX_PROPERTY_BYTES
from udfs.spark import annotate

_QUEUE = "1"
_ADMIN_PATIENCE_SECONDS = 5.0
_ROWS_PER_TASK = 500  # below that, a second Python worker costs more than it brings

Describe = Callable[[str, int, str], None]
"""describe_jobs of a Spark session."""


class ProcessBatch(Protocol):
    """Processes a batch of a query: deletion.service.LedgerDeletionService.process."""

    def __call__(self, query: str, source: DataFrame, batch_id: int, /) -> None:
        """Return once Spark may commit the batch, whose rows are the connector's."""
        ...


def stream(rows: DataFrame, settings: Settings, query: Query, process: ProcessBatch) -> DataStreamWriter:
    """Return the query, unstarted. rows: what read_stream or read_source returns."""
    # a query for each topic, so that a batch of a million requests of one topic does not delay ten requests of another:
    # the chunks of the queries alternate
    return (
        rows.writeStream.queryName(f"ledger_deletion_{query.name}")
        .option("checkpointLocation", checkpoint_of(settings, query.name))
        .trigger(processingTime=f"{settings.service.trigger_seconds} seconds")
        .foreachBatch(partial(process, query.name))
    )


def describe_jobs(spark: SparkSession, query: str, batch_id: int, what: str) -> None:
    """Set the description that Spark's UI shows for the jobs that this thread starts from now on."""
    spark.sparkContext.setJobDescription(f"{query}, batch {batch_id}: {what}")


def read_stream(spark: SparkSession, settings: Settings, topics: Sequence[str], client: Mapping[str, str]) -> DataFrame:
    """Return an unstarted stream of all topics. The subscription must exist on every partition.

    client: options that only this query has (spark.connector_clients).
    """
    pulsar = settings.pulsar
    require_safe_secret(pulsar)
    options = {
        "service.url": pulsar.service_url,
        # the connector takes a single broker; when that broker dies, the query fails, and its next start takes another
        "admin.url": answering(replace(admin_settings(settings), timeout_seconds=_ADMIN_PATIENCE_SECONDS)),
        "topics": ",".join(topics),
        # at every start the connector moves the subscription's cursor to this position and ignores the checkpoint; any
        # later position would let Pulsar delete messages that are not processed yet
        "startingOffsets": "earliest",
        "predefinedSubscription": settings.topics.subscription,
        # otherwise a read that times out is committed as if the topic had been empty
        "failOnDataLoss": "true",
        # the wait for an entry that never comes, before the fallback reads the batch (decision 15)
        "pollTimeoutMs": "10000",
        # queries with the same options would share a connection, and a message that breaks it would break it for all of
        # them
        **client,
        # the connector then delivers raw bytes, whatever schema a tenant registers on the topic; its JSON mode mixes up
        # the rows' values
        "allowDifferentTopicSchemas": "true",
        # the connector requests so many entries of each partition at once (by default 1000), decompresses them, and
        # creates objects of all their messages. A sender can pack 1.2 million messages into an entry of ten kilobytes;
        # their objects take half a gigabyte
        "pulsar.reader.receiverQueueSize": _QUEUE,
    }
    for side, url in (("client", pulsar.service_url), ("admin", options["admin.url"])):
        if ours := Credentials.of(pulsar).of_connector():
            # the parameters name files, and contain no secret: Spark may log them
            options[f"pulsar.{side}.authPluginClassName"], options[f"pulsar.{side}.authParams"] = ours
        if pulsar.tls_trust_certs_file:
            options[f"pulsar.{side}.tlsTrustCertsFilePath"] = pulsar.tls_trust_certs_file
        # by default Pulsar's Java client verifies no host names; with this option and without TLS it closes connections
        verifies = pulsar.tls_check_hostname and is_tls(url)
        options[f"pulsar.{side}.tlsHostnameVerificationEnable"] = str(verifies).lower()
    return spark.readStream.format("pulsar").options(**options).load()


def register_source(spark: SparkSession) -> None:
    """Register our own source (PySpark 4) in a session, once, for read_source."""
    from streaming.queries.delivery.request_source import RequestSource

    # Spark 4 turns it on for streams. It would compute persisted rows while it plans, outside of the query's slots.
    spark.conf.set("spark.sql.adaptive.streaming.stateless.enabled", "false")
    spark.dataSource.register(RequestSource)  # type: ignore[attr-defined]  # PySpark 3.5 has no such attribute


def read_source(
    spark: SparkSession, settings: Settings, topics: Sequence[str], *, gives_up: bool, waits: bool
) -> DataFrame:
    """Return an unstarted stream of all topics through our registered source, with rows of schemas.MESSAGE.

    gives_up, waits: as request_reads.options_for.
    """
    from streaming.queries.delivery.request_reads import options_for
    from streaming.queries.delivery.request_source import NAME

    require_safe_secret(settings.pulsar)
    return spark.readStream.format(NAME).options(**options_for(settings, topics, gives_up=gives_up, waits=waits)).load()


def coalesced(source: DataFrame, _most_bytes: int, most_tasks: int) -> DataFrame:
    """Do for rows of our own source what messages() does; the source has bounded them."""
    return source.coalesce(most_tasks)


def messages(source: DataFrame, most_bytes: int, most_tasks: int) -> DataFrame:
    """Convert the connector's rows to schemas.MESSAGE: position, due time, and what could refer to the ledger.

    At most most_tasks tasks read them, each one source partition after the other.

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
