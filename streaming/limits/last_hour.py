"""What was deleted within the last hour, looked up at a start: in the receipts, and in the journal.

The journal tells where a run ended before its receipts: a ledger that it wrote down in order to delete it, that has no
receipt and that is not there any more counts as deleted, whoever did it. The earlier run can't delete the others later,
because the epoch has moved on. An object in tiered storage and a snapshot's message count without a look.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow.dataset as ds

from streaming.ports import MetadataStore, Znode
from streaming.state import journal, receipts
from udfs import columns as c
from udfs.records import Outcome
from udfs.references import tenant_of_key


def deletes_since(state_dir: str, store: MetadataStore, since_ms: int) -> Iterator[tuple[int, str, str]]:
    """Yield (at ms, tenant, reference key) of each delete since then. Raises UnavailableError."""
    known: set[int | tuple[int, str]] = set()
    recent = (ds.field(c.OUTCOME) == str(Outcome.DELETED)) & (ds.field(c.AT_MS) > since_ms)
    columns = [c.AT_MS, c.TENANT, c.REFERENCE_KEY, c.LEDGER_ID, c.UUID]
    for row in receipts.rows(state_dir, recent, columns=columns):
        known.add(_identity(row[c.LEDGER_ID], row[c.UUID]))
        yield row[c.AT_MS], row[c.TENANT], row[c.REFERENCE_KEY]
    for row in (*_vanished(state_dir, store, since_ms, known), *_objects(state_dir, since_ms, known)):
        yield row["at_ms"], tenant_of_key(row["reference_key"]), row["reference_key"]


def _vanished(state_dir: str, store: MetadataStore, since_ms: int, known: set[Any]) -> Iterator[dict[str, Any]]:
    wanted = journal.JournalQuery(since_ms, columns=("at_ms", "ledger_id", "path", "reference_key"))
    rows = _newest(journal.entries(state_dir, wanted), known)
    nodes = store.read_many([row["path"] for row in rows])
    yield from (row for row, node in zip(rows, nodes, strict=True) if not isinstance(node, Znode))


def _objects(state_dir: str, since_ms: int, known: set[Any]) -> Iterator[dict[str, Any]]:
    wanted = journal.JournalQuery(since_ms, columns=("at_ms", "ledger_id", "uuid", "reference_key"))
    rows = chain(journal.object_entries(state_dir, wanted), journal.snapshot_entries(state_dir, wanted))
    yield from _newest(rows, known)


def _newest(rows: Iterable[dict[str, Any]], known: set[Any]) -> list[dict[str, Any]]:
    """Return the last entry of each ledger or object without a receipt; a chunk may have been begun more than once."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        identity = _identity(row["ledger_id"], row.get("uuid"))
        if identity not in known and (identity not in found or row["at_ms"] > found[identity]["at_ms"]):
            found[identity] = row
    return list(found.values())


def _identity(ledger_id: int, uuid: str | None) -> int | tuple[int, str]:
    return ledger_id if uuid is None else (ledger_id, uuid)
