"""The words of a sweep: what goes in, what comes out, what it needs, and a job on its way in between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from streaming.state.journal import JournalEntry
from udfs.judge import Policy
from udfs.paths import Layout
from udfs.records import Counts, Outcome, PendingDelete, Reason, Reference, Verdict


@dataclass(frozen=True, slots=True)
class Job:
    """One request and when we ourselves first saw its owner gone, or its ledger unreferenced (None: never).

    believed: how much its owner's sources named when they were last believed (None: not known).
    """

    request: PendingDelete
    absent_since_ms: int | None = None
    believed: Counts | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """What became of a Job. DELETED here is verified. refreshed: the cached reference was stale.

    sources: certificate of what its owner's sources said; "" where they were not asked.
    """

    verdict: Verdict
    refreshed: bool = False
    absent_since_ms: int | None = None
    length_bytes: int = 0
    sources: str = ""


@dataclass(frozen=True, slots=True)
class SweepRules:
    """What a sweep needs to know. epoch: (path, version) that proves we are still the one."""

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
        """Those waited for last were answered."""
        ...


@dataclass(slots=True)
class OpenJob:
    """A job on its way. judged_on: the reference that its verdict rests on, whatever is read later.

    allowed: the verdict with which a delete was sent whose answer was lost. why_again: what to say if rounds run out.
    was_there: the ledger existed when it was looked at.
    """

    job: Job
    key: str
    path: str
    judged_on: Reference | None = None
    verdict: Verdict | None = None
    allowed: Verdict | None = None
    why_again: Verdict | None = None
    length_bytes: int = 0
    was_there: bool = False

    @property
    def is_to_delete(self) -> bool:
        """Whether the verdict of now is to delete."""
        return self.verdict is not None and self.verdict.outcome is Outcome.DELETED

    @property
    def is_kept(self) -> bool:
        """Whether it was there, and nothing of ours may have deleted it."""
        return self.was_there and self.allowed is None and self.verdict is not None and not self.is_to_delete

    def basis(self) -> Reference:
        """The reference that the verdict rests on."""
        if self.judged_on is None:
            raise AssertionError(f"{self.path} was not judged")
        return self.judged_on

    def later(self, reason: Reason, detail: str) -> None:
        """Keep it for now."""
        self.verdict = self.why_again = Verdict(Outcome.RETRY, reason, detail)

    def found_gone(self) -> Verdict:
        """Our own delete, whose answer was lost on the way: it was allowed when it was sent."""
        if self.allowed is None:
            raise AssertionError(f"no delete of {self.path} was sent")
        return replace(self.allowed, detail="the answer was lost; looked again")
