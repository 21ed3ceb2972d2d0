"""Applies the limits: passes facts from breaker, census, journal and clock to the state machine udfs.blast_radius.

The breaker's state is in ZooKeeper: it survives restarts, and `ledger-reaper resume --limit` clears it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from streaming.clock import Clock
from streaming.limits.breaker import Breaker
from udfs.blast_radius import (
    BlastState,
    Chunk,
    Committed,
    Doubted,
    DryRun,
    DryRunPlan,
    Event,
    Held,
    Interrupted,
    Judged,
    Limits,
    Moment,
    Planned,
    Recalled,
    Resumed,
    apply,
    needs_journal,
    subject_of,
)
from udfs.units import HOUR_MS

_CENSUS_EVERY_MS = HOUR_MS  # the limit by share of existing ledgers needs no newer count


@dataclass(slots=True, kw_only=True)
class BlastRadius:
    """One per service, used by one thread at a time."""

    limits: Limits
    breaker: Breaker
    census: Callable[[], int]  # counts the ledgers that exist
    clock: Clock
    # (query, batch id, since ms) -> journaled deletes of the batch since then, by owner; each ledger or object once
    journaled: Callable[[str, int, int], Planned]
    state: BlastState = field(default_factory=BlastState)
    _existing: int = 0
    _counted_ms: int = -_CENSUS_EVERY_MS

    def recall(self, deleted: Iterable[tuple[int, str, str]]) -> None:
        """At a start, restore the last hour's deletes, a hold and a resume. Raises UnavailableError.

        Args:
            deleted: the deletes, as (at ms, tenant, owner).
        """
        # If there is a hold, go_on() reads the resume, even if the operator gives it before the first chunk waits.
        granted = "" if self.held() else self.breaker.take_granted()
        self._apply(Recalled(list(deleted), granted, self.breaker.granted_ms(), self.clock.now_ms()))

    def judge(
        self, chunk: Chunk, asked: Planned, plan: Callable[[], DryRunPlan]
    ) -> tuple[str | None, tuple[int, ...] | None]:
        """Return (why, most): why the chunk must not be swept, and the most deletes of each task.

        `why` is None if the chunk may be swept; `most` is None if no bound is needed.

        Args:
            chunk: the chunk.
            asked: the deletes that its requests ask for. If they are within the limits, they bound the chunk.
            plan: makes a dry run; called only if `asked` exceeds a limit.
        """
        if not self._apply(Judged(chunk, asked, self._now())):
            return None, None
        exact = plan()
        dry_run = DryRun(exact.by_owner, {}, self._now())
        if needs_journal(self.state, dry_run):
            dry_run = DryRun(exact.by_owner, self._journaled(), dry_run.now)
        return self._apply(dry_run), exact.by_task

    def doubt(self, query: str, why: str) -> str | None:
        """Return why a chunk with doubted in-use sets must not be swept.

        None if an operator has resumed exactly this doubt.
        """
        return self._apply(Doubted(query, why))

    def trip(self, why: str, query: str, doubt: str = "") -> None:
        """Stop deleting until an operator has checked the reason and resumes.

        Args:
            why: shown to the operator.
            query: the query.
            doubt: what the resume will allow; "": the plan of the last dry run.
        """
        self.breaker.trip(why, subject_of(query, doubt or self.state.plan_digest))
        self._apply(Held())

    def held(self) -> str:
        """Return why nothing is deleted until an operator resumes; "" if there is no hold. Raises UnavailableError."""
        why = self.breaker.reason()
        if why:
            self._apply(Held())
        return why

    def go_on(self) -> None:
        """Record that nothing holds the work; if a hold was there before, an operator has resumed."""
        if self.state.was_held:
            self._apply(Resumed(self.breaker.take_granted()))

    def interrupted(self) -> None:
        """Record that the sweep of the chunk judged last was interrupted; the chunk will be judged again."""
        self._apply(Interrupted())

    def count(self, deleted: Planned, *, is_doubtful: bool) -> None:
        """Count the deletes of the chunk judged last. Raises UnavailableError; then nothing is counted.

        Args:
            deleted: the deletes, by owner.
            is_doubtful: a task that ran twice may have deleted more.
        """
        committed = Committed(deleted, is_doubtful, {}, self.clock.now_ms())
        if needs_journal(self.state, committed):
            committed = Committed(deleted, is_doubtful, self._journaled(), committed.at_ms)
        self._apply(committed)

    def _apply(self, event: Event) -> str | None:
        self.state, why = apply(self.limits, self.state, event)
        return why

    def _journaled(self) -> Planned:
        return self.journaled(self.state.chunk.query, self.state.chunk.batch_id, self.state.since_ms)

    def _now(self) -> Moment:
        now_ms = self.clock.now_ms()
        if now_ms - self._counted_ms >= _CENSUS_EVERY_MS:
            self._existing, self._counted_ms = self.census(), now_ms
        return Moment(now_ms, self._existing)
