"""The column names of the audit, and the rows that its phases exchange; no other module spells a column name.

Names that receipts use too are in udfs/columns.py. A "reference" is an entry of Pulsar's metadata that names a ledger:
in a topic's list, a cursor or a schema. Its owner is that topic or schema.
"""

import pyarrow as pa

from udfs.columns import (
    BYTES,
    COMPONENT,
    DETAIL,
    LEDGER_ID,
    LEDGER_TYPE,
    REASON,
    REFERENCE_KEY,
    TENANT,
    TOPIC_NAME,
    UUID,
)

PATH = "path"  # a znode to process, or a path that could not be read
STORE = "store"  # "<endpoint> <bucket>" of an object; null for a BookKeeper ledger
MANAGED_LEDGER = "managed_ledger"
CURSOR = "cursor"
SCHEMA_ID = "schema_id"
NAMESPACE = "namespace"
CLASS = "class"
CANDIDATE = "candidate"  # the first check found an orphan, or missing data, so a second check decides
SEEN_MS = "seen_ms"  # the time of the last check
LAST_CHANGE_MS = "last_change_ms"
AGE_SECONDS = "age_seconds"
IS_REFERENCE = "is_reference"  # true: a reference whose ledger was not listed; false: a ledger that nothing names
NUMBER = "number"  # ascending through the findings of one audit, with gaps
IN_BOOKKEEPER = "in_bookkeeper"  # whether the reference keeps the BookKeeper copy alive
IS_INDEX = "is_index"  # true: the index object of an offload; false: its data object
HAS_DATA = "has_data"
HAS_INDEX = "has_index"
IS_COMPLETE = "is_complete"  # the offload is complete according to the topic's list, so both objects must exist

# A location to list: PATH is a znode or a bucket's label, and DETAIL the prefix in that bucket. In the result of a
# listing, DETAIL is the error.
LOCATION = pa.schema([pa.field(PATH, pa.string()), pa.field(DETAIL, pa.string())])

# a ledger that exists; a row with a path is a path that could not be listed
LISTED = pa.schema([pa.field(LEDGER_ID, pa.int64()), pa.field(PATH, pa.string()), pa.field(DETAIL, pa.string())])

# an object whose name has the form that brokers give it; a row with a path is a path that could not be listed
OBJECT = pa.schema(
    [
        pa.field(STORE, pa.string()),
        pa.field(UUID, pa.string()),
        pa.field(LEDGER_ID, pa.int64()),
        pa.field(IS_INDEX, pa.bool_()),
        pa.field(BYTES, pa.int64()),
        pa.field(LAST_CHANGE_MS, pa.int64()),
        pa.field(PATH, pa.string()),
        pa.field(DETAIL, pa.string()),
    ]
)

# one reference of an owner; a row with a path is a path that could not be read
REFERENCE = pa.schema(
    [
        pa.field(LEDGER_ID, pa.int64()),
        pa.field(IN_BOOKKEEPER, pa.bool_()),
        pa.field(UUID, pa.string()),
        pa.field(STORE, pa.string()),
        pa.field(IS_COMPLETE, pa.bool_()),
        pa.field(BYTES, pa.int64()),
        pa.field(REFERENCE_KEY, pa.string()),
        pa.field(COMPONENT, pa.string()),
        pa.field(MANAGED_LEDGER, pa.string()),
        pa.field(NAMESPACE, pa.string()),
        pa.field(PATH, pa.string()),
        pa.field(DETAIL, pa.string()),
    ]
)

# a ledger or object to check twice, and the result of the last check
SUSPECT = pa.schema(
    [
        pa.field(CLASS, pa.string()),
        pa.field(LEDGER_ID, pa.int64()),
        pa.field(LEDGER_TYPE, pa.string()),
        pa.field(COMPONENT, pa.string()),
        pa.field(MANAGED_LEDGER, pa.string()),
        pa.field(CURSOR, pa.string()),
        pa.field(SCHEMA_ID, pa.string()),
        pa.field(UUID, pa.string()),
        pa.field(STORE, pa.string()),
        pa.field(REFERENCE_KEY, pa.string()),
        pa.field(BYTES, pa.int64()),
        pa.field(LAST_CHANGE_MS, pa.int64()),
        pa.field(REASON, pa.string()),
        pa.field(DETAIL, pa.string()),
        pa.field(IS_REFERENCE, pa.bool_()),
        pa.field(CANDIDATE, pa.bool_()),
        pa.field(SEEN_MS, pa.int64()),
    ]
)

# a finding, as it is written to findings/, printed and published
FINDING = (
    CLASS,
    LEDGER_ID,
    LEDGER_TYPE,
    COMPONENT,
    TOPIC_NAME,
    UUID,
    BYTES,
    AGE_SECONDS,
    REASON,
    DETAIL,
    TENANT,
    NAMESPACE,
    MANAGED_LEDGER,
    CURSOR,
    SCHEMA_ID,
    STORE,
    REFERENCE_KEY,
    NUMBER,
)
