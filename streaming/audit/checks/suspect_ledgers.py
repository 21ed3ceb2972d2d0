"""Checks suspects: reads their ledgers, then their owners, and judges them by the rules of the service."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.audit.checks.suspect_objects import ObjectChecker
from streaming.audit.walk.suspects import LedgerReader, reader_for, request_of
from streaming.clients import clients_for
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings
from streaming.in_use.loader import InUseLoader
from streaming.ports import Unreadable
from streaming.sweep.tiered_storage.buckets import offload_buckets
from streaming.sweep.tiered_storage.offloaded import Confirm, OffloadedCopies
from udfs import columns as c
from udfs.paths import Layout
from udfs.records import LedgerComponent, LedgerFacts, LedgerType, Outcome, Presence, Reason, Reference, Verdict
from udfs.verdicts.finding_classes import (
    SEEN_ONCE,
    FindingClass,
    SuspectCheck,
    affected_by,
    check_of_missing,
    check_of_verdict,
    concluded,
    owner_paths,
)
from udfs.verdicts.judge import NOT_ASKED, Case, Policy, judge, refers_to
from udfs.verdicts.judge_segment import check_of_segment

_SUSPECTS_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """A task: checks suspects (audit_columns.SUSPECT) that have an owner.

    Rows of the same owner should follow each other, so that the task reads the owner once.
    """

    settings: Settings
    layout: Layout
    policy: Policy
    unreadable: tuple[str, ...]  # paths at or below which nothing counts as read
    reads_per_second: float
    is_second: bool  # the rows are candidates of the first check, which took place at their SEEN_MS

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check every row of every batch. Raises UnavailableError."""
        clients = clients_for(self.settings)
        clock: Clock = SystemClock()
        loader = InUseLoader(clients.store, clients.broker if self.settings.safety.ask_broker else None, clock)
        grace_ms = self.settings.tiered_storage.offload_grace_seconds * 1000
        buckets = offload_buckets(self.settings, loader)
        checker = SuspectChecker(
            reader=reader_for(self.settings, self.layout, self.reads_per_second),
            objects=ObjectChecker(
                buckets=buckets, loader=loader, clock=clock, policy=self.policy, offload_grace_ms=grace_ms
            ),
            loader=loader,
            clock=clock,
            policy=self.policy,
            unreadable=frozenset(self.unreadable),
            confirm=OffloadedCopies(loader, buckets),
        )
        for batch in batches:
            rows = batch.to_pylist()
            for start in range(0, len(rows), _SUSPECTS_AT_ONCE):
                suspects = rows[start : start + _SUSPECTS_AT_ONCE]
                checked = checker.check(suspects, is_second=self.is_second)
                yield pa.RecordBatch.from_pylist(checked, schema=a.SUSPECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectChecker:
    """Checks many suspects at a time; keeps no state between two checks."""

    reader: LedgerReader
    objects: ObjectChecker
    loader: InUseLoader
    clock: Clock
    policy: Policy
    unreadable: frozenset[str]
    confirm: Confirm | None = None  # None: a ledger that its list names as offloaded is UNKNOWN

    def check(self, rows: Sequence[dict[str, Any]], *, is_second: bool) -> list[dict[str, Any]]:
        """Return the rows with the class, reason and time of this check. Raises UnavailableError."""
        ledgers = [row for row in rows if row[c.LEDGER_TYPE] == LedgerType.LEDGER]
        stored = [row for row in rows if row[c.LEDGER_TYPE] != LedgerType.LEDGER]
        facts = self.reader.facts([row[c.LEDGER_ID] for row in ledgers])
        # The lists are read after the ledgers: if a ledger was CLOSED before its list was read, and the list does not
        # name it, the list never will. In the opposite order, a broker could add the ledger to the list after we read
        # the list and before we read the ledger.
        references = self.loader.load(row[c.REFERENCE_KEY] for row in ledgers)
        # for a loaded topic, only the broker's answer counts: the cursor's znode may still name a ledger that the
        # broker has replaced and deleted
        compacted = self.loader.compacted(row[c.REFERENCE_KEY] for row in ledgers if _is_compacted_reference(row))
        segments = self.loader.segments(row[a.MANAGED_LEDGER] for row in ledgers if _is_of_unnamed_segment(row))
        now_ms = self.clock.now_ms()
        checks: list[tuple[dict[str, Any], SuspectCheck, LedgerFacts | Unreadable | None]] = []
        unconfirmed = self._unconfirmed(ledgers, facts, references, now_ms)
        for row, fact, why in zip(ledgers, facts, unconfirmed, strict=True):
            if _is_of_unnamed_segment(row):
                check = check_of_segment(segments[row[a.MANAGED_LEDGER]], self.policy, now_ms=now_ms)
            elif _is_compacted_reference(row):
                check = _missing_compacted(row, fact, compacted[row[c.REFERENCE_KEY]])
            else:
                check = self._check_ledger(row, fact, references[row[c.REFERENCE_KEY]], now_ms, why)
            checks.append((row, check, fact))
        if stored:
            checks += [(row, check, None) for row, check in zip(stored, self.objects.check(stored), strict=True)]
        return [
            _with_check(row, self._if_readable(row, concluded(check) if is_second else check), fact, now_ms)
            for row, check, fact in checks
        ]

    def _unconfirmed(
        self,
        rows: Sequence[dict[str, Any]],
        facts: Sequence[LedgerFacts | Unreadable | None],
        references: Mapping[str, Reference],
        now_ms: int,
    ) -> list[Verdict | None]:
        """Check tiered storage for all ledgers whose verdict depends on it, in one call; return answers in order."""
        unconfirmed: list[Verdict | None] = [NOT_ASKED] * len(rows)
        if self.confirm is None:
            return unconfirmed
        offloaded = [
            at
            for at, (row, fact) in enumerate(zip(rows, facts, strict=True))
            if not row[a.IS_REFERENCE]
            and self._check_ledger(row, fact, references[row[c.REFERENCE_KEY]], now_ms).reason
            is Reason.OFFLOAD_UNCONFIRMED
        ]
        cases = [(request_of(rows[at]), references[rows[at][c.REFERENCE_KEY]]) for at in offloaded]
        for at, answer in zip(offloaded, self.confirm(cases) if cases else [], strict=True):
            unconfirmed[at] = answer
        return unconfirmed

    def _check_ledger(
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
            return check_of_verdict(Verdict(Outcome.RETRY, Reason.LEDGER_UNREADABLE, facts.detail))
        absent_since_ms = row[a.SEEN_MS] if row[c.REASON] in SEEN_ONCE else None
        case = Case(
            request=request_of(row),
            ledger=facts,
            reference=reference,
            absent_since_ms=absent_since_ms,
            unconfirmed=unconfirmed,
        )
        return check_of_verdict(judge(case, self.policy, now_ms=now_ms))

    def _if_readable(self, row: Mapping[str, Any], check: SuspectCheck) -> SuspectCheck:
        """Return the check, or UNKNOWN for a candidate if the walk could not read a path of its owner."""
        if not check.is_candidate or not self.unreadable:
            return check
        blocking = affected_by(owner_paths(row[c.REFERENCE_KEY]), self.unreadable)
        if blocking is None:
            return check
        return SuspectCheck(FindingClass.UNKNOWN, Reason.OWNER_UNREADABLE, f"{blocking} could not be read")


def _is_of_unnamed_segment(row: Mapping[str, Any]) -> bool:
    return bool(row[a.IS_REFERENCE]) and row[c.REASON] in (Reason.SEGMENT_UNNAMED, Reason.SEGMENT_AHEAD)


def _is_compacted_reference(row: Mapping[str, Any]) -> bool:
    is_missing = bool(row[a.IS_REFERENCE]) and not _is_of_unnamed_segment(row)
    return is_missing and row[c.COMPONENT] == LedgerComponent.COMPACTED_LEDGER


def _missing_compacted(
    row: Mapping[str, Any], facts: LedgerFacts | Unreadable | None, needed_id: int | None
) -> SuspectCheck:
    """Check a reference to a compacted ledger; needed_id: the answer of InUseLoader.compacted."""
    return check_of_missing(
        is_referenced=None if needed_id is None else needed_id == row[c.LEDGER_ID],
        is_there=None if isinstance(facts, Unreadable) else facts is not None,
    )


def _missing(row: Mapping[str, Any], facts: LedgerFacts | Unreadable | None, reference: Reference) -> SuspectCheck:
    is_referenced = None
    if reference.presence is not Presence.UNREADABLE:
        is_referenced = refers_to(reference, row[c.LEDGER_ID])
    return check_of_missing(
        is_referenced=is_referenced, is_there=None if isinstance(facts, Unreadable) else facts is not None
    )


def _with_check(
    row: Mapping[str, Any], check: SuspectCheck, facts: LedgerFacts | Unreadable | None, now_ms: int
) -> dict[str, Any]:
    changed = {a.LAST_CHANGE_MS: facts.last_change_ms} if isinstance(facts, LedgerFacts) else {}
    if _is_of_unnamed_segment(row) and isinstance(facts, LedgerFacts) and facts.metadata is not None:
        changed[c.BYTES] = facts.metadata.length_bytes  # a cursor does not name the length of its ledger
    return {
        **row,
        **changed,
        a.CLASS: str(check.finding_class),
        c.REASON: str(check.reason),
        c.DETAIL: check.detail,
        a.CANDIDATE: check.is_candidate,
        a.SEEN_MS: now_ms,
    }
