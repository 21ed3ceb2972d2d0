"""Every column name of the service's tables and streams. No other module contains a column's name as a string."""

# columns of the Pulsar connector
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
KEY = "__key"
VALUE = "value"
PROPERTIES = "__messageProperties"

# a message (streaming.schemas.MESSAGE)
SOURCE = "source"  # full name of the topic partition that the message was read from
POSITION_LEDGER = "position_ledger"
POSITION_ENTRY = "position_entry"
POSITION_BATCH = "position_batch"  # index within a producer's batch, -1 where the message was sent alone
PUBLISH_MS = "publish_ms"
DUE_MS = "due_ms"  # publish time + DELAY_TIME; the message is not processed before
ROW = "row"  # 0, 1, 2, … within the source partition of this batch; a large message takes several (units.ROW_BYTES)
MESSAGE_KEY = "message_key"
PAYLOAD = "payload"
MESSAGE_PROPERTIES = "message_properties"
REFERENCE_KEY = "reference_key"  # names the owner (udfs.owners.references); null: the message is no request
TENANT = "tenant"
NO_REQUEST = "no_request"  # why the message is no request, whatever its bytes are: `<Reason>: <detail>`; else null
READY_MS = "ready_ms"  # of a waiting retry: from when on a pass takes it, its due time within bounds (state/waiting.py)

# a run of entries of a ledger (streaming.schemas.RUN)
FIRST_ENTRY = "first_entry"
LAST_ENTRY = "last_entry"
IS_WHOLE = "is_whole"  # no index of a producer's batch is missing

# a receipt (streaming.schemas.RECEIPT)
EPOCH = "epoch"  # number of the run that wrote it; each start of the service has a higher one
CHUNK = "chunk"  # number of the chunk, ascending over the life of the table; each chunk is one commit to it
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
LANE = "lane"  # the lane to which the request was first published; null: another topic
ATTEMPT = "attempt"
BYTES = "bytes"
REFRESHED = "refreshed"  # the cached reference was out of date
SOURCES = "sources"  # how many ledgers ZooKeeper and the broker named: udfs.owners.completeness.certificate
TARGET = "target"  # topic that a copy goes to; null: there is no copy
TARGET_PARTITION = "target_partition"
DELAY_MS = "delay_ms"

# a plan (streaming.schemas.PLAN)
TASK = "task"
DELETES = "deletes"

# admitted requests by owner (streaming.schemas.OWNER)
ASKED = "asked"
POSITION = (SOURCE, POSITION_LEDGER, POSITION_ENTRY, POSITION_BATCH)

# The watcher's table.
WATCHED_PATH = "path"  # of the znode; or the name of a note, which does not start with a slash
KEPT = "kept"  # the names in the znode (udfs.phase_one.kept_names), or the note; null: it is gone
REQUEST_NUMBER = "request_number"  # of a request's row; -1 in all others
