"""The limits in force: asks breaker, census, journal and clock, and hands what they say to udfs.blast_radius.

The breaker's state lies in ZooKeeper: it survives restarts, and `ledger-reaper resume --limit` clears it.
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

_CENSUS_EVERY_MS = HOUR_MS  # a share of what exists does not move faster than that


@dataclass(slots=True)
class BlastRadius:
    """One per service, asked by one thread at a time.

    census(): how many ledgers exist. journaled(query, batch id, since ms): what that batch has written to the journal
    since then, in order to delete it, by owner; each ledger or object once.
    """

    limits: Limits
    breaker: Breaker
    census: Callable[[], int]
    clock: Clock
    journaled: Callable[[str, int, int], Planned]
    state: BlastState = field(default_factory=BlastState)
    _existing: int = 0
    _counted_ms: int = -_CENSUS_EVERY_MS

    def recall(self, deleted: Iterable[tuple[int, str, str]]) -> None:
        """At start: take over what was deleted within the last hour, as (at ms, tenant, owner), a hold and a resume.

        Raises UnavailableError.
        """
        # A person may resume before the first chunk waits. What held at the start makes go_on look for that resume.
        granted = "" if self.held() else self.breaker.take_granted()
        self._apply(Recalled(list(deleted), granted, self.breaker.granted_ms(), self.clock.now_ms()))

    def judge(
        self, chunk: Chunk, asked: Planned, plan: Callable[[], DryRunPlan]
    ) -> tuple[str | None, tuple[int, ...] | None]:
        """Return why the chunk must not be swept (None: it may), and the most deletes by task.

        asked: deletes that its requests ask for. plan makes a dry run, and is called only where those are too many;
        where they are not, they bound the chunk themselves (None).
        """
        if not self._apply(Judged(chunk, asked, self._now())):
            return None, None
        exact = plan()
        dry_run = DryRun(exact.by_owner, {}, self._now())
        if needs_journal(self.state, dry_run):
            dry_run = DryRun(exact.by_owner, self._journaled(), dry_run.now)
        return self._apply(dry_run), exact.by_task

    def doubt(self, query: str, why: str) -> str | None:
        """Return why a chunk with doubted in-use sets must not be swept; None where a person resumed just that."""
        return self._apply(Doubted(query, why))

    def trip(self, why: str, query: str, doubt: str = "") -> None:
        """Stop deleting until a person has looked at this doubt about a query's chunk ("": at what it would delete)."""
        self.breaker.trip(why, subject_of(query, doubt or self.state.plan_digest))
        self._apply(Held())

    def held(self) -> str:
        """Return why nothing is deleted until a person resumes; "" where nothing holds. Raises UnavailableError."""
        why = self.breaker.reason()
        if why:
            self._apply(Held())
        return why

    def go_on(self) -> None:
        """Nothing holds the work. If something did, a person has looked and resumed."""
        if self.state.was_held:
            self._apply(Resumed(self.breaker.take_granted()))

    def interrupted(self) -> None:
        """The sweep of the chunk that was judged last broke off; that chunk will be judged again."""
        self._apply(Interrupted())

    def count(self, deleted: Planned, *, is_doubtful: bool) -> None:
        """Remember what the chunk that was judged last deleted. Raises UnavailableError: nothing was remembered.

        is_doubtful: more may have been deleted than that, by a task that was run twice.
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
