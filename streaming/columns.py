"""Every column name, and the two row shapes of the service; a bare column string elsewhere is a defect."""

import pyarrow as pa

# what the connector gives
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
KEY = "__key"
VALUE = "value"
PROPERTIES = "__messageProperties"

# a message, annotated
SOURCE = "source"  # full name of the topic partition it was read from
POSITION_LEDGER = "position_ledger"
POSITION_ENTRY = "position_entry"
POSITION_BATCH = "position_batch"  # index within a producer's batch, -1 where it was sent alone
PUBLISH_MS = "publish_ms"
DUE_MS = "due_ms"  # not to be worked off before; publish time + DELAY_TIME
ROW = "row"  # 0, 1, 2, … within the source partition of this batch
MESSAGE_KEY = "message_key"
PAYLOAD = "payload"
MESSAGE_PROPERTIES = "message_properties"
REFERENCE_KEY = "reference_key"  # what could refer to the ledger; null where the message is no request
TENANT = "tenant"

READY_MS = "ready_ms"  # of a waiting retry: its due time, or later where it arrived after a pass for that time

# a receipt
EPOCH = "epoch"  # of the run that wrote it
CHUNK = "chunk"  # number of the chunk, ascending over the life of the table; one Delta commit each
AT_MS = "at_ms"
QUERY = "query"
BATCH_ID = "batch_id"
ORIGIN_MESSAGE_ID = "message_id"  # of the original request, as Java prints it
LEDGER_ID = "ledger_id"
LEDGER_TYPE = "ledger_type"
COMPONENT = "component"
TOPIC_NAME = "topic"
UUID = "uuid"
OUTCOME = "outcome"
REASON = "reason"
DETAIL = "detail"
ATTEMPT = "attempt"
BYTES = "bytes"
REFRESHED = "refreshed"  # the executor found the cached in-use set stale
SOURCES = "sources"  # what ZooKeeper and the broker said of the owner: udfs.completeness.certificate
TARGET = "target"  # topic a copy goes to; null: none
TARGET_PARTITION = "target_partition"
DELAY_MS = "delay_ms"

# a plan
TASK = "task"
DELETES = "deletes"

POSITION = (SOURCE, POSITION_LEDGER, POSITION_ENTRY, POSITION_BATCH)

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
