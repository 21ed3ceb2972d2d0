"""Units of time in milliseconds, and what a chunk counts as one row."""

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# A chunk counts a message as one row, and as another one for each of these bytes (service.chunk_rows).
ROW_BYTES = 4096
