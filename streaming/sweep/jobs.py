"""A job is one request on its way through a sweep; this module has its records, and the ports of a sweeper.

Several requests of a batch may name the same ledger or the same objects. Jobs whose verdicts rest on the same facts
share one verdict: the first of them, the lead, is judged and processed, and the others take its result. Jobs that
differ (they name different owners) are judged separately, and at most one of them deletes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from streaming.in_use.loader import InUseLoader
from streaming.state.journal import JournalEntry
from udfs.owners.completeness import certificate
from udfs.paths import Layout
from udfs.records import Counts, LedgerComponent, Outcome, PendingDelete, Presence, Reason, Reference, Verdict
from udfs.verdicts.judge import Policy, first_sight_ms, is_above_newest, kept_by_shrinkage

_NEEDS_SECOND_CHECK = frozenset({Reason.OWNER_ABSENT_ONCE, Reason.UNREFERENCED_ONCE})


@dataclass(frozen=True, slots=True)
class Job:
    """One request, and the results of earlier checks of its owner."""

    request: PendingDelete
    absent_since_ms: int | None = None  # when we first saw the owner gone, or the ledger unreferenced; None: never
    baseline: Counts | None = None  # how many ledgers the owner's sources named at the last check that can be trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The result of a Job. The outcome DELETED means: deleted, checked again, and not found."""

    verdict: Verdict
    refreshed: bool = False  # the cached reference was out of date
    absent_since_ms: int | None = None
    length_bytes: int = 0
    sources: str = ""  # what the owner's sources returned (udfs.owners.completeness); "" if they were not read


@dataclass(frozen=True, slots=True)
class SweepRules:
    """The settings of a sweep of ledgers."""

    # where BookKeeper keeps ledgers in ZooKeeper
    layout: Layout
    ledgers_root: str
    # Path and version of the znode that every new instance of this service changes when it starts. A delete that
    # checks it proves that no newer instance runs.
    epoch: tuple[str, int]
    policy: Policy


class Journal(Protocol):
    """Records deletes before they happen: state.journal.ParquetJournal; in a dry run sweep.dry_run.NoJournal."""

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Make entries durable; returns only then. Raises UnavailableError."""
        ...


class Limiter(Protocol):
    """Limits the rate of deletes: a class of sweep/pace.py."""

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together."""
        ...

    def wait_for(self, deletes: int) -> None:
        """Block until so many deletes may be sent."""
        ...

    def done(self) -> None:
        """Note that the deletes of the last `wait_for` have been answered."""
        ...


class GroupSweeper(Protocol):
    """Sweeps the requests of one ledger type: ledgers.Sweeper, OffloadSweeper, SnapshotSweeper or
    SegmentSweeper.
    """

    def sweep(
        self, jobs: Sequence[Job], cached: Mapping[str, Reference], *, limiter: Limiter | None = None
    ) -> list[Swept]:
        """Sweep jobs; return their results in order.

        Raises UnavailableError (nothing is known; repeat all jobs), FencedError.
        """
        ...


@dataclass(slots=True)
class OpenJob:
    """A job in progress."""

    given: Job  # as the sweep received it
    key: str  # its reference key (udfs.owners.references)
    verdict: Verdict | None = None
    judged_on: Reference | None = None  # the reference that the verdict rests on
    length_bytes: int = 0  # how much there is to delete

    @property
    def request(self) -> PendingDelete:
        """Return the request."""
        return self.given.request

    @property
    def rests_on(self) -> tuple[str, str, int | None]:
        """What a verdict on the ledger or the objects rests on: jobs with equal values may share a verdict."""
        # with the signed sighting: a forged request for the same ledger must not share the verdict of the true one
        return self.key, self.request.managed_ledger, self.given.absent_since_ms

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
        """Return the certificate of what the owner's sources returned; "" if they were not read."""
        if self.judged_on is None:
            return ""
        has_shrunk = kept_by_shrinkage(self.judged_on, self.given.baseline, policy) is not None
        return certificate(self.judged_on, self.given.baseline if has_shrunk else None)


