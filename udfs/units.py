"""Units of time in milliseconds and of sizes in bytes, and limits that the configuration shares with the rules."""

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# The longest delay of a message: longer than any sensible reconsume_later. Any sender can write a longer one, which
# counts as this.
MAX_DELAY_MS = 7 * DAY_MS
MIB = 1024 * 1024
# A chunk counts a message as one row, and as a further row for each 4 KiB (service.chunk_rows).
ROW_BYTES = 4096
# A copy's sequence id has 20 bits for its index in the chunk (streaming/deletion/chunks/outbox.py).
MAX_ROWS_PER_CHUNK = 1 << 20
# A chunk may be larger than service.chunk_rows by this fraction of it (1/4), if that saves a further chunk.
CHUNK_REMAINDER = 4
MAX_CHUNK_ROWS = MAX_ROWS_PER_CHUNK * CHUNK_REMAINDER // (CHUNK_REMAINDER + 1)  # the largest service.chunk_rows
