"""Every column name of the service's tables and streams; a bare column string elsewhere is a defect."""

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
