"""What we kept as in use and what is gone all the same while its owner still names it: whose it was, whose doing it is.

1. A loss may be ours where our journal has the ledger or object from the last hour: we write it before each delete.
   A sweep that kept it saw it, so an older delete can't be what took it; an hour is more than any lost task lives.
2. Any other loss is somebody else's. A broker that deletes a topic or a schema deletes all ledgers first and what
   names them last, so we look again with growing pauses as long as no more than one tenant is concerned.
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
from udfs.judge import refers_to
from udfs.paths import Layout, ledger_path
from udfs.records import LedgerType, Reason, Reference
from udfs.references import tenant_of_key
from udfs.units import HOUR_MS

LOOKS_AGAIN_S = (5.0, 10.0, 15.0)  # a person's look is needed only for what lasts longer than these together
_OURS_MS = HOUR_MS
_LOOKED_AT_MOST = 1_000  # of each tenant, those that may be ours first

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Missing:
    """What is missing, in words, by the tenant that it belongs to; and what of it we may have deleted ourselves."""

    tenants: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ours: Sequence[str] = field(default_factory=list)

    @property
    def is_one_tenants(self) -> bool:
        """Whether it may be one tenant's doing: no other one is concerned, and we have deleted none of it."""
        return not self.ours and len(self.tenants) <= 1


@dataclass(frozen=True, slots=True)
class MissingOnes:
    """Looks for them after a chunk."""

    loader: InUseLoader
    state_dir: str
    layout: Layout
    ledgers_root: str
    looks_again_s: Sequence[float] = LOOKS_AGAIN_S

    def of(self, chunk: int, stop: threading.Event) -> Missing:
        """Return what the owners still refer to after the last look. Raises UnavailableError, as the loader does."""
        condition = (ds.field(c.CHUNK) == chunk) & (ds.field(c.REASON) == str(Reason.KEPT_AND_GONE))
        wanted = [c.REFERENCE_KEY, c.LEDGER_ID, c.LEDGER_TYPE, c.UUID, c.AT_MS]
        kept: Sequence[_Row] = list(rows(self.state_dir, condition, columns=wanted))
        ours = self._ours(kept)
        kept = _bounded(sorted(kept, key=lambda row: _identity(row) not in ours))
        missing = Missing()
        for wait_s in self.looks_again_s:
            if not kept:
                return Missing()
            stop.wait(wait_s)
            kept = self._lost(kept)
            missing = _missing(kept, ours)
            if not missing.is_one_tenants:
                break
        return missing

    def _ours(self, kept: Sequence[_Row]) -> set[Any]:
        """Which of these the journal has: those that we may have deleted while the sweep kept them."""
        if not kept:
            return set()
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
    some = []
    for row in kept:
        tenant = tenant_of_key(row[c.REFERENCE_KEY])
        taken[tenant] += 1
        if taken[tenant] <= _LOOKED_AT_MOST:
            some.append(row)
    return some


def _missing(lost: Iterable[_Row], ours: set[Any]) -> Missing:
    tenants: dict[str, list[str]] = defaultdict(list)
    may_be_ours = []
    for row in lost:
        told = f"{row[c.LEDGER_TYPE]} {row[c.LEDGER_ID]} of {row[c.REFERENCE_KEY]}"
        tenants[tenant_of_key(row[c.REFERENCE_KEY])].append(told)
        if _identity(row) in ours:
            may_be_ours.append(told)
    return Missing(dict(tenants), may_be_ours)
