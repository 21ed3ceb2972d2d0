"""Lots: what a sweep works off at once. Spark hands messages over in small record batches, since each may be large."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

# Requests that share round trips; more saves none.
LOT_ROWS = 5000
# Enough for LOT_ROWS ordinary requests. A lot that would have more is worked off with fewer requests.
LOT_BYTES = 32 * 1024 * 1024


def lots(batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    """Put the rows of record batches together, in order: at most LOT_ROWS and LOT_BYTES, or one record batch."""
    lot: list[dict[str, Any]] = []
    size = 0
    for batch in batches:
        if lot and (len(lot) + batch.num_rows > LOT_ROWS or size + batch.nbytes > LOT_BYTES):
            yield lot
            lot, size = [], 0
        lot += batch.to_pylist()
        size += batch.nbytes
    if lot:
        yield lot
