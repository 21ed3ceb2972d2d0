"""Spark's joins of the snapshot audit: messages with owners, indexes with the segments that they name, ids with ids.

The rules are in udfs/snapshots/topic_findings.py; this module collects their facts.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from streaming.audit import audit_columns as a
from streaming.snapshots.audit import snapshot_columns as s
from udfs import columns as c
from udfs.snapshots.keys import KEEPER, SnapshotKind
from udfs.snapshots.topic_findings import IndexState
from udfs.snapshots.values import Fault

# A sender can publish any number of values, so a task holds so many of them at a time. An index is bounded by the size
# of a message.
VALUES_AT_ONCE = 5_000
_TOPIC = (a.NAMESPACE, c.TOPIC_NAME)
_PLACE = (a.NAMESPACE, s.LEDGER, s.ENTRY)
_SEGMENT = (*_PLACE, c.TOPIC_NAME, s.SEQUENCE)


def read_of(messages: DataFrame) -> DataFrame:
    """Return the messages of completely read namespaces."""
    messages = messages.where(~F.coalesce(F.col(c.TOPIC_NAME).endswith(f"/{KEEPER}"), F.lit(False)))  # our own record
    problems = messages.where(F.col(a.PATH).isNotNull()).select(a.NAMESPACE).distinct()
    # in others, unread messages would appear to be missing
    return messages.where(F.col(a.PATH).isNull()).join(problems, a.NAMESPACE, "left_anti")


def latest(messages: DataFrame) -> DataFrame:
    """Return the latest message of each key; it may be a tombstone."""
    window = Window.partitionBy(a.NAMESPACE, s.KIND, s.KEY).orderBy(F.desc(s.NUMBER))
    numbered = messages.where(~F.col(s.IS_RAW)).withColumn("_from_last", F.row_number().over(window))
    return numbered.where(F.col("_from_last") == 1).drop("_from_last")


def live(messages: DataFrame) -> DataFrame:
    """Return the latest value of each key, without tombstones."""
    return latest(messages).where(~F.col(s.IS_NULL) | (F.col(s.FAULT) != ""))


def named(values: DataFrame, messages: DataFrame) -> DataFrame:
    """Return a row for each segment that an index names, with the ids read at its position, if any."""
    exploded = values.where(_is(SnapshotKind.INDEX)).select(*_TOPIC, F.inline(s.NAMED))
    # a broker may read a segment whose schema is not known here: it is not lost
    is_whole = ~F.col(s.IS_NULL) & F.col(s.FAULT).isin("", str(Fault.UNKNOWN_SCHEMA))
    raw = messages.where(F.col(s.IS_RAW) & _is(SnapshotKind.SEGMENT) & is_whole)
    stored = raw.select(*_SEGMENT, s.MOST, s.LEAST, F.lit(True).alias(s.IS_READABLE)).dropDuplicates(list(_SEGMENT))
    joined = exploded.join(stored, list(_SEGMENT), "left")
    return joined.withColumn(s.IS_READABLE, F.coalesce(s.IS_READABLE, F.lit(False)))


def ids(segments: DataFrame, owners: DataFrame) -> DataFrame:
    """Return for each topic how many ids are in several of its segments, and how many distinct ids still count."""
    ledgers = owners.select(c.TOPIC_NAME, F.explode(s.LEDGERS).alias(s.MARKER_LEDGER), F.lit(True).alias("_lives"))
    marked = segments.where(F.col(s.IS_READABLE)).join(ledgers, [c.TOPIC_NAME, s.MARKER_LEDGER], "left")
    exploded = marked.select(*_TOPIC, "_lives", F.explode(F.arrays_zip(s.MOST, s.LEAST)).alias("_id"))
    by_id = exploded.groupBy(*_TOPIC, "_id").agg(F.count(F.lit(1)).alias("_times"), F.max("_lives").alias("_lives"))
    return by_id.groupBy(*_TOPIC).agg(
        F.count_if(F.col("_times") > 1).alias(s.DOUBLED_IDS),
        F.count_if(F.coalesce("_lives", F.lit(False))).alias(s.LIVE_IDS),
    )


def topics(messages: DataFrame, owners: DataFrame, segments_topics: DataFrame) -> DataFrame:
    """Return the facts of every topic with a valid value, in parts of VALUES_AT_ONCE values."""
    read = read_of(messages)
    values = live(read)
    true_values = values.where(F.col(s.FAULT) == "")
    segments = named(true_values, read)
    standing = values.groupBy(*_TOPIC).agg(
        F.max(F.when(_is(SnapshotKind.INDEX), _standing())).alias(s.INDEX),
        F.count_if(_is(SnapshotKind.SEGMENT) & (F.col(s.FAULT) == "")).alias("segments"),
    )
    listed = segments.groupBy(*_TOPIC).agg(
        F.collect_list(F.struct(s.SEQUENCE, s.LEDGER, s.ENTRY, s.MARKER_LEDGER, s.MARKER_ENTRY, s.IS_READABLE)).alias(
            s.NAMED
        )
    )
    parts = _parts(true_values, owners)
    joined = parts.join(owners, c.TOPIC_NAME, "left").join(standing, list(_TOPIC)).join(listed, list(_TOPIC), "left")
    joined = joined.join(ids(segments, owners), list(_TOPIC), "left")
    return joined.join(segments_topics.select(a.NAMESPACE, s.SEGMENT_LEDGERS), a.NAMESPACE, "left")


def namespaces(messages: DataFrame, segments_topics: DataFrame) -> DataFrame:
    """Return for each namespace with segments: visible tombstones, and whether all named segments are guarded."""
    read = read_of(messages)
    values = live(read).where(F.col(s.FAULT) == "")
    is_null = _is(SnapshotKind.SEGMENT) & ~F.col(s.IS_RAW) & F.col(s.IS_NULL)
    nulls = read.where(is_null).groupBy(a.NAMESPACE).agg(F.count(F.lit(1)).alias(s.NULLS))
    by_place = named(values, read).groupBy(a.NAMESPACE)
    lowest = by_place.agg(
        F.min(F.when(F.col(s.IS_READABLE), F.struct(s.LEDGER, s.ENTRY))).alias(s.LOWEST),
        F.count_if(F.col(s.IS_READABLE)).alias("segments"),  # those that a guard can still keep
    )
    guard = F.struct(F.col(s.GUARD_LEDGER).alias(s.LEDGER), F.col(s.GUARD_ENTRY).alias(s.ENTRY))
    is_before = F.coalesce(F.col(s.GUARD_LEDGER).isNotNull() & (guard < F.col(s.LOWEST)), F.lit(False))
    joined = segments_topics.join(lowest, a.NAMESPACE, "left").join(nulls, a.NAMESPACE, "left")
    return joined.withColumn(s.IS_GUARDED, F.col(s.KEEPS_ALL) | F.col(s.LOWEST).isNull() | is_before)


def foreign(messages: DataFrame) -> DataFrame:
    """Return the latest messages that are no values of a broker's, but for those that block or may block loading."""
    return live(read_of(messages)).where((F.col(s.FAULT) != "") & ~F.col(s.IS_BLOCKING) & ~F.col(s.IS_DOUBTFUL))


