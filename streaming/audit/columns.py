"""Column names and row shapes of the audit's stages; a bare column string elsewhere is a defect.

Names that receipts have too are streaming.schemas'.
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

PATH = "path"  # znode to work on, or one that could not be read
STORE = "store"  # "<endpoint> <bucket>" of an object, null for BookKeeper's
MANAGED_LEDGER = "managed_ledger"
CURSOR = "cursor"
SCHEMA_ID = "schema_id"
NAMESPACE = "namespace"
CLASS = "class"
CANDIDATE = "candidate"  # the first look would call it an orphan, or missing
SEEN_MS = "seen_ms"  # when that look was taken
LAST_CHANGE_MS = "last_change_ms"
AGE_SECONDS = "age_seconds"
IS_REFERENCE = "is_reference"  # a reference whose ledger was not listed, not a ledger that nobody refers to
NUMBER = "number"  # ascending through the findings of one audit, with gaps
IN_BOOKKEEPER = "in_bookkeeper"  # the reference keeps the BookKeeper copy alive
IS_INDEX = "is_index"
HAS_DATA = "has_data"
HAS_INDEX = "has_index"
IS_COMPLETE = "is_complete"  # the offload it refers to says that its objects are there

# one znode to start from; with a detail: it could not be listed
PLACE = pa.schema([pa.field(PATH, pa.string()), pa.field(DETAIL, pa.string())])

# a ledger that exists; or, with a path, what could not be listed
LISTED = pa.schema([pa.field(LEDGER_ID, pa.int64()), pa.field(PATH, pa.string()), pa.field(DETAIL, pa.string())])

# an object of the kind that brokers offload to; or, with a path, what could not be listed
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

# what an owner refers to; or, with a path, what could not be read
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

# something to look at twice, and what the looks said
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

# what is shown, written as Parquet and published
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
