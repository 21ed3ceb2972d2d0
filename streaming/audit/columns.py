"""Column names of the audit, and the rows that its phases hand on; nothing else may name a column by a bare string.

Names that receipts use as well stand in udfs/columns.py. A "reference" is a place in Pulsar's metadata that names a
ledger: a topic's list, a cursor, a schema. Its owner is that topic or schema.
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

PATH = "path"  # a znode to work on, or one that could not be read
STORE = "store"  # "<endpoint> <bucket>" of an object; null for a BookKeeper ledger
MANAGED_LEDGER = "managed_ledger"
CURSOR = "cursor"
SCHEMA_ID = "schema_id"
NAMESPACE = "namespace"
CLASS = "class"
CANDIDATE = "candidate"  # the first look would call it an orphan, or missing, so a second look decides
SEEN_MS = "seen_ms"  # when the last look at it took place
LAST_CHANGE_MS = "last_change_ms"
AGE_SECONDS = "age_seconds"
IS_REFERENCE = "is_reference"  # true: a reference whose ledger was not listed; false: a ledger that nothing names
NUMBER = "number"  # ascends through the findings of one audit, with gaps
IN_BOOKKEEPER = "in_bookkeeper"  # whether the reference keeps the BookKeeper copy alive
IS_INDEX = "is_index"  # true: the index object of an offload; false: its data object
HAS_DATA = "has_data"
HAS_INDEX = "has_index"
IS_COMPLETE = "is_complete"  # the topic's list says that the offload is complete, so both objects must exist

# a place to list: a znode, or a bucket's label with a prefix as detail; after listing: a detail says why it failed
PLACE = pa.schema([pa.field(PATH, pa.string()), pa.field(DETAIL, pa.string())])

# a ledger that exists; a row with a path tells what could not be listed
LISTED = pa.schema([pa.field(LEDGER_ID, pa.int64()), pa.field(PATH, pa.string()), pa.field(DETAIL, pa.string())])

# an object as brokers name those that they offload; a row with a path tells what could not be listed
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

# one reference of an owner; a row with a path tells what could not be read
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

# something to look at twice, and what the last look said
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

# a finding, as it is written to findings/, shown and published
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
