"""Reads the deletes of the last hour at a start, from the receipts and from the journal.

The journal covers a run that ended before it committed its receipts.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow.dataset as ds

from streaming.ports import MetadataStore, Znode
from streaming.state import journal, receipts
from udfs import columns as c
from udfs.owners.references import tenant_of_key
from udfs.records import Outcome


def deletes_since(state_dir: str, store: MetadataStore, since_ms: int) -> Iterator[tuple[int, str, str]]:
    """Yield (at ms, tenant, reference key) of each delete since then. Raises UnavailableError."""
    with_receipt: set[int | tuple[int, str]] = set()
    recent = (ds.field(c.OUTCOME) == str(Outcome.DELETED)) & (ds.field(c.AT_MS) > since_ms)
    columns = [c.AT_MS, c.TENANT, c.REFERENCE_KEY, c.LEDGER_ID, c.UUID]
    for row in receipts.rows(state_dir, recent, columns=columns):
        with_receipt.add(_identity(row[c.LEDGER_ID], row[c.UUID]))
        yield row[c.AT_MS], row[c.TENANT], row[c.REFERENCE_KEY]
    for row in (*_ledgers(state_dir, store, since_ms, with_receipt), *_objects(state_dir, since_ms, with_receipt)):
        yield row["at_ms"], tenant_of_key(row["reference_key"]), row["reference_key"]


def _ledgers(state_dir: str, store: MetadataStore, since_ms: int, with_receipt: set[Any]) -> Iterator[dict[str, Any]]:
    query = journal.JournalQuery(since_ms, columns=("at_ms", "ledger_id", "path", "reference_key"))
    rows = _newest(journal.entries(state_dir, query), with_receipt)
    nodes = store.read_many([row["path"] for row in rows])
    # A ledger without a receipt that does not exist any more counts as deleted, no matter by whom. The earlier run
    # can't delete the others later, because the epoch has advanced.
    yield from (row for row, node in zip(rows, nodes, strict=True) if not isinstance(node, Znode))


def _objects(state_dir: str, since_ms: int, with_receipt: set[Any]) -> Iterator[dict[str, Any]]:
    query = journal.JournalQuery(since_ms, columns=("at_ms", "ledger_id", "uuid", "reference_key"))
    # these count without a check that they are gone
    rows = chain(journal.object_entries(state_dir, query), journal.snapshot_entries(state_dir, query))
    yield from _newest(rows, with_receipt)


def _newest(rows: Iterable[dict[str, Any]], with_receipt: set[Any]) -> list[dict[str, Any]]:
    """Return the newest entry of each ledger or object without a receipt; a chunk may have started more than once."""
    newest: dict[Any, dict[str, Any]] = {}
    for row in rows:
        identity = _identity(row["ledger_id"], row.get("uuid"))
        if identity not in with_receipt and (identity not in newest or row["at_ms"] > newest[identity]["at_ms"]):
            newest[identity] = row
    return list(newest.values())


def _identity(ledger_id: int, uuid: str | None) -> int | tuple[int, str]:
    return ledger_id if uuid is None else (ledger_id, uuid)
