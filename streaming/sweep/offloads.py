"""Look, read the owner, write down, read the owner again, delete, look again: one group of offload requests.

S3 has no transaction that a delete could carry its proof in. What stands in for it:
1. the objects are looked at before the owner is read: a UUID that the list does not name after that never returns;
2. owners are always read now, never from the cache; their versions (and our epoch's) are looked at once more right
   before the delete, and who changed in between is read and judged again;
3. the data object goes first, the index last: it holds the proof of ownership, so a pair that was half deleted
   can still be proven by whoever comes next;
4. each half is looked for afterwards: "deleted" is said only of what is not found.
A store that fails keeps its own requests only; those in other buckets go on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from streaming.clock import Clock
from streaming.errors import FencedError, RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore
from streaming.state.journal import ObjectEntry
from streaming.sweep.jobs import Job, Limiter, Swept
from streaming.sweep.offload_jobs import ObjectJournal, OffloadJob, OffloadRules, Stores, opened
from streaming.sweep.offload_steps import abort_uploads, delete_data, delete_indexes, kept_versions, look
from udfs.completeness import certificate
from udfs.judge import kept_by_shrinkage, seen_before
from udfs.judge_offload import OffloadCase, judge_offload
from udfs.offload_target import Bucket
from udfs.records import Outcome, Reason, Reference, Verdict
from udfs.references import fixed_paths, owner_of

_NAMES_AT_ONCE = 4_000  # four full DeleteObjects in flight; more would only lengthen the way from look to delete
_ABSENT = -1
_CONFIRMED_AT_MOST = 100  # kept objects looked for once more; a request each, and S3 has no bulk look

_T = TypeVar("_T")


class OffloadSweeper:
    """Works off groups of OFFLOAD_LEDGER requests. One per worker process; holds no state between groups."""

    def __init__(
        self, stores: Stores, loader: InUseLoader, journal: ObjectJournal, clock: Clock, rules: OffloadRules
    ) -> None:
        self._stores = stores
        self._loader = loader
        self._journal = journal
        self._clock = clock
        self._rules = rules

    def sweep(
        self, jobs: Sequence[Job], _cached: Mapping[str, Reference], *, limiter: Limiter | None = None
    ) -> list[Swept]:
        """Work off jobs, in order. Raises UnavailableError (ZooKeeper or journal: do all again), FencedError."""
        begun = [opened(job) for job in jobs]
        self._place([one for one in begun if one.verdict is None])
        leads: dict[tuple[Bucket, str], OffloadJob] = {}
        for one in begun:
            if one.bucket is not None:
                leads.setdefault((one.bucket, one.name), one)
        for bucket in dict.fromkeys(bucket for bucket, _name in leads):
            self._sweep_bucket([one for one in leads.values() if one.bucket == bucket], limiter)
        return [self._result(one, one if one.bucket is None else leads[one.bucket, one.name]) for one in begun]

    def _place(self, jobs: Sequence[OffloadJob]) -> None:
        for one, place in zip(jobs, self._stores.places([one.job.request for one in jobs]), strict=True):
            if isinstance(place, Verdict):
                one.verdict = place
            else:
                one.bucket = place

    def _sweep_bucket(self, jobs: Sequence[OffloadJob], limiter: Limiter | None) -> None:
        try:
            store = _asked(lambda: self._stores.store(jobs[0].place))
            for start in range(0, len(jobs), _NAMES_AT_ONCE):
                self._sweep_portion(store, jobs[start : start + _NAMES_AT_ONCE], limiter)
        except _StoreFailedError as failed:
            for one in jobs:
                one.verdict = one.verdict or failed.verdict

    def _sweep_portion(self, store: ObjectStore, jobs: Sequence[OffloadJob], limiter: Limiter | None) -> None:
        _asked(lambda: look(store, jobs))
        seen = [one for one in jobs if one.objects is not None]
        references = self._loader.load({one.key for one in seen})
        self._judge(seen, references)
        deletable = [one for one in seen if one.is_to_delete]
        if deletable:
            self._delete(store, deletable, references, limiter)
        self._confirm_kept(store, seen)

    def _delete(
        self,
        store: ObjectStore,
        deletable: Sequence[OffloadJob],
        references: Mapping[str, Reference],
        limiter: Limiter | None,
    ) -> None:
        self._journal.write_objects([_entry(one, references[one.key]) for one in deletable])
        if limiter is not None:
            limiter.wait_for(len(deletable))
        self._judge_changed(deletable, references)
        _delete_proven(store, [one for one in deletable if one.is_to_delete])

    def _judge(self, jobs: Sequence[OffloadJob], references: Mapping[str, Reference]) -> None:
        for one in jobs:
            one.judged_on = references[one.key]
            case = OffloadCase(
                one.job.request,
                one.facts,
                one.judged_on,
                one.place.exclusive,
                one.job.absent_since_ms,
                one.job.believed,
            )
            one.verdict = judge_offload(case, self._rules.policy, now_ms=self._clock.now_ms())

    def _judge_changed(self, deletable: Sequence[OffloadJob], references: Mapping[str, Reference]) -> None:
        """Right before the delete: are we still the one, and are the owners what they were?"""
        checks = {key: _checks(references[key]) for key in {one.key for one in deletable}}
        epoch = self._rules.epoch
        holding = self._loader.holding([epoch, *(check for each in checks.values() for check in each)])
        if epoch not in holding:
            raise FencedError("another instance of this service has taken over; stopping without deleting")
        changed = {key for key, each in checks.items() if not holding.issuperset(each)}
        if changed:
            self._judge([one for one in deletable if one.key in changed], self._loader.load(changed))

    def _confirm_kept(self, store: ObjectStore, seen: Sequence[OffloadJob]) -> None:
        """What is in use is still there; or its owner gave it up meanwhile, and a broker deleted it."""
        kept = {_seen_key(one): one for one in seen if _is_in_use(one) and _seen_key(one)}
        keys = list(kept)[:_CONFIRMED_AT_MOST]
        there = _asked(lambda: store.existing(keys)) if keys else set()
        missing = [kept[key] for key in keys if key not in there]
        if missing:
            self._judge(missing, self._loader.load({one.key for one in missing}))
        for one in missing:
            if _is_in_use(one):
                one.later(Reason.KEPT_AND_GONE, f"{one.key} refers to it, and {one.name} vanished during the sweep")

    def _sources(self, lead: OffloadJob) -> str:
        if lead.judged_on is None:
            return ""
        patience = self._rules.policy.patience
        is_too_little = kept_by_shrinkage(lead.judged_on, lead.job.believed, patience) is not None
        return certificate(lead.judged_on, lead.job.believed if is_too_little else None)

    def _result(self, one: OffloadJob, lead: OffloadJob) -> Swept:
        verdict = lead.verdict
        if verdict is None:
            raise AssertionError(f"no verdict for {one.name}")
        if one is not lead:
            if one.job.request != lead.job.request:
                return Swept(Verdict(Outcome.RETRY, Reason.DUPLICATE, "another request for these objects went first"))
            if verdict.outcome is Outcome.DELETED:
                return Swept(Verdict(Outcome.ALREADY_GONE, Reason.DUPLICATE, "asked for twice in one batch"))
        since = self._first_sight(one.job) if verdict.reason is Reason.OWNER_ABSENT_ONCE else None
        return Swept(verdict, absent_since_ms=since, length_bytes=lead.length_bytes, sources=self._sources(lead))

    def _first_sight(self, job: Job) -> int:
        now_ms, earlier = self._clock.now_ms(), job.absent_since_ms
        patience = self._rules.policy.patience
        return earlier if earlier is not None and seen_before(earlier, patience, now_ms=now_ms) else now_ms


def _is_in_use(one: OffloadJob) -> bool:
    return one.verdict is not None and one.verdict.reason is Reason.IN_USE


def _seen_key(one: OffloadJob) -> str:
    """The object that was seen, the index before the data (which it may stand for); "" where there was none."""
    if one.facts.index is not None:
        return one.index_key
    return one.name if one.facts.data is not None else ""


class _StoreFailedError(Exception):
    """The store of one bucket did not do what it was asked; carries what that means for those who wait for it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


