"""Units of time in milliseconds and of sizes in bytes, and what a chunk counts as one row."""

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1024 * 1024
# A chunk counts a message as one row, and as another one for each of these bytes (service.chunk_rows).
ROW_BYTES = 4096
