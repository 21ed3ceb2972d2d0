"""Whether the connector delivered every entry of a batch; what it passed over in silence is read another way.

1. We ask which entries were delivered whole, as runs, and compare with what the broker stores of the range. An entry is
   whole where no index of its producer's batch is missing.
2. Of an entry that was delivered in part, only those messages are added that were not delivered.
3. Reading has a limit, for the connector reads some batches without an end.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import TopicAdmin
from streaming.queries.batches import Batch, unfinished
from streaming.queries.checkpoints import location_of
from streaming.queries.fallback_reads import kept, numbered
from streaming.queries.slots import ReadSlots
from streaming.spark.job_limit import limited
from streaming.spark.submitted import is_local
from udfs import columns as c
from udfs.entry_ranges import EntrySpan, Range, bytes_of, count_of, spans_of, whole_of, without
from udfs.spark import entry_runs

log = logging.getLogger("ledger-reaper")

_RUN = from_arrow_schema(schemas.RUN)
# On a cluster a task counts as running while its executor fetches this program and its jars, 0.5 GB, and until Spark
# notices that the host is silent, two minutes by default.
_MORE_SECONDS_ELSEWHERE = 210.0
_SECONDS_PER_ENTRY = 0.005
_SECONDS_PER_BYTE = 10e-6  # an entry may hold a thousand requests, in 10 KB or more
# However much a batch holds: what the connector has not read by then is read another way, in slots that keep none of
# those waiting whose query has not failed. Bytes are cheap for their sender where they compress well, and requests of
# others lie behind them in the same topic. Where others wait for its slots, a read that hangs ends within a minute.
_MOST_SECONDS_FOR_BYTES = 30.0
_MOST_SECONDS = 120.0
_MOST_SECONDS_WHILE_OTHERS_WAIT = 30.0

Spans = Mapping[str, Sequence[EntrySpan]]  # by partition


class Read(Protocol):
    """Reads the messages of entries another way, and keeps them until unpersist (queries.fallback_reads.ReadRows)."""

    def __call__(self, query: str, wanted: Spans, /, *, gives_up: bool = False) -> DataFrame:
        """Return their rows; gives_up: though no other entry is shown (adapters.pulsar.entries)."""
        ...


@dataclass(frozen=True, slots=True)
class Extent:
    """How much a batch holds at most.

    last_rows: by source, a number that none of its rows is above (columns.ROW). oldest_ledger: none of its messages is
    in a ledger before that one.
    """

    last_rows: Mapping[str, int]
    oldest_ledger: int


@dataclass(frozen=True, slots=True)
class Completed:
    """A batch of which nothing lacks. rows: schemas.MESSAGE. extent: where it is known.

    worked_off: the batch's entries, where some were read another way: not each of them holds a message.
    """

    rows: DataFrame
    extent: Extent | None = None
    worked_off: Spans = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Completion:
    """One per service. read: reads, for a query, the messages of entries, by partition, as rows (schemas.MESSAGE).

    reading: who reads when. patiently: runs a step that asks Pulsar's admin API, again and again while that is away.
    """

    spark: SparkSession
    settings: Settings
    admin: TopicAdmin
    read: Read
    reading: ReadSlots
    patiently: Callable[[Callable[[], None]], None] = lambda step: step()

    def __call__(self, query: str, batch_id: int, delivered: DataFrame) -> Completed:
        """Return a batch's rows with those that were not delivered; `delivered` itself if none lacks.

        Rows other than `delivered` are to be unpersisted. Runs the reading. Raises UnavailableError, RefusedError, and
        what the connector raises.
        """
        batch = unfinished(location_of(self.settings, query))
        if batch is None or batch.number != batch_id:
            raise ReaperError(f"{query}: the checkpoint does not say what batch {batch_id} is to read: {batch}")
        stored, size = self._stored(batch)
        total = sum(count_of(each) for each in stored.values())
        what = f"{query}, batch {batch_id}: reading"
        master = self.spark.sparkContext.master or ""
        with self.reading.of(query, len(batch.ranges)) as others_wait:
            least = self.settings.service.reading_seconds

            def seconds() -> float:
                return allowed_seconds(total, size, master, least, others_wait=others_wait())

            with limited(self.spark, seconds, what):
                runs = delivered_runs(delivered).collect()
        missing = _missing(stored, runs)
        if not missing:
            return Completed(delivered, _extent(runs))
        lacking = sum(count_of(each) for each in missing.values())
        log.info(
            "%s, batch %s: the connector did not deliver %s of %s entries; they are read another way",
            query,
            batch_id,
            lacking,
            total,
        )
        read = self.read(query, missing)
        try:
            lacked = read.join(delivered.select(*c.POSITION), list(c.POSITION), "left_anti")
            rows = kept(numbered(delivered.unionByName(lacked)))
        finally:
            read.unpersist()
        return Completed(rows, worked_off=stored)

    def _stored(self, batch: Batch) -> tuple[Spans, int]:
        found: list[tuple[Spans, int]] = []
        self.patiently(lambda: found.append(_stored(self.admin, batch.ranges)))
        return found[-1]


def allowed_seconds(entries: int, size: int, master: str, least: float, *, others_wait: bool) -> float:
    """Return how long the connector may take to read entries that have `size` bytes together as they are stored.

    least: for one entry. others_wait: for the slots that it reads in.
    """
    begin = least if is_local(master) else least + _MORE_SECONDS_ELSEWHERE
    most = _MOST_SECONDS_WHILE_OTHERS_WAIT if others_wait else _MOST_SECONDS
    for_bytes = min(_SECONDS_PER_BYTE * size, _MOST_SECONDS_FOR_BYTES)
    return begin + min(_SECONDS_PER_ENTRY * entries + for_bytes, most)


def stored_spans(admin: TopicAdmin, ranges: Mapping[str, Range]) -> Spans:
    """Return which entries of the ranges are stored. Raises what TopicAdmin does."""
    return _stored(admin, ranges)[0]


def _stored(admin: TopicAdmin, ranges: Mapping[str, Range]) -> tuple[Spans, int]:
    """Return which entries of the ranges are stored, and about how many bytes they take."""
    found: dict[str, list[EntrySpan]] = {}
    size = 0
    for partition, wanted in ranges.items():
        stats = admin.internal_stats(partition)
        if spans := list(spans_of(stats.ledgers, wanted)):
            found[partition] = spans
            size += bytes_of(spans, stats)
    return found, size


def delivered_runs(delivered: DataFrame) -> DataFrame:
    """The entries that were delivered, as runs (schemas.RUN).

    One task reads a partition, in order of position, so nothing has to be shuffled. The plan is the same for every
    batch: Spark compiles code for it once.
    """
    return delivered.select(*c.POSITION, c.ROW).mapInArrow(partial(entry_runs, schema=schemas.RUN), _RUN)


def _extent(runs: Iterable[Row]) -> Extent | None:
    last_rows: dict[str, int] = {}
    ledgers: set[int] = set()
    for partition, ledger, *_, row in runs:
        last_rows[partition] = max(row, last_rows.get(partition, 0))
        ledgers.add(ledger)
    return Extent(last_rows, min(ledgers)) if ledgers else None


def _missing(stored: Spans, runs: Iterable[Row]) -> dict[str, list[EntrySpan]]:
    """Which stored entries were not delivered whole.

    runs: rows of schemas.RUN. They may reach out of what was asked for: the connector reads the last entry before it.
    """
    read: dict[str, list[tuple[EntrySpan, bool]]] = {}
    for partition, ledger, first, last, is_whole, _row in runs:
        read.setdefault(partition, []).append((EntrySpan(ledger, first, last), is_whole))
    missing = {
        partition: list(without(spans, whole_of(read.get(partition, ())))) for partition, spans in stored.items()
    }
    return {partition: spans for partition, spans in missing.items() if spans}
