"""Units of time in milliseconds and of sizes in bytes, and limits that the configuration shares with the rules."""

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# Longer than any sensible reconsume_later; a copy with a longer delay would stay in the retry topic for ever.
MAX_DELAY_MS = 7 * DAY_MS
MIB = 1024 * 1024
# A chunk counts a message as one row, and as a further row for each 4 KiB (service.chunk_rows).
ROW_BYTES = 4096
# A copy's sequence id has 20 bits for its index in the chunk (streaming/deletion/chunks/outbox.py).
MAX_ROWS_PER_CHUNK = 1 << 20
# The rest of a batch joins the last chunk if it is at most this fraction of service.chunk_rows (1/4).
CHUNK_REMAINDER = 4
MAX_CHUNK_ROWS = MAX_ROWS_PER_CHUNK * CHUNK_REMAINDER // (CHUNK_REMAINDER + 1)  # of service.chunk_rows
