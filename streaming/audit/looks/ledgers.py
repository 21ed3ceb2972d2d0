"""A look at suspects: read their ledgers, then their owners, then judge them by the rules of the service.

The order matters. No list ever takes up a ledger that was CLOSED before the list was read and that the list does not
name. Read the other way round, the list might have taken it up before we looked at the ledger.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming.audit import columns as a
from streaming.audit.looks.objects import ObjectLooker
from streaming.audit.walk.suspects import LedgerReader, reader_for, request_of
from streaming.clients import clients_for
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings
from streaming.in_use.loader import InUseLoader
from streaming.ports import Unreadable
from streaming.sweep.buckets import offload_buckets
from streaming.sweep.offloaded import Confirm, OffloadedCopies
from udfs import columns as c
from udfs.audit import SEEN_ONCE, FindingClass, SuspectCheck, affected_by, concluded, looked, missing_look, owner_paths
from udfs.judge import NOT_ASKED, Case, Policy, judge, refers_to
from udfs.paths import Layout
from udfs.records import LedgerComponent, LedgerFacts, LedgerType, Outcome, Presence, Reason, Reference, Verdict

_SUSPECTS_PER_LOOK = 2_000


@dataclass(frozen=True, slots=True)
class LookTask:
    """Spark's task: looks at suspects (columns.SUSPECT) that have an owner. One owner's rows should be neighbours.

    unreadable: paths at or below which the audit believes nothing. is_second: the rows are candidates of the first
    look, which took place at their SEEN_MS.
    """

    settings: Settings
    layout: Layout
    policy: Policy
    unreadable: tuple[str, ...]
    reads_per_second: float
    is_second: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Look at every row of every batch. Raises UnavailableError."""
        clients = clients_for(self.settings)
        clock: Clock = SystemClock()
        loader = InUseLoader(clients.store, clients.broker if self.settings.safety.ask_broker else None, clock)
        grace_ms = self.settings.tiered_storage.offload_grace_seconds * 1000
        places = offload_buckets(self.settings, loader)
        looker = Looker(
            reader_for(self.settings, self.layout, self.reads_per_second),
            ObjectLooker(places, loader, clock, self.policy, grace_ms),
            loader,
            clock,
            self.policy,
            frozenset(self.unreadable),
            OffloadedCopies(loader, places),
        )
        for batch in batches:
            rows = batch.to_pylist()
            for start in range(0, len(rows), _SUSPECTS_PER_LOOK):
                part = rows[start : start + _SUSPECTS_PER_LOOK]
                yield pa.RecordBatch.from_pylist(looker.look(part, is_second=self.is_second), schema=a.SUSPECT)


