"""Checks that every delayed request still waits: as a copy in the retry topic, or as a row in the table `waiting`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from streaming.config.settings import Settings
from streaming.ports import MessageReader
from streaming.schemas import RETRY
from streaming.state.delta.delta_tables import opened, scan
from udfs import columns as c
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Outcome
from udfs.requests.retry import ORIGIN_MESSAGE_ID
from udfs.units import DAY_MS, MAX_DELAY_MS

_ORIGIN, _CHUNK, _CODE = "origin", "chunk", "code"
_LATEST = pa.schema([(_ORIGIN, pa.string()), (_CODE, pa.int64())])
_OUTCOMES = pa.array(sorted(map(str, Outcome)))
_PARTS = 11  # ten digits, and origins without a digit
_ROWS_AT_ONCE = 100_000
_ORIGINS_AT_ONCE = 50_000


def delayed_requests(settings: Settings, now_ms: int) -> pa.Table:
    """Return the requests whose newest receipt is RETRY, as columns _ORIGIN and _CHUNK of that receipt.

    The result omits the newest chunk, and receipts older than a week and a day.
    """
    # Any number of requests may wait. They stay in Arrow, at a sixth of the size of Python objects, and are grouped in
    # parts.
    table = opened(settings.state_dir, "receipts")
    parts = [_LATEST.empty_table()] * _PARTS
    if table is None:
        return _delayed(parts)
    # a retry waits at most a week, so a request whose RETRY is older has a newer receipt, or raised the alarm before
    since = ds.field(c.AT_MS) >= now_ms - MAX_DELAY_MS - DAY_MS
    retried = (ds.field(c.OUTCOME) == str(Outcome.RETRY)) | (ds.field(c.QUERY) == RETRY)
    read: list[pa.RecordBatch] = []
    for batch in scan(table, since & retried, [c.ORIGIN_MESSAGE_ID, c.CHUNK, c.OUTCOME]):
        read.append(_coded(batch))
        if sum(coded.num_rows for coded in read) >= _ROWS_AT_ONCE:
            parts, read = _newest(parts, read), []
    delayed = _delayed(_newest(parts, read))
    # return the memory of the receipts that were read: only the small result is needed
    pa.default_memory_pool().release_unused()
    return delayed


def lost_requests(
    settings: Settings,
    reader: MessageReader,
    delayed: pa.Table,
    unread: Mapping[str, tuple[Position, Position]],
    now_ms: int,
) -> set[str]:
    """Return the requests of `delayed` that wait nowhere and were not processed since.

    Args:
        settings: of the service.
        reader: reads the retry topic.
        delayed: an earlier result of delayed_requests().
        unread: partition of the retry topic -> (position after which messages are unread, position of the newest).
        now_ms: the time, in ms since 1970.
    """
    if not delayed.num_rows:
        return set()
    after = {partition: start for partition, (start, _end) in unread.items() if start != BEFORE_ALL}
    last = {partition: end for partition, (start, end) in unread.items() if start < end}
    in_topic = (message.properties.get(ORIGIN_MESSAGE_ID, "") for message in reader.read(last, after=after))
    missing = delayed
    waiting = chain(in_topic, _origins_in_table(settings))
    while origins := list(islice(waiting, _ORIGINS_AT_ONCE)):
        missing = missing.filter(pc.invert(pc.is_in(missing[_ORIGIN], pa.array(origins, pa.string()))))
    if not missing.num_rows:
        return set()
    # a request that got a newer receipt while we read is not lost
    still_delayed = missing.join(delayed_requests(settings, now_ms), [_ORIGIN, _CHUNK], join_type="inner")
    return set(still_delayed[_ORIGIN].to_pylist())


def _coded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the origin, and chunk and outcome as one number; the greatest number is the newest."""
    origin, chunk, outcome = batch.columns
    rank = pc.index_in(outcome.cast(pa.string()), _OUTCOMES).cast(pa.int64())
    code = pc.add(pc.multiply(chunk.cast(pa.int64()), len(_OUTCOMES)), rank)
    return pa.RecordBatch.from_arrays([origin.cast(pa.string()), code], schema=_LATEST)


def _newest(parts: Sequence[pa.Table], read: Sequence[pa.RecordBatch]) -> list[pa.Table]:
    """Return the newest row of each origin, by part; a digit of the origin determines its part."""
    rows = pa.Table.from_batches(read, _LATEST)
    digit = pc.utf8_slice_codeunits(rows[_ORIGIN], -3, -2)  # of the entry's number, in ledger:entry:partition
    part = pc.fill_null(pc.index_in(digit, pa.array(list("0123456789"))), _PARTS - 1)
    newest = []
    for number, latest in enumerate(parts):
        both = pa.concat_tables([latest, rows.filter(pc.equal(part, number))])
        grouped = both.group_by(_ORIGIN).aggregate([(_CODE, "max")])
        newest.append(grouped.select([_ORIGIN, f"{_CODE}_max"]).rename_columns(_LATEST.names))
    return newest


def _delayed(parts: Sequence[pa.Table]) -> pa.Table:
    latest = pa.concat_tables(parts)
    chunk = pc.divide(latest[_CODE], len(_OUTCOMES))
    rank = pc.subtract(latest[_CODE], pc.multiply(chunk, len(_OUTCOMES)))
    is_delayed = pc.equal(rank, _OUTCOMES.index(str(Outcome.RETRY)))
    # copies of the newest chunk may not be published yet
    is_older = pc.less(chunk, pc.max(chunk).as_py() or 0)
    return pa.table({_ORIGIN: latest[_ORIGIN], _CHUNK: chunk}).filter(pc.and_(is_delayed, is_older))


def _origins_in_table(settings: Settings) -> Iterator[str]:
    table = opened(settings.state_dir, "waiting")
    if table is not None:
        for batch in scan(table, columns=[c.MESSAGE_PROPERTIES]):
            for properties in batch.column(0).to_pylist():
                yield dict(properties or ()).get(ORIGIN_MESSAGE_ID) or ""