def blocking(messages: DataFrame) -> DataFrame:
    """Return the messages that keep topics from loading: brokers also read messages that a later one replaces."""
    return read_of(messages).where(F.col(s.IS_BLOCKING))


def doubtful(messages: DataFrame) -> DataFrame:
    """Return the messages that may keep topics from loading, also those that a later one replaces."""
    return read_of(messages).where(F.col(s.IS_DOUBTFUL))


def owners_of(messages: DataFrame) -> DataFrame:
    """Return the topics that have values."""
    return live(read_of(messages)).where(F.col(s.FAULT) == "").select(c.TOPIC_NAME).distinct()


def _parts(values: DataFrame, owners: DataFrame) -> DataFrame:
    window = Window.partitionBy(*_TOPIC).orderBy(s.KIND, s.KEY)
    number = F.floor((F.row_number().over(window) - 1) / VALUES_AT_ONCE)
    ledgers = owners.select(c.TOPIC_NAME, F.col(s.LEDGERS).alias("_ledgers"))
    lives = F.array_contains(F.coalesce("_ledgers", F.array().cast("array<bigint>")), F.col("_each")[s.LEDGER])
    dead = _dead_ids(values.join(ledgers, c.TOPIC_NAME, "left"), lives)
    marked = (s.MARKER_LEDGER, s.MARKER_ENTRY, s.MAX_READ_LEDGER, s.MAX_READ_ENTRY)
    value = F.struct(s.KIND, s.KEY, s.LEDGER, s.ENTRY, c.BYTES, s.IDS, s.DEAD_IDS, s.SEQUENCE, *marked)
    return dead.withColumn(s.PART, number).groupBy(*_TOPIC, s.PART).agg(F.collect_list(value).alias(s.VALUES))


def _dead_ids(values: DataFrame, lives: Column) -> DataFrame:
    """Add how many ids of a single snapshot have markers in ledgers that are gone."""
    exploded = values.select(a.NAMESPACE, s.KIND, s.KEY, "_ledgers", F.explode(s.MARKERS).alias("_each"))
    amount = F.sum(F.when(lives, 0).otherwise(F.col("_each")[s.IDS])).alias(s.DEAD_IDS)
    dead = exploded.groupBy(a.NAMESPACE, s.KIND, s.KEY).agg(amount)
    joined = values.join(dead, [a.NAMESPACE, s.KIND, s.KEY], "left")
    return joined.withColumn(s.DEAD_IDS, F.coalesce(s.DEAD_IDS, F.lit(0)))


def _standing() -> Column:
    return F.when(F.col(s.FAULT) == "", str(IndexState.READABLE)).otherwise(str(IndexState.FAULTY))


def _is(kind: SnapshotKind) -> Column:
    return F.col(s.KIND) == str(kind)