def _asked(ask: Callable[[], _T]) -> _T:
    """Ask the store, and nothing but the store: what ZooKeeper fails to answer concerns every request."""
    try:
        return ask()
    except UnavailableError as error:
        raise _StoreFailedError(Verdict(Outcome.RETRY, Reason.STORE_UNAVAILABLE, str(error))) from error
    except RefusedError as error:
        raise _StoreFailedError(Verdict(Outcome.RETRY, Reason.STORE_REFUSED, str(error))) from error


def _delete_proven(store: ObjectStore, deletable: Sequence[OffloadJob]) -> None:
    """Parts, then data, then index; who fails a step does not get to the next, and nobody is done before the last."""
    allowed = [(one, one.verdict) for one in deletable]
    for one in deletable:
        one.verdict = None
    left: Sequence[OffloadJob] = deletable
    for step in (abort_uploads, delete_data, delete_indexes):
        left = _step(store, left, step)
    for one, verdict in allowed:
        if one.verdict is None and verdict is not None:
            one.verdict = replace(verdict, detail=kept_versions(one.facts))


def _step(
    store: ObjectStore,
    jobs: Sequence[OffloadJob],
    step: Callable[[ObjectStore, Sequence[OffloadJob]], list[OffloadJob]],
) -> list[OffloadJob]:
    return _asked(lambda: step(store, jobs))


def _checks(reference: Reference) -> tuple[tuple[str, int], ...]:
    """The znodes that the reference rests on; of an owner that is gone, that it still does not exist."""
    return reference.checks or tuple((path, _ABSENT) for path in fixed_paths(owner_of(reference.key)))


def _entry(one: OffloadJob, reference: Reference) -> ObjectEntry:
    facts, request = one.facts, one.job.request
    stored = [(one.name, facts.data), (one.index_key, facts.index)]
    objects = [(key, each.version_id) for key, each in stored if each is not None]
    if facts.index_only:
        objects.insert(0, (one.name, ""))
    named = facts.index or facts.data
    return ObjectEntry(
        ledger_id=request.ledger_id,
        uuid=request.offload_context.uuid if request.offload_context else "",
        bucket=one.place,
        objects=tuple(objects),
        index=facts.index.content if facts.index else None,
        user_metadata=named.user_metadata if named else {},
        reference=reference,
    )
