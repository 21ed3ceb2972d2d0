"""How much may be deleted before a person looks: by batch, hour, tenant, owner, and as a share of what exists.

A pure state machine: `apply` takes the state and an event, and returns the new state and why deleting must not go on.

1. Before a chunk is swept, it is `Judged` by its requests: it can't delete more than they name. Only where that is too
   much, a dry run finds out what it would delete, and the chunk is judged by that (`DryRun`).
2. After the sweep, `Committed` tells what the receipts say was deleted. A chunk that broke off (`Interrupted`) is
   judged again: what its earlier tries wrote to the journal counts as deleted, up to what it was asked for.
3. Where a limit would be broken, or the sources of the in-use sets are doubted (`Doubted`), the breaker trips (`Held`)
   until a person resumes (`Resumed`). The resume forgets what was deleted before. It lets that one plan or doubt pass,
   once, as long as nothing else was deleted since. It counts for a later run too (`Recalled`).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from udfs.units import HOUR_MS


@dataclass(frozen=True, slots=True)
class Limits:
    """Most deletes allowed. share: of the ledgers that existed an hour ago, 0 to 1; only above share_applies_above."""

    per_batch: int
    per_hour: int
    per_hour_per_tenant: int
    per_hour_per_owner: int
    share_per_hour: float
    share_applies_above: int


Planned = Mapping[tuple[str, str], int]
"""Deletes by (tenant, owner)."""


@dataclass(frozen=True, slots=True)
class DryRunPlan:
    """What a dry run found deletable: by (tenant, owner), and by task, in the order of Spark's partitions."""

    by_owner: Planned
    by_task: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a query's batch that is about to be swept, and since when (the time agreed with ZooKeeper)."""

    query: str
    batch_id: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class BlastState:
    """What the limits remember. The last chunk is the one that was judged last.

    deleted: deletes of the last hour, as (at ms, by owner).
    batches: query -> (batch id, what was deleted of that batch).
    asked: the most that the last chunk could delete.
    since_ms: when the first try of the last chunk began; the journal is asked for what was written since then.
    is_unfinished: the last chunk broke off, and what it has deleted is not known.
    was_held: the breaker had tripped when we looked last.
    granted: the one plan or doubt that a person has resumed (see subject_of); "": none, or it was used.
    plan_digest: stands for what the last dry run planned to delete.
    """

    deleted: tuple[tuple[int, Planned], ...] = ()
    batches: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    chunk: Chunk = Chunk("", -1, 0)
    asked: Planned = field(default_factory=dict)
    since_ms: int = 0
    is_unfinished: bool = False
    was_held: bool = False
    granted: str = ""
    plan_digest: str = ""

    def last_hour(self, *, now_ms: int) -> Counter[tuple[str, str]]:
        """Deletes of the last hour by (tenant, owner)."""
        total: Counter[tuple[str, str]] = Counter()
        for at_ms, deletes in self.deleted:
            if at_ms > now_ms - HOUR_MS:
                total.update(deletes)
        return total

    def deleted_of_batch(self) -> int:
        """What was deleted of the last chunk's batch."""
        batch_id, deletes = self.batches.get(self.chunk.query, (-1, 0))
        return deletes if batch_id == self.chunk.batch_id else 0


@dataclass(frozen=True, slots=True)
class Moment:
    """When a limit is looked at, and how many ledgers exist then."""

    ms: int
    existing: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """The service starts. deletes: those of the last hour, as (at ms, tenant, owner).

    granted: what a person has resumed while no run was there to go on. granted_ms: when a person resumed last.
    """

    deletes: Sequence[tuple[int, str, str]]
    granted: str
    granted_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A chunk is about to be swept, and asked for so many deletes. Answered with why a dry run is needed."""

    chunk: Chunk
    asked: Planned
    now: Moment


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the last chunk would delete. journaled: what its earlier tries may have deleted (see needs_journal)."""

    planned: Planned
    journaled: Planned
    now: Moment


@dataclass(frozen=True, slots=True)
class Doubted:
    """The sources of the in-use sets of a query's chunk are doubted, for this reason."""

    query: str
    why: str


@dataclass(frozen=True, slots=True)
class Held:
    """The breaker has tripped, now or in an earlier run."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The breaker does not hold the work (any more). granted: what a person resumed, as the breaker had noted it."""

    granted: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The sweep of the last chunk broke off."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last chunk has its receipts, which say what was deleted.

    is_doubtful: a task may have run twice, so that more was deleted than that. journaled: as in DryRun.
    """

    deleted: Planned
    is_doubtful: bool
    journaled: Planned
    at_ms: int


Event = Recalled | Judged | DryRun | Doubted | Held | Resumed | Interrupted | Committed


def apply(limits: Limits, state: BlastState, event: Event) -> tuple[BlastState, str | None]:
    """Return the state after the event, and why deleting must not go on (None: it may)."""
    match event:
        case Judged():
            return _judged(limits, state, event)
        case DryRun():
            return _judged_by_dry_run(limits, state, event)
        case Doubted():
            return _pass_if_granted(state, subject_of(event.query, event.why), event.why)
        case _:
            return _after(state, event), None


def subject_of(query: str, what: str) -> str:
    """What a person resumes, as the breaker notes it: a query's plan (its digest) or doubt, word by word."""
    return f"{query} {what}"


def needs_journal(state: BlastState, event: DryRun | Committed) -> bool:
    """Whether the journal has to be read for this event: only it knows what an unfinished chunk has deleted."""
    if isinstance(event, DryRun):
        return state.is_unfinished and sum(event.planned.values()) > 0
    return state.is_unfinished or event.is_doubtful