@dataclass(frozen=True, slots=True)
class Looker:
    """Looks at many suspects at a time, and keeps no state between two looks."""

    reader: LedgerReader
    objects: ObjectLooker
    loader: InUseLoader
    clock: Clock
    policy: Policy
    unreadable: frozenset[str]
    confirm: Confirm | None = None  # None: a ledger that its list names as offloaded is UNKNOWN

    def look(self, rows: Sequence[dict[str, Any]], *, is_second: bool) -> list[dict[str, Any]]:
        """Return the rows with the class, reason and time of this look. Raises UnavailableError."""
        ledgers = [row for row in rows if row[c.LEDGER_TYPE] == LedgerType.LEDGER]
        stored = [row for row in rows if row[c.LEDGER_TYPE] != LedgerType.LEDGER]
        facts = self.reader.facts([row[c.LEDGER_ID] for row in ledgers])
        references = self.loader.load(row[c.REFERENCE_KEY] for row in ledgers)
        compacted = self.loader.compacted(row[c.REFERENCE_KEY] for row in ledgers if _is_compacted_reference(row))
        now_ms = self.clock.now_ms()
        looks = [
            (row, _missing_compacted(row, one, compacted[row[c.REFERENCE_KEY]]), one)
            if _is_compacted_reference(row)
            else (row, self._one(row, one, references[row[c.REFERENCE_KEY]], now_ms, unconfirmed), one)
            for row, one, unconfirmed in zip(
                ledgers, facts, self._unconfirmed(ledgers, facts, references, now_ms), strict=True
            )
        ]
        if stored:
            looks += [(row, look, None) for row, look in zip(stored, self.objects.look(stored), strict=True)]
        return [
            _marked(row, self._believed(row, concluded(look) if is_second else look), one, now_ms)
            for row, look, one in looks
        ]

    def _unconfirmed(
        self,
        rows: Sequence[dict[str, Any]],
        facts: Sequence[LedgerFacts | Unreadable | None],
        references: Mapping[str, Reference],
        now_ms: int,
    ) -> list[Verdict | None]:
        """Ask tiered storage about the ledgers whose verdict depends on it, all together; in order."""
        unconfirmed: list[Verdict | None] = [NOT_ASKED] * len(rows)
        if self.confirm is None:
            return unconfirmed
        asked = [
            place
            for place, (row, one) in enumerate(zip(rows, facts, strict=True))
            if not row[a.IS_REFERENCE]
            and self._one(row, one, references[row[c.REFERENCE_KEY]], now_ms).reason is Reason.OFFLOAD_UNCONFIRMED
        ]
        cases = [(request_of(rows[place]), references[rows[place][c.REFERENCE_KEY]]) for place in asked]
        for place, answer in zip(asked, self.confirm(cases) if cases else [], strict=True):
            unconfirmed[place] = answer
        return unconfirmed

    def _one(
        self,
        row: dict[str, Any],
        facts: LedgerFacts | Unreadable | None,
        reference: Reference,
        now_ms: int,
        unconfirmed: Verdict | None = NOT_ASKED,
    ) -> SuspectCheck:
        if row[a.IS_REFERENCE]:
            return _missing(row, facts, reference)
        if isinstance(facts, Unreadable):
            return looked(Verdict(Outcome.RETRY, Reason.LEDGER_UNREADABLE, facts.detail))
        absent_since_ms = row[a.SEEN_MS] if row[c.REASON] in SEEN_ONCE else None
        case = Case(
            request=request_of(row),
            ledger=facts,
            reference=reference,
            absent_since_ms=absent_since_ms,
            unconfirmed=unconfirmed,
        )
        return looked(judge(case, self.policy, now_ms=now_ms))

    def _believed(self, row: Mapping[str, Any], look: SuspectCheck) -> SuspectCheck:
        """Call a candidate UNKNOWN if the walk could not read a path of its owner, whatever this look saw."""
        if not look.is_candidate or not self.unreadable:
            return look
        blocking = affected_by(owner_paths(row[c.REFERENCE_KEY]), self.unreadable)
        if blocking is None:
            return look
        return SuspectCheck(FindingClass.UNKNOWN, Reason.OWNER_UNREADABLE, f"{blocking} could not be read")


def _is_compacted_reference(row: Mapping[str, Any]) -> bool:
    return bool(row[a.IS_REFERENCE]) and row[c.COMPONENT] == LedgerComponent.COMPACTED_LEDGER


def _missing_compacted(
    row: Mapping[str, Any], facts: LedgerFacts | Unreadable | None, broker_s: int | None
) -> SuspectCheck:
    """Ask only the broker whether it needs the ledger: the cursor's znode goes on naming ledgers that are long gone."""
    return missing_look(
        is_referenced=None if broker_s is None else broker_s == row[c.LEDGER_ID],
        is_there=None if isinstance(facts, Unreadable) else facts is not None,
    )


def _missing(row: Mapping[str, Any], facts: LedgerFacts | Unreadable | None, reference: Reference) -> SuspectCheck:
    is_referenced = None
    if reference.presence is not Presence.UNREADABLE:
        is_referenced = refers_to(reference, row[c.LEDGER_ID])
    return missing_look(
        is_referenced=is_referenced, is_there=None if isinstance(facts, Unreadable) else facts is not None
    )


def _marked(
    row: Mapping[str, Any], look: SuspectCheck, facts: LedgerFacts | Unreadable | None, now_ms: int
) -> dict[str, Any]:
    changed = {a.LAST_CHANGE_MS: facts.last_change_ms} if isinstance(facts, LedgerFacts) else {}
    return {
        **row,
        **changed,
        a.CLASS: str(look.finding_class),
        c.REASON: str(look.reason),
        c.DETAIL: look.detail,
        a.CANDIDATE: look.is_candidate,
        a.SEEN_MS: now_ms,
    }
