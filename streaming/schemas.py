"""Every column name, and the two row shapes of the service; a bare column string elsewhere is a defect."""

import pyarrow as pa

from udfs.columns import (
    AT_MS,
    ATTEMPT,
    BATCH_ID,
    BYTES,
    CHUNK,
    COMPONENT,
    DELAY_MS,
    DELETES,
    DETAIL,
    DUE_MS,
    EPOCH,
    LEDGER_ID,
    LEDGER_TYPE,
    MESSAGE_KEY,
    MESSAGE_PROPERTIES,
    ORIGIN_MESSAGE_ID,
    OUTCOME,
    PAYLOAD,
    POSITION_BATCH,
    POSITION_ENTRY,
    POSITION_LEDGER,
    PUBLISH_MS,
    QUERY,
    READY_MS,
    REASON,
    REFERENCE_KEY,
    REFRESHED,
    ROW,
    SOURCE,
    SOURCES,
    TARGET,
    TARGET_PARTITION,
    TASK,
    TENANT,
    TOPIC_NAME,
    UUID,
)

_STRINGS = pa.map_(pa.string(), pa.string())

MESSAGE = pa.schema(
    [
        pa.field(SOURCE, pa.string()),
        pa.field(POSITION_LEDGER, pa.int64()),
        pa.field(POSITION_ENTRY, pa.int64()),
        pa.field(POSITION_BATCH, pa.int32()),
        pa.field(PUBLISH_MS, pa.int64()),
        pa.field(DUE_MS, pa.int64()),
        pa.field(ROW, pa.int64()),
        pa.field(MESSAGE_KEY, pa.binary()),
        pa.field(PAYLOAD, pa.binary()),
        pa.field(MESSAGE_PROPERTIES, _STRINGS),
        pa.field(REFERENCE_KEY, pa.string()),
        pa.field(TENANT, pa.string()),
    ]
)

WAITING = pa.schema([pa.field(READY_MS, pa.int64()), *MESSAGE])

# chunk and time stand first: Delta keeps min and max of the first columns, and readers skip files by them
RECEIPT = pa.schema(
    [
        pa.field(CHUNK, pa.int64()),
        pa.field(AT_MS, pa.int64()),
        pa.field(EPOCH, pa.int64()),
        pa.field(QUERY, pa.string()),
        pa.field(BATCH_ID, pa.int64()),
        pa.field(SOURCE, pa.string()),
        pa.field(POSITION_LEDGER, pa.int64()),
        pa.field(POSITION_ENTRY, pa.int64()),
        pa.field(POSITION_BATCH, pa.int32()),
        pa.field(ORIGIN_MESSAGE_ID, pa.string()),
        pa.field(LEDGER_ID, pa.int64()),
        pa.field(LEDGER_TYPE, pa.string()),
        pa.field(COMPONENT, pa.string()),
        pa.field(TOPIC_NAME, pa.string()),
        pa.field(UUID, pa.string()),
        pa.field(REFERENCE_KEY, pa.string()),
        pa.field(TENANT, pa.string()),
        pa.field(OUTCOME, pa.string()),
        pa.field(REASON, pa.string()),
        pa.field(DETAIL, pa.string()),
        pa.field(ATTEMPT, pa.int32()),
        pa.field(BYTES, pa.int64()),
        pa.field(REFRESHED, pa.bool_()),
        pa.field(TARGET, pa.string()),
        pa.field(TARGET_PARTITION, pa.int32()),
        pa.field(DELAY_MS, pa.int64()),
        pa.field(MESSAGE_KEY, pa.binary()),
        pa.field(PAYLOAD, pa.binary()),
        pa.field(MESSAGE_PROPERTIES, _STRINGS),
        pa.field(SOURCES, pa.string()),  # tables of older versions get it at the next start
    ]
)

PLAN = pa.schema(
    [
        pa.field(TASK, pa.int32()),
        pa.field(TENANT, pa.string()),
        pa.field(REFERENCE_KEY, pa.string()),
        pa.field(DELETES, pa.int64()),
    ]
)

# names of queries, as receipts have them
REQUESTS = "requests"
RETRY = "retry"
DLQ = "dlq"  # of receipts that `dlq write-off` wrote; no streaming query has this name
