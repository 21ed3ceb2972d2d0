"""Fixes the first batch of queries on "pulsar-frames", before they start, so that it has all messages with receipts.

The service leaves out messages with a receipt in a query's first batch only. The connector's first batch has all unread
entries. The batches of "pulsar-frames" are limited, so later ones could have such messages: if a checkpoint was lost or
retired, or if the topic was read in passes since then.
"""

import json
import logging
from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_
from typing import Any
from uuid import uuid4

import pyarrow.dataset as ds

from streaming.config.settings import Settings
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import installed_writer, location_of, write_file
from streaming.queries.delivery.batches import COMMIT
from streaming.queries.names import Query
from streaming.queries.stored_checkpoint import StoredCheckpoint, newest_done, stats_of
from streaming.state.filesystem import Folder, folder_of
from udfs import columns as c
from udfs.entry_ranges import count_of
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.formats.spark_offsets import Writer, frames_offset, offsets_file
from udfs.paths import base_topic
from udfs.pulsar_source.offsets import PartitionOffset, read_up_to
from udfs.pulsar_source.planning import UnknownPositionError, batch_up_to, first_offset

log = logging.getLogger("ledger-reaper")

_SPARK_LINE = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'  # of a batch that Spark has not planned


def fix_first_batches(settings: Settings, admin: TopicAdmin, queries: Collection[Query]) -> None:
    """Fix the first batch of each query where it is necessary; with the connector, it never is.

    No query may run. A call that is interrupted is completed by the next. Raises what TopicAdmin does, SafetyError.
    """
    if installed_writer() is not Writer.FRAMES:
        return
    stored = {query: StoredCheckpoint.read(settings, query.name) for query in queries}
    planned = {query: found.newest.frames if found else {} for query, found in stored.items()}
    topics = {topic for query in queries for topic in query.topics}
    read = {partition: part for of_query in planned.values() for partition, part in of_query.items()}
    done = newest_done(settings.state_dir, topics, _is_after(read))
    for query in queries:
        behind = {
            name: at
            for name, at in done.items()
            if base_topic(name) in query.topics and at > planned[query].get(name, PartitionOffset(BEFORE_ALL)).at
        }
        if behind:
            _fix(folder_of(location_of(settings, query.name)), query, stored[query], admin, behind)


def _is_after(planned: Mapping[str, PartitionOffset]) -> Any:
    """Return the condition that a message may be after what its partition's newest batch reads."""
    source, ledger = ds.field(c.SOURCE), ds.field(c.POSITION_LEDGER)
    # few files of the tables have rows of a recent ledger, and their statistics name them
    known = [(source == name) & (ledger >= part.at[0]) for name, part in planned.items()]
    return reduce(or_, known, ~source.isin([*planned])) if known else None


def _fix(
    folder: Folder, query: Query, stored: StoredCheckpoint | None, admin: TopicAdmin, behind: Mapping[str, Position]
) -> None:
    committed = _committed(stored)
    stats = stats_of(admin, behind)
    ends = {name: end for name, upto in behind.items() if (end := _end(name, upto, committed, stats[name])) is not None}
    if not ends:  # what has receipts is no longer stored
        return
    number = max(stored.committed, 0) if stored else 0
    spark_line = stored.newest.spark_line if stored else _SPARK_LINE
    if stored is None:
        folder.write("metadata", json.dumps({"id": str(uuid4())}).encode())
    if stored is None or stored.committed < 0:
        write_file(folder, f"offsets/{number}", offsets_file(spark_line, frames_offset(committed)))
        write_file(folder, f"commits/{number}", COMMIT)
    planned = stored.newest.frames if stored else {}
    write_file(folder, f"offsets/{number + 1}", offsets_file(spark_line, frames_offset({**planned, **ends})))
    entries = sum(count_of(end.spans) for end in ends.values())
    log.info("%s: the first batch has the %s entries up to the newest receipt", query.topics[0], entries)


def _committed(stored: StoredCheckpoint | None) -> dict[str, PartitionOffset]:
    if stored is None:
        return {}
    if stored.before is not None:
        return dict(stored.before.frames)
    starts = {name: part.after for name, part in stored.newest.frames.items() if part.after > BEFORE_ALL}
    return {name: read_up_to(at) for name, at in starts.items()}


def _end(
    name: str, upto: Position, committed: Mapping[str, PartitionOffset], stats: InternalStats | None
) -> PartitionOffset | None:
    """Return the end of a batch that has all entries up to `upto`; None if there are none."""
    if stats is None or not stats.ledgers:
        return None
    try:
        return batch_up_to(upto, committed.get(name) or first_offset(stats), stats)
    except UnknownPositionError:  # the query's first plan reports it
        return None
