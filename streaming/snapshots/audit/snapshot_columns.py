"""Column names of the snapshot audit, and the schemas of the rows that its phases pass on.

Names that the ledger audit also uses are in streaming/audit/audit_columns.py and udfs/columns.py.
"""

import pyarrow as pa

from streaming.audit.audit_columns import CLASS, NAMESPACE, PATH
from udfs.columns import BYTES, DETAIL, REASON, TOPIC_NAME

KIND = "kind"  # a SnapshotKind: which of a namespace's topics holds the message
KEY = "key"
NUMBER = "number"  # order in which a compacted reader got the messages: the last message of a key counts
IS_RAW = "is_raw"  # read from the topic's ledgers, as by a recovering broker; false: read by a compacted reader
LEDGER = "ledger"
ENTRY = "entry"
PUBLISH_MS = "publish_ms"
IS_NULL = "is_null"
FAULT = "fault"
IS_BLOCKING = "is_blocking"  # no broker can decode it, so no topic loads for which a broker reads this message
IS_DOUBTFUL = "is_doubtful"  # brokers may be unable to decode it, and a topic may need it
SEQUENCE = "sequence"  # a segment's number
IDS = "ids"  # number of aborted transactions in a value; of an index, only those in its tail
MARKER_LEDGER = "marker_ledger"  # position of the abort marker of a segment's last id
MARKER_ENTRY = "marker_entry"
MAX_READ_LEDGER = "max_read_ledger"
MAX_READ_ENTRY = "max_read_entry"
MOST = "most"  # of a segment: mostSigBits of each transaction id (the number of its coordinator)
LEAST = "least"  # of a segment: leastSigBits of each transaction id, in the same order
MARKERS = "markers"  # of a single snapshot: how many abort markers each ledger has
GUARD_LEDGER = "guard_ledger"  # mark-deleted position of the guard, which keeps segments from being trimmed
GUARD_ENTRY = "guard_entry"
KEEPS_ALL = "keeps_all"  # the segments topic has retention without limit
FOREIGN = "foreign"  # schema versions that are not the brokers'
NULLS = "nulls"  # number of tombstones of segments that a compacted reader gets
LOWEST = "lowest"  # lowest position of a readable segment that an index names
IS_GUARDED = "is_guarded"  # unlimited retention or the guard keeps all these segments
PART = "part"  # a topic with many values has several rows; the number of the row, from 0
INDEX = "index"  # an IndexState
NAMED = "named"  # of an index: the segments that it names
PRESENCE = "presence"
LEDGERS = "ledgers"
SEGMENT_LEDGERS = "segment_ledgers"
AT_BROKER = "at_broker"
STATE = "state"
SNAPSHOT_TYPE = "snapshot_type"
ABORTED = "aborted"
IS_READABLE = "is_readable"
# of a topic: number of distinct ids in readable segments whose last abort marker is in a ledger that still exists
LIVE_IDS = "live_ids"
DOUBLED_IDS = "doubled_ids"  # of a topic: number of ids that are in several segments
DEAD_IDS = "dead_ids"  # of a single snapshot: number of ids whose abort markers are in ledgers that are gone
VALUES = "values"
MOST_BYTES = "most_bytes"

_LONGS = pa.list_(pa.int64())
_SEGMENT = pa.struct(
    [
        pa.field(SEQUENCE, pa.int64()),
        pa.field(LEDGER, pa.int64()),
        pa.field(ENTRY, pa.int64()),
        pa.field(MARKER_LEDGER, pa.int64()),
        pa.field(MARKER_ENTRY, pa.int64()),
    ]
)

_AMOUNT = pa.struct([pa.field(LEDGER, pa.int64()), pa.field(IDS, pa.int64())])

# a message of a namespace's snapshot topics; a row with a path names what could not be read
MESSAGE = pa.schema(
    [
        pa.field(NAMESPACE, pa.string()),
        pa.field(KIND, pa.string()),
        pa.field(IS_RAW, pa.bool_()),
        pa.field(NUMBER, pa.int64()),
        pa.field(KEY, pa.string()),
        pa.field(TOPIC_NAME, pa.string()),
        pa.field(LEDGER, pa.int64()),
        pa.field(ENTRY, pa.int64()),
        pa.field(PUBLISH_MS, pa.int64()),
        pa.field(BYTES, pa.int64()),
        pa.field(IS_NULL, pa.bool_()),
        pa.field(FAULT, pa.string()),
        pa.field(IS_BLOCKING, pa.bool_()),
        pa.field(IS_DOUBTFUL, pa.bool_()),
        pa.field(DETAIL, pa.string()),
        pa.field(SEQUENCE, pa.int64()),
        pa.field(IDS, pa.int64()),
        pa.field(MARKER_LEDGER, pa.int64()),
        pa.field(MARKER_ENTRY, pa.int64()),
        pa.field(MAX_READ_LEDGER, pa.int64()),
        pa.field(MAX_READ_ENTRY, pa.int64()),
        pa.field(MOST, _LONGS),
        pa.field(LEAST, _LONGS),
        pa.field(MARKERS, pa.list_(_AMOUNT)),
        pa.field(NAMED, pa.list_(_SEGMENT)),
        pa.field(PATH, pa.string()),
    ]
)

# a namespace with segments; without a guard, the columns of the guard are null
SEGMENTS_TOPIC = pa.schema(
    [
        pa.field(NAMESPACE, pa.string()),
        pa.field(SEGMENT_LEDGERS, _LONGS),
        pa.field(GUARD_LEDGER, pa.int64()),
        pa.field(GUARD_ENTRY, pa.int64()),
        pa.field(KEEPS_ALL, pa.bool_()),
        pa.field(DETAIL, pa.string()),
    ]
)

# a topic that has snapshots, as ZooKeeper and the brokers know it
OWNER = pa.schema(
    [
        pa.field(TOPIC_NAME, pa.string()),
        pa.field(PRESENCE, pa.string()),
        pa.field(AT_BROKER, pa.string()),
        pa.field(LEDGERS, _LONGS),
        pa.field(STATE, pa.string()),
        pa.field(SNAPSHOT_TYPE, pa.string()),
        pa.field(ABORTED, pa.int64()),
        pa.field(DETAIL, pa.string()),
    ]
)

# a finding, as it is written, shown and printed
FINDING = pa.schema(
    [
        pa.field(CLASS, pa.string()),
        pa.field(REASON, pa.string()),
        pa.field(NAMESPACE, pa.string()),
        pa.field(TOPIC_NAME, pa.string()),
        pa.field(KIND, pa.string()),
        pa.field(KEY, pa.string()),
        pa.field(LEDGER, pa.int64()),
        pa.field(ENTRY, pa.int64()),
        pa.field(BYTES, pa.int64()),
        pa.field(IDS, pa.int64()),
        pa.field(DETAIL, pa.string()),
    ]
)
