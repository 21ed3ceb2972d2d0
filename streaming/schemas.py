"""The rows of the service's tables and streams (messages, waiting retries, receipts, plans), and its queries' names."""

import pyarrow as pa

from udfs import columns as c
from udfs.units import ROW_BYTES

_STRINGS = pa.map_(pa.string(), pa.string())

MESSAGE = pa.schema(
    [
        pa.field(c.SOURCE, pa.string()),
        pa.field(c.POSITION_LEDGER, pa.int64()),
        pa.field(c.POSITION_ENTRY, pa.int64()),
        pa.field(c.POSITION_BATCH, pa.int32()),
        pa.field(c.PUBLISH_MS, pa.int64()),
        pa.field(c.DUE_MS, pa.int64()),
        pa.field(c.ROW, pa.int64()),
        pa.field(c.MESSAGE_KEY, pa.binary()),
        pa.field(c.PAYLOAD, pa.binary()),
        pa.field(c.MESSAGE_PROPERTIES, _STRINGS),
        pa.field(c.REFERENCE_KEY, pa.string()),
        pa.field(c.TENANT, pa.string()),
        pa.field(c.NO_REQUEST, pa.string()),  # a table of an older version gets this column at the next start
    ]
)

WAITING = pa.schema([pa.field(c.READY_MS, pa.int64()), *MESSAGE])

RUN = pa.schema(
    [
        pa.field(c.SOURCE, pa.string()),
        pa.field(c.POSITION_LEDGER, pa.int64()),
        pa.field(c.FIRST_ENTRY, pa.int64()),
        pa.field(c.LAST_ENTRY, pa.int64()),
        pa.field(c.IS_WHOLE, pa.bool_()),
        pa.field(c.ROW, pa.int64()),
    ]
)

# How many rows a row of MESSAGE counts as in a chunk (service.chunk_rows), in Spark SQL.
ROWS = f"""1 + (
    coalesce(octet_length({c.PAYLOAD}), 0) + coalesce(octet_length({c.MESSAGE_KEY}), 0)
    + coalesce(aggregate(
        map_entries({c.MESSAGE_PROPERTIES}), 0, (sum, each) -> sum + length(each.key) + coalesce(length(each.value), 0)
    ), 0)
) div {ROW_BYTES}"""

# Chunk and time come first: Delta keeps minimum and maximum of the first columns, and readers skip files by them.
RECEIPT = pa.schema(
    [
        pa.field(c.CHUNK, pa.int64()),
        pa.field(c.AT_MS, pa.int64()),
        pa.field(c.EPOCH, pa.int64()),
        pa.field(c.QUERY, pa.string()),
        pa.field(c.BATCH_ID, pa.int64()),
        pa.field(c.SOURCE, pa.string()),
        pa.field(c.POSITION_LEDGER, pa.int64()),
        pa.field(c.POSITION_ENTRY, pa.int64()),
        pa.field(c.POSITION_BATCH, pa.int32()),
        pa.field(c.ORIGIN_MESSAGE_ID, pa.string()),
        pa.field(c.LEDGER_ID, pa.int64()),
        pa.field(c.LEDGER_TYPE, pa.string()),
        pa.field(c.COMPONENT, pa.string()),
        pa.field(c.TOPIC_NAME, pa.string()),
        pa.field(c.UUID, pa.string()),
        pa.field(c.REFERENCE_KEY, pa.string()),
        pa.field(c.TENANT, pa.string()),
        pa.field(c.OUTCOME, pa.string()),
        pa.field(c.REASON, pa.string()),
        pa.field(c.DETAIL, pa.string()),
        pa.field(c.ATTEMPT, pa.int32()),
        pa.field(c.BYTES, pa.int64()),
        pa.field(c.REFRESHED, pa.bool_()),
        pa.field(c.TARGET, pa.string()),
        pa.field(c.TARGET_PARTITION, pa.int32()),
        pa.field(c.DELAY_MS, pa.int64()),
        pa.field(c.MESSAGE_KEY, pa.binary()),
        pa.field(c.PAYLOAD, pa.binary()),
        pa.field(c.MESSAGE_PROPERTIES, _STRINGS),
        # a table of an older version gets these columns at the next start
        pa.field(c.SOURCES, pa.string()),
        pa.field(c.LANE, pa.string()),
    ]
)

PLAN = pa.schema(
    [
        pa.field(c.TASK, pa.int32()),
        pa.field(c.TENANT, pa.string()),
        pa.field(c.REFERENCE_KEY, pa.string()),
        pa.field(c.DELETES, pa.int64()),
    ]
)

WATCHED = pa.schema(
    [
        pa.field(c.CHUNK, pa.int64()),
        pa.field(c.AT_MS, pa.int64()),
        pa.field(c.REQUEST_NUMBER, pa.int64()),
        pa.field(c.WATCHED_PATH, pa.string()),
        pa.field(c.KEPT, pa.binary()),
        pa.field(c.PAYLOAD, pa.binary()),
    ]
)

OWNER = pa.schema(
    [pa.field(c.TENANT, pa.string()), pa.field(c.REFERENCE_KEY, pa.string()), pa.field(c.ASKED, pa.int64())]
)

# Names of queries in receipts.
REQUESTS = "requests"
RETRY = "retry"
WAITING_RETRIES = "waiting"  # names the passes over waiting retries among parked queries; in no receipt
DLQ = "dlq"  # in receipts of `dlq write-off`; no streaming query has this name
