"""Reads the receipts of requests that came from lanes, without Spark."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.dataset as ds

from streaming.state.delta.delta_tables import opened, scan
from streaming.state.receipts import TABLE
from udfs import columns as c
from udfs.requests.lane_receipts import COLUMNS

_COUNT = "count_all"

Chunks = tuple[int, int]  # the first and the last


def counted(state_dir: str, chunks: Chunks, since_ms: int) -> Iterator[tuple[str, int, int]]:
    """Yield (lane, chunk, number of receipts) of the receipts of all lanes in these chunks; a pair may repeat.

    Receipts older than since_ms are left out. Raises UnavailableError.
    """
    table = opened(state_dir, TABLE)
    for batch in scan(table, _of_lanes(chunks, since_ms), [c.LANE, c.CHUNK]) if table is not None else ():
        for row in pa.Table.from_batches([batch]).group_by([c.LANE, c.CHUNK]).aggregate([([], _COUNT)]).to_pylist():
            yield row[c.LANE], row[c.CHUNK], row[_COUNT]


def tables(state_dir: str, lanes: Mapping[str, Chunks], since_ms: int) -> Iterator[tuple[str, pa.Table]]:
    """Yield (lane, its receipts in its chunks), sorted by chunk and message id, with lane_receipts.COLUMNS.

    Receipts older than since_ms are left out, and so are lanes without any. Raises UnavailableError.
    """
    if not lanes:
        return
    chunks = min(first for first, _last in lanes.values()), max(last for _first, last in lanes.values())
    condition = _of_lanes(chunks, since_ms) & ds.field(c.LANE).isin(sorted(lanes))
    table = opened(state_dir, TABLE)
    batches = list(scan(table, condition, list(COLUMNS))) if table is not None else []
    if not batches:
        return
    together = pa.Table.from_batches(batches)
    for lane, (first, last) in lanes.items():
        is_in = (ds.field(c.CHUNK) >= first) & (ds.field(c.CHUNK) <= last)
        of_lane = together.filter((ds.field(c.LANE) == lane) & is_in)
        if of_lane.num_rows:
            yield lane, of_lane.sort_by([(c.CHUNK, "ascending"), (c.ORIGIN_MESSAGE_ID, "ascending")])


def _of_lanes(chunks: Chunks, since_ms: int) -> ds.Expression:
    first, last = chunks
    is_in = (ds.field(c.CHUNK) >= first) & (ds.field(c.CHUNK) <= last)
    return is_in & (ds.field(c.AT_MS) >= since_ms) & ds.field(c.LANE).is_valid()
