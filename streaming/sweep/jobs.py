"""The words of a sweep: a job (one request), what the sweeper needs, and what became of the job.

Several requests of a batch may mean the same ledger or the same objects. The first of them, the lead, is judged and
worked off; the others take their answer from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from streaming.state.journal import JournalEntry
from udfs.completeness import certificate
from udfs.judge import Policy, first_sight_ms, kept_by_shrinkage
from udfs.paths import Layout
from udfs.records import Counts, Outcome, PendingDelete, Reason, Reference, Verdict

_NEEDS_SECOND_LOOK = frozenset({Reason.OWNER_ABSENT_ONCE, Reason.UNREFERENCED_ONCE})


@dataclass(frozen=True, slots=True)
class Job:
    """One request, and what earlier looks at its owner showed.

    absent_since_ms: when we ourselves first saw its owner gone, or its ledger unreferenced (None: never).
    baseline: how many ledgers its owner's sources named at the last look that can be trusted (None: not known).
    """

    request: PendingDelete
    absent_since_ms: int | None = None
    baseline: Counts | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """What became of a Job. The outcome DELETED here means: deleted, looked for again, and not found.

    refreshed: the cached reference was out of date. sources: what the owner's sources said, as
    udfs.completeness.certificate writes it; "" where they were not asked.
    """

    verdict: Verdict
    refreshed: bool = False
    absent_since_ms: int | None = None
    length_bytes: int = 0
    sources: str = ""


@dataclass(frozen=True, slots=True)
class SweepRules:
    """What a sweep of ledgers goes by.

    layout, ledgers_root: where BookKeeper keeps ledgers in ZooKeeper. epoch: path and version of the znode that every
    new instance of this service changes at its start; a delete that checks it proves that no newer instance runs.
    """

    layout: Layout
    ledgers_root: str
    epoch: tuple[str, int]
    policy: Policy


class Journal(Protocol):
    """Where deletes are written down before they happen."""

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Make entries durable; returns only then. Raises UnavailableError."""
        ...


class Limiter(Protocol):
    """How fast deletes may go."""

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together."""
        ...

    def wait_for(self, deletes: int) -> None:
        """Block until so many deletes may be sent."""
        ...

    def done(self) -> None:
        """Take note that the deletes which were waited for last have been answered."""
        ...


class GroupSweeper(Protocol):
    """Works off the requests of one ledger type."""

    def sweep(
        self, jobs: Sequence[Job], cached: Mapping[str, Reference], *, limiter: Limiter | None = None
    ) -> list[Swept]:
        """Work off jobs, in order. Raises UnavailableError (nothing is known; do all again), FencedError."""
        ...


@dataclass(slots=True)
class OpenJob:
    """A job on its way. key: its reference key (udfs.references). judged_on: the reference that its verdict rests on.

    length_bytes: how much there is to delete.
    """

    job: Job
    key: str
    verdict: Verdict | None = None
    judged_on: Reference | None = None
    length_bytes: int = 0

    @property
    def is_to_delete(self) -> bool:
        """Whether the verdict is, for now, to delete."""
        return self.verdict is not None and self.verdict.outcome is Outcome.DELETED

    @property
    def is_in_use(self) -> bool:
        """Whether the verdict is, for now, that the owner refers to it."""
        return self.verdict is not None and self.verdict.reason is Reason.IN_USE

    def later(self, reason: Reason, detail: str) -> None:
        """Keep it for now."""
        self.verdict = Verdict(Outcome.RETRY, reason, detail)

    def sources(self, policy: Policy) -> str:
        """Return the certificate of what the owner's sources said; "" where they were not asked."""
        if self.judged_on is None:
            return ""
        has_shrunk = kept_by_shrinkage(self.judged_on, self.job.baseline, policy) is not None
        return certificate(self.judged_on, self.job.baseline if has_shrunk else None)


@dataclass(slots=True, kw_only=True)
class LedgerJob(OpenJob):
    """A job for a ledger in BookKeeper. path: the ledger's znode.

    sent: the verdict with which a delete was sent whose answer got lost. was_there: we saw the ledger.
    """

    path: str
    sent: Verdict | None = None
    was_there: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether we saw the ledger, keep it, and sent no delete of it."""
        return self.was_there and self.sent is None and self.verdict is not None and not self.is_to_delete

    def basis(self) -> Reference:
        """Return the reference that the verdict rests on."""
        if self.judged_on is None:
            raise AssertionError(f"{self.path} was not judged")
        return self.judged_on

    def found_gone(self) -> Verdict:
        """Return the verdict for a ledger that is gone after a delete of ours whose answer got lost."""
        if self.sent is None:
            raise AssertionError(f"no delete of {self.path} was sent")
        return replace(self.sent, detail="the answer was lost; looked again")


def swept_of(one: OpenJob, lead: OpenJob, policy: Policy, *, now_ms: int, refreshed: bool = False) -> Swept:
    """Say what became of a job whose lead is finished.

    A request that equals the lead's shares its verdict; only one of them says DELETED. A request that differs (it
    names another owner for the same ledger) has to be judged for itself, so it comes back later.
    """
    verdict, sources = lead.verdict, lead.sources(policy)
    if verdict is None:
        raise AssertionError(f"no verdict for {lead.job.request}")
    if one is not lead:
        if one.job.request != lead.job.request:
            why = "another request for the same ledger or objects went first"
            return Swept(Verdict(Outcome.RETRY, Reason.DUPLICATE, why), sources=sources)
        if verdict.outcome is Outcome.DELETED:
            why = "asked for twice in one batch"
            return Swept(Verdict(Outcome.ALREADY_GONE, Reason.DUPLICATE, why), sources=sources)
    is_first_look = verdict.reason in _NEEDS_SECOND_LOOK
    since_ms = first_sight_ms(one.job.absent_since_ms, policy, now_ms=now_ms) if is_first_look else None
    return Swept(verdict, refreshed, since_ms, lead.length_bytes, sources)
