"""Finds in the receipts the topics whose data ledgers the service deleted: a trim may drop ids there."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.dataset as ds

from streaming.config.settings import Settings
from streaming.state import receipts
from udfs import columns as c
from udfs.paths import namespace_of, tenant_of
from udfs.records import LedgerComponent, Outcome, Reason


def topics_with_deleted_ledgers(settings: Settings) -> list[str]:
    """Return the allowed topics that still existed when the service deleted data ledgers of theirs, sorted.

    Raises UnavailableError.
    """
    deleted = (
        (ds.field(c.OUTCOME) == str(Outcome.DELETED))
        & (ds.field(c.REASON) == str(Reason.UNREFERENCED))
        & (ds.field(c.COMPONENT) == str(LedgerComponent.MANAGED_LEDGER))
    )
    rows = receipts.rows(settings.state_dir, deleted, columns=[c.TOPIC_NAME])
    return sorted(allowed_of(rows, frozenset(settings.snapshots.trim_namespaces)))


def allowed_of(rows: Iterator[Mapping[str, Any]], allowed: frozenset[str]) -> set[str]:
    """Return the topics of receipts that are in one of these tenants or namespaces."""
    topics = {str(row[c.TOPIC_NAME]) for row in rows} if allowed else set()
    # an operator has to allow the trims, since a trim adds an entry to the topic
    return {topic for topic in topics if {tenant_of(topic), namespace_of(topic)} & allowed}