def exceeded(
    limits: Limits, planned: Planned, hour: Mapping[tuple[str, str], int], *, batch: int, existing: int
) -> str | None:
    """Name the first limit that `planned` would break, in the operator's words; None where it may go on.

    hour: deletes of the last hour; batch: deletes of this batch so far; existing: ledgers that exist now.
    """
    coming, past = sum(planned.values()), sum(hour.values())
    if not coming:
        return None
    if batch + coming > limits.per_batch:
        return f"{batch + coming} deletes in one batch; limits.max_deletes_per_batch is {limits.per_batch}"
    if past + coming > limits.per_hour:
        return f"{past + coming} deletes within an hour; limits.max_deletes_per_hour is {limits.per_hour}"
    before = existing + past
    if before > limits.share_applies_above and past + coming > limits.share_per_hour * before:
        share, most = (past + coming) / before, limits.share_per_hour
        return f"{share:.0%} of all {before} ledgers within an hour; limits.max_share_per_hour is {most:.0%}"
    return _crowded(limits, planned, hour)


def _crowded(limits: Limits, planned: Planned, hour: Mapping[tuple[str, str], int]) -> str | None:
    tenants: Counter[str] = Counter()
    for deletes in (planned, hour):
        for (tenant, _), n in deletes.items():
            tenants[tenant] += n
    for tenant, n in tenants.items():
        if n > limits.per_hour_per_tenant and any(key[0] == tenant for key in planned):
            most = limits.per_hour_per_tenant
            return f"{n} deletes of tenant {tenant} within an hour; limits.max_deletes_per_hour_per_tenant is {most}"
    for (tenant, owner), n in planned.items():
        in_all = n + hour.get((tenant, owner), 0)
        if in_all > limits.per_hour_per_owner:
            most = limits.per_hour_per_owner
            return f"{in_all} deletes of {owner} within an hour; limits.max_deletes_per_hour_per_owner is {most}"
    return None


def _judged(limits: Limits, state: BlastState, event: Judged) -> tuple[BlastState, str | None]:
    since_ms = event.chunk.since_ms
    if state.is_unfinished:
        since_ms = min(since_ms, state.since_ms)  # of its first try; the clock may have gone back since
    after = replace(state, chunk=event.chunk, asked=event.asked, since_ms=since_ms)
    return after, _broken(limits, after, event.asked, event.now)


def _judged_by_dry_run(limits: Limits, state: BlastState, event: DryRun) -> tuple[BlastState, str | None]:
    after = replace(state, plan_digest=_digest(event.planned))
    coming = event.planned
    if needs_journal(state, event):
        coming = _at_most(Counter(dict(event.planned)) + Counter(dict(event.journaled)), state.asked)
    why = _broken(limits, after, coming, event.now)
    return _pass_if_granted(after, subject_of(after.chunk.query, after.plan_digest), why) if why else (after, None)


def _pass_if_granted(state: BlastState, subject: str, why: str) -> tuple[BlastState, str | None]:
    return (replace(state, granted=""), None) if state.granted == subject else (state, why)


def _after(state: BlastState, event: Recalled | Held | Resumed | Interrupted | Committed) -> BlastState:
    match event:
        case Recalled():
            return _recalled(state, event)
        case Held():
            return replace(state, was_held=True)
        case Resumed():
            return _resumed(state, event)
        case Interrupted():
            return replace(state, is_unfinished=True)
        case Committed():
            return _committed(state, event)


def _recalled(state: BlastState, event: Recalled) -> BlastState:
    """What a person has looked at does not count; nor does what is older than an hour.

    The person's clock may be wrong: a resume in the future proves nothing. A delete in the future was one just now.
    """
    since_ms = max(event.now_ms - HOUR_MS, event.granted_ms if event.granted_ms <= event.now_ms else 0)
    by_time: dict[int, Counter[tuple[str, str]]] = {}
    for at_ms, tenant, owner in event.deletes:
        if at_ms > since_ms:
            by_time.setdefault(min(at_ms, event.now_ms), Counter())[tenant, owner] += 1
    return replace(state, deleted=tuple(by_time.items()), granted=event.granted)


def _resumed(state: BlastState, event: Resumed) -> BlastState:
    """A person has looked at all that was deleted up to now; the last chunk begins anew."""
    if not state.was_held:
        return state
    return replace(
        state,
        deleted=(),
        batches={},
        since_ms=state.chunk.since_ms,
        is_unfinished=False,
        was_held=False,
        granted=event.granted,
    )


def _committed(state: BlastState, event: Committed) -> BlastState:
    counted = Counter(dict(event.deleted))
    if needs_journal(state, event):
        counted |= _at_most(event.journaled, state.asked)
    query, batch_id = state.chunk.query, state.chunk.batch_id
    is_used = counted.total() > 0 or state.granted.startswith(subject_of(query, ""))
    recent = tuple(entry for entry in state.deleted if entry[0] > event.at_ms - HOUR_MS)
    return replace(
        state,
        deleted=(*recent, (event.at_ms, counted)) if counted else recent,
        batches={**state.batches, query: (batch_id, state.deleted_of_batch() + counted.total())},
        is_unfinished=False,
        granted="" if is_used else state.granted,
    )


def _broken(limits: Limits, state: BlastState, coming: Planned, now: Moment) -> str | None:
    hour = state.last_hour(now_ms=now.ms)
    return exceeded(limits, coming, hour, batch=state.deleted_of_batch(), existing=now.existing)


def _at_most(deletes: Planned, asked: Planned) -> Counter[tuple[str, str]]:
    return Counter({owner: min(n, asked.get(owner, n)) for owner, n in deletes.items()})


def _digest(planned: Planned) -> str:
    """The same for the same deletes of the same owners."""
    rows = sorted([*owner, n] for owner, n in planned.items() if n)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
