"""Combines the record batches of Spark, which are small because a row may be large, into larger batches."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

# Requests that share round trips; more saves none.
BATCH_ROWS = 5000
# Enough for BATCH_ROWS ordinary requests. If the rows are larger, a batch has fewer of them.
BATCH_BYTES = 32 * 1024 * 1024


def row_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in order, at most BATCH_ROWS and BATCH_BYTES at a time, or those of one record batch."""
    rows: list[dict[str, Any]] = []
    size = 0
    for batch in batches:
        if rows and (len(rows) + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES):
            yield rows
            rows, size = [], 0
        rows += batch.to_pylist()
        size += batch.nbytes
    if rows:
        yield rows