@dataclass(slots=True, kw_only=True)
class LedgerJob(OpenJob):
    """A job for a ledger in BookKeeper."""

    path: str  # the ledger's znode
    sent: Verdict | None = None  # the verdict of a delete that was sent and whose answer got lost
    was_there: bool = False  # we saw the ledger
    is_anothers: bool = False  # the ledger's own metadata names another owner than the request does

    @property
    def is_kept(self) -> bool:
        """Whether we saw the ledger, keep it, and sent no delete for it."""
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
        return replace(self.sent, detail="the answer was lost; checked again")


class SweepReferences:
    """The references of owners for one sweep: cached if the delete's version check protects them, else read now.

    By key; references that this sweep has read itself replace those that the driver cached.
    """

    def __init__(self, loader: InUseLoader, cached: Mapping[str, Reference]) -> None:
        self._loader = loader
        self._cached = cached
        self._fresh: dict[str, Reference] = {}
        self._stale: set[str] = set()

    def __getitem__(self, key: str) -> Reference:
        return self._fresh[key] if key in self._fresh else self._cached[key]

    def prepare(self, pending: Sequence[OpenJob]) -> None:
        """Read the references that the cache does not have, or for which it may not answer."""
        missing = {job.key for job in pending if job.key not in self._fresh and not self._may_answer(job)}
        if missing:
            self.reload(missing)

    def reload(self, keys: Iterable[str]) -> None:
        """Read references again; a cached reference that rests on other znode versions was stale."""
        for key, reference in self._loader.load(keys).items():
            cached = self._cached.get(key)
            if cached is not None and cached.checks != reference.checks:
                self._stale.add(key)
            self._fresh[key] = reference

    def is_cached(self, key: str) -> bool:
        """Whether the reference comes from the cache."""
        return key not in self._fresh

    def was_stale(self, key: str) -> bool:
        """Whether the cached reference turned out to be old."""
        return key in self._stale

    def _may_answer(self, job: OpenJob) -> bool:
        """Whether the cache may answer: a ledger is kept, or a delete can check the znode version of its owner."""
        reference = self._cached.get(job.key)
        if reference is not None and reference.presence is Presence.UNREADABLE and reference.is_unavailable:
            return True  # the driver has just waited for brokers in vain; it keeps the ledger
        if job.request.component is LedgerComponent.COMPACTED_LEDGER:
            return False  # its reference changes without any znode's version changing
        # an absent owner has no znode version that the delete could check
        if reference is None or reference.presence is not Presence.PRESENT:
            return False
        # a ledger that is newer than all ledgers of the cached list may have been added to the list since
        return not is_above_newest(job.request, reference)


_Job = TypeVar("_Job", bound=OpenJob)


def split_duplicates(deletable: Sequence[_Job], name_of: Callable[[_Job], str]) -> tuple[list[_Job], list[_Job]]:
    """Split jobs that were judged deletable into the first for each ledger or upload, and its duplicates.

    Duplicates get RETRY: whatever happens to the first, they have to be judged again after that.

    Args:
        deletable: the jobs, in order.
        name_of: returns the name of a job's ledger or upload.
    """
    first: dict[str, _Job] = {}
    duplicates = []
    for job in deletable:
        if first.setdefault(name_of(job), job) is not job:
            job.later(Reason.DUPLICATE, "another request for it was processed at the same time; checking again later")
            duplicates.append(job)
    return list(first.values()), duplicates


def swept_of(job: OpenJob, lead: OpenJob, policy: Policy, *, now_ms: int, refreshed: bool = False) -> Swept:
    """Return the result of a job whose lead, which has the same `rests_on`, is finished.

    The job shares the verdict of its lead, but only the lead itself reports DELETED.
    """
    verdict, sources = lead.verdict, lead.sources(policy)
    if verdict is None:
        raise AssertionError(f"no verdict for {lead.request}")
    if job is not lead and verdict.outcome is Outcome.DELETED:
        why = "requested twice in one batch"
        # a ledger must not be counted as deleted twice
        return Swept(verdict=Verdict(Outcome.ALREADY_GONE, Reason.DUPLICATE, why), sources=sources)
    is_first_check = verdict.reason in _NEEDS_SECOND_CHECK
    since_ms = first_sight_ms(job.given.absent_since_ms, policy, now_ms=now_ms) if is_first_check else None
    return Swept(
        verdict=verdict, refreshed=refreshed, absent_since_ms=since_ms, length_bytes=lead.length_bytes, sources=sources
    )
