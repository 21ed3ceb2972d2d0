"""Limits how much may be deleted before an operator checks: by batch, hour, tenant, owner, and share of all ledgers.

A pure state machine: `apply` takes the state and an event, and returns the new state and why deleting must stop.

1. Before a chunk is swept, it is `Judged` by its requests: it can't delete more than they name. Only if that is too
   much, a dry run finds out what the chunk would delete, and the chunk is judged by that (`DryRun`).
2. After the sweep, `Committed` carries the deletes that the receipts record. A chunk that was interrupted
   (`Interrupted`) is judged again: the deletes that its earlier tries wrote to the journal count as done, up to what
   was requested.
3. If a limit would be exceeded, or the sources of the in-use sets are doubted (`Doubted`), the breaker trips (`Held`)
   until an operator resumes (`Resumed`). The resume forgets all earlier deletes, and lets that plan or doubt pass once,
   as long as nothing else was deleted since. A later run applies the resume too (`Recalled`).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from udfs.units import HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most deletes allowed."""

    per_batch: int
    per_hour: int
    per_hour_per_tenant: int
    per_hour_per_owner: int
    share_per_hour: float  # of the ledgers that existed an hour ago, 0 to 1
    share_applies_above: int  # the share limits clusters with more ledgers than this only


Planned = Mapping[tuple[str, str], int]
"""Deletes by (tenant, owner)."""


@dataclass(frozen=True, slots=True)
class DryRunPlan:
    """The deletes that a dry run found possible."""

    by_owner: Planned
    by_task: tuple[int, ...]  # in the order of Spark's partitions


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a query's batch that is about to be swept."""

    query: str
    batch_id: int
    since_ms: int  # start of the sweep (the time agreed with ZooKeeper)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastState:
    """The memory of the limits. The last chunk is the chunk that was judged last."""

    deleted: tuple[tuple[int, Planned], ...] = ()  # deletes of the last hour, as (at ms, by owner)
    batches: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # query -> (batch id, deletes of that batch)
    chunk: Chunk = Chunk("", -1, 0)  # the last chunk
    asked: Planned = field(default_factory=dict)  # the most that the last chunk could delete
    since_ms: int = 0  # start of the last chunk's first try; the journal is read from then on
    is_unfinished: bool = False  # the last chunk was interrupted, and its deletes are not known
    was_held: bool = False  # the breaker had tripped at our last check
    granted: str = ""  # the plan or doubt that an operator has resumed (see subject_of); "": none, or it was used
    plan_digest: str = ""  # of the last dry run's plan

    def last_hour(self, *, now_ms: int) -> Counter[tuple[str, str]]:
        """Deletes of the last hour by (tenant, owner)."""
        total: Counter[tuple[str, str]] = Counter()
        for at_ms, deletes in self.deleted:
            if at_ms > now_ms - HOUR_MS:
                total.update(deletes)
        return total

    def deleted_of_batch(self) -> int:
        """Return how much of the last chunk's batch was deleted."""
        batch_id, deletes = self.batches.get(self.chunk.query, (-1, 0))
        return deletes if batch_id == self.chunk.batch_id else 0


@dataclass(frozen=True, slots=True)
class Moment:
    """The time at which limits are checked."""

    ms: int
    existing: int  # how many ledgers exist then


@dataclass(frozen=True, slots=True)
class Recalled:
    """The service starts."""

    deletes: Sequence[tuple[int, str, str]]  # of the last hour, as (at ms, tenant, owner)
    granted: str  # the plan or doubt that an operator has resumed while the service did not run
    granted_ms: int  # when an operator resumed last
    now_ms: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A chunk is about to be swept. `apply` returns why a dry run is needed (None: it is not)."""

    chunk: Chunk
    asked: Planned  # the deletes that its requests name
    now: Moment


@dataclass(frozen=True, slots=True)
class DryRun:
    """A dry run of the last chunk has ended."""

    planned: Planned  # the deletes that the chunk would do
    journaled: Planned  # the deletes that its earlier tries may have done (see needs_journal)
    now: Moment


@dataclass(frozen=True, slots=True)
class Doubted:
    """The sources of the in-use sets of a query's chunk are doubted."""

    query: str
    why: str


@dataclass(frozen=True, slots=True)
class Held:
    """The breaker has tripped, now or in an earlier run."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The breaker does not hold the work (any more)."""

    granted: str  # the plan or doubt that an operator resumed, as the breaker had noted it


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The sweep of the last chunk was interrupted."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last chunk has its receipts."""

    deleted: Planned  # by the receipts
    is_doubtful: bool  # a task may have run twice, and deleted more than the receipts record
    journaled: Planned  # as in DryRun
    at_ms: int


Event = Recalled | Judged | DryRun | Doubted | Held | Resumed | Interrupted | Committed


def apply(limits: Limits, state: BlastState, event: Event) -> tuple[BlastState, str | None]:
    """Return the state after the event, and why deleting must stop (None: it may continue)."""
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
    """Return what an operator resumes, as the breaker notes it: a plan's digest, or a doubt's text."""
    return f"{query} {what}"


def needs_journal(state: BlastState, event: DryRun | Committed) -> bool:
    """Whether the journal has to be read for this event: only the journal records an unfinished chunk's deletes."""
    if isinstance(event, DryRun):
        return state.is_unfinished and sum(event.planned.values()) > 0
    return state.is_unfinished or event.is_doubtful


def exceeded(
    limits: Limits, planned: Planned, hour: Mapping[tuple[str, str], int], *, batch: int, existing: int
) -> str | None:
    """Name the first limit that `planned` would exceed, for the operator; None if it exceeds none.

    Args:
        limits: the limits to check.
        planned: the deletes to come.
        hour: deletes of the last hour.
        batch: deletes of this batch so far.
        existing: ledgers that exist now.
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
        since_ms = min(since_ms, state.since_ms)  # start of the first try; the clock may have gone back since
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
    """Count the deletes of the last hour that no operator has checked yet."""
    # The operator's clock may be wrong, so the time of a resume that is dated in the future is ignored. A delete
    # that is dated in the future counts as done now.
    since_ms = max(event.now_ms - HOUR_MS, event.granted_ms if event.granted_ms <= event.now_ms else 0)
    by_time: dict[int, Counter[tuple[str, str]]] = {}
    for at_ms, tenant, owner in event.deletes:
        if at_ms > since_ms:
            by_time.setdefault(min(at_ms, event.now_ms), Counter())[tenant, owner] += 1
    return replace(state, deleted=tuple(by_time.items()), granted=event.granted)


def _resumed(state: BlastState, event: Resumed) -> BlastState:
    """Forget all deletes up to now, which an operator has checked; the last chunk starts again."""
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
    """Return a digest that depends only on the owners and their numbers of deletes."""
    rows = sorted([*owner, n] for owner, n in planned.items() if n)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
