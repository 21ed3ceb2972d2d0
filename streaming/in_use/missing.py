"""Finds losses: ledgers and objects that a sweep kept as in use, and that are gone although their owners name them.

1. The journal is written before each delete. So a loss may be our doing if the journal names it in an entry that is
   not older than an hour before the sweep kept it.
2. Any other loss has another cause. The check is repeated, after growing pauses, while at most one tenant has losses
   and none may be our doing.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.dataset as ds

from streaming.in_use.loader import InUseLoader
from streaming.state.journal import JournalQuery, entries, object_entries
from streaming.state.receipts import rows
from udfs import columns as c
from udfs.owners.references import tenant_of_key
from udfs.paths import Layout, ledger_path
from udfs.records import LedgerType, Reason, Reference
from udfs.units import HOUR_MS
from udfs.verdicts.judge import refers_to

PAUSES_S = (5.0, 10.0, 15.0)  # before each check; an operator is needed only for losses that outlast all pauses
_OURS_MS = HOUR_MS
_CHECKED_AT_MOST = 1_000  # for each tenant; losses that may be ours are checked first

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Missing:
    """Losses as messages."""

    tenants: Mapping[str, Sequence[str]] = field(default_factory=dict)  # all losses by tenant
    ours: Sequence[str] = field(default_factory=list)  # losses that this service may have caused

    @property
    def is_one_tenants(self) -> bool:
        """Whether one tenant may have caused the losses: no other tenant has any, and none may be ours."""
        return not self.ours and len(self.tenants) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCheck:
    """Checks for losses after each chunk."""

    loader: InUseLoader
    state_dir: str
    layout: Layout
    ledgers_root: str
    pauses_s: Sequence[float] = PAUSES_S

    def of(self, chunk: int, stop: threading.Event) -> Missing:
        """Return the losses of a chunk that remain after the last check. Raises UnavailableError."""
        condition = (ds.field(c.CHUNK) == chunk) & (ds.field(c.REASON) == str(Reason.KEPT_AND_GONE))
        columns = [c.REFERENCE_KEY, c.LEDGER_ID, c.LEDGER_TYPE, c.UUID, c.AT_MS]
        kept: Sequence[_Row] = list(rows(self.state_dir, condition, columns=columns))
        ours = self._ours(kept)
        # losses that may be ours first: they stop the service whatever the others are
        kept = _bounded(sorted(kept, key=lambda row: _identity(row) not in ours))
        missing = Missing()
        for pause_s in self.pauses_s:
            if not kept:
                return Missing()
            # a broker that deletes a topic or a schema deletes its ledgers first and the list that names them last
            stop.wait(pause_s)
            kept = self._lost(kept)
            missing = _missing(kept, ours)
            if not missing.is_one_tenants:
                break
        return missing

    def _ours(self, kept: Sequence[_Row]) -> set[Any]:
        """Return the identities of those rows that the journal names: this service may have deleted them."""
        if not kept:
            return set()
        # The sweep found the ledger before it kept it, so an earlier delete can't be the cause. But an earlier entry
        # of the journal can: a lost task may delete later than its entry. No lost task lives longer than an hour.
        since_ms = min(row[c.AT_MS] for row in kept) - _OURS_MS
        where = ds.field("ledger_id").isin(sorted({row[c.LEDGER_ID] for row in kept}))
        ledgers = entries(self.state_dir, JournalQuery(since_ms, where, ("ledger_id",)))
        objects = object_entries(self.state_dir, JournalQuery(since_ms, where, ("ledger_id", "uuid")))
        return {row["ledger_id"] for row in ledgers} | {(row["ledger_id"], row["uuid"]) for row in objects}

    def _lost(self, kept: Iterable[_Row]) -> list[_Row]:
        kept = list(kept)
        references = self.loader.load({row[c.REFERENCE_KEY] for row in kept})
        return [row for row in kept if self._is_lost(row, references[row[c.REFERENCE_KEY]])]

    def _is_lost(self, row: _Row, reference: Reference) -> bool:
        ledger_id = row[c.LEDGER_ID]
        if row[c.LEDGER_TYPE] == LedgerType.OFFLOAD_LEDGER:
            return (ledger_id, row[c.UUID]) in reference.offloads
        path = ledger_path(self.layout, self.ledgers_root, ledger_id)
        return refers_to(reference, ledger_id) and bool(self.loader.holding([(path, -1)]))


def _identity(row: _Row) -> Any:
    return (row[c.LEDGER_ID], row[c.UUID]) if row[c.LEDGER_TYPE] == LedgerType.OFFLOAD_LEDGER else row[c.LEDGER_ID]


def _bounded(kept: Iterable[_Row]) -> list[_Row]:
    taken: Counter[str] = Counter()
    bounded = []
    for row in kept:
        tenant = tenant_of_key(row[c.REFERENCE_KEY])
        taken[tenant] += 1
        if taken[tenant] <= _CHECKED_AT_MOST:
            bounded.append(row)
    return bounded


def _missing(lost: Iterable[_Row], ours: set[Any]) -> Missing:
    tenants: dict[str, list[str]] = defaultdict(list)
    may_be_ours = []
    for row in lost:
        loss = f"{row[c.LEDGER_TYPE]} {row[c.LEDGER_ID]} of {row[c.REFERENCE_KEY]}"
        tenants[tenant_of_key(row[c.REFERENCE_KEY])].append(loss)
        if _identity(row) in ours:
            may_be_ours.append(loss)
    return Missing(dict(tenants), may_be_ours)
