"""The words of a sweep: a job (one request), what the sweeper needs, and what became of the job.

Several requests of a batch may mean the same ledger or the same objects. Those that are the same in all that a verdict
rests on share one: the first of them, the lead, is judged and worked off, the others take their answer from it. Those
that differ (they name different owners) are each judged for themselves; at most one of them deletes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

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
    def asks(self) -> tuple[str, str, int | None]:
        """What a verdict on the ledger or the objects rests on: two jobs with the same may share one."""
        return self.key, self.job.request.managed_ledger, self.job.absent_since_ms

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
    is_anothers: the ledger's own metadata names another owner than the request.
    """

    path: str
    sent: Verdict | None = None
    was_there: bool = False
    is_anothers: bool = False

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


_Job = TypeVar("_Job", bound=OpenJob)


def one_for_each(deletable: Sequence[_Job], what: Callable[[_Job], str]) -> tuple[list[_Job], list[_Job]]:
    """Divide jobs that were judged deletable: the first for each ledger or upload, and the others, which are kept.

    Whatever becomes of the first, the others have to be judged again after that. what: names the ledger or upload.
    """
    first: dict[str, _Job] = {}
    others = []
    for one in deletable:
        if first.setdefault(what(one), one) is not one:
            one.later(Reason.DUPLICATE, "another request for it was worked off at the same time; looking again later")
            others.append(one)
    return list(first.values()), others


def swept_of(one: OpenJob, lead: OpenJob, policy: Policy, *, now_ms: int, refreshed: bool = False) -> Swept:
    """Say what became of a job whose lead, which asks for the same of the same owner, is finished.

    It shares the verdict of its lead; only one of them says DELETED.
    """
    verdict, sources = lead.verdict, lead.sources(policy)
    if verdict is None:
        raise AssertionError(f"no verdict for {lead.job.request}")
    if one is not lead and verdict.outcome is Outcome.DELETED:
        why = "asked for twice in one batch"
        return Swept(Verdict(Outcome.ALREADY_GONE, Reason.DUPLICATE, why), sources=sources)
    is_first_look = verdict.reason in _NEEDS_SECOND_LOOK
    since_ms = first_sight_ms(one.job.absent_since_ms, policy, now_ms=now_ms) if is_first_look else None
    return Swept(verdict, refreshed, since_ms, lead.length_bytes, sources)
