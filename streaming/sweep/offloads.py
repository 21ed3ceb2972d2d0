"""The sweep of tiered storage: look, read the owner, write the journal, read the owner again, delete, look again.

S3 has no transaction that could check the owner together with the delete. Instead:
1. we look at the objects before we read the owner: a UUID that the owner's list does not name after that never
   returns to it (udfs.judge_offload says why);
2. we always read owners now, never from the cache. Right before the delete we compare their versions, and our
   epoch's, once more; an owner that changed in between is read and judged again;
3. we delete the data object first and the index object last. The index holds the proof of ownership, so that whoever
   finds a pair of which one half is gone can still prove whose it was;
4. each delete carries the ETag of the object that was judged, where the store compares ETags (S3 does; others are
   tried once with an object of our own);
5. we look for each object afterwards, and say DELETED only of what we don't find.
If a bucket's store fails, only the requests for that bucket come back later; the others go on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from streaming.clock import Clock
from streaming.errors import FencedError, RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore
from streaming.state.journal import ObjectEntry
from streaming.sweep.jobs import Job, Limiter, Swept, one_for_each, swept_of
from streaming.sweep.offload_jobs import ObjectJournal, OffloadJob, OffloadRules, Stores, opened
from streaming.sweep.offload_steps import abort_uploads, delete_data, delete_indexes, kept_versions, look
from streaming.sweep.upload_owners import ask_bookkeeper
from udfs.judge_offload import OffloadCase, judge_offload
from udfs.offload_target import Bucket
from udfs.records import Outcome, Reason, Reference, Verdict
from udfs.references import fixed_paths, owner_of

_NAMES_AT_ONCE = 4_000  # four full DeleteObjects in flight; more would only lengthen the time from look to delete
_ABSENT = -1
_CONFIRMED_AT_MOST = 100  # kept objects that we look for once more: S3 takes a request for each

_T = TypeVar("_T")
_Asked = tuple[Bucket | None, str, tuple[str, str, int | None]]


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
        leads: dict[_Asked, OffloadJob] = {}
        for one in begun:
            leads.setdefault(_asked_of(one), one)
        for bucket in dict.fromkeys(one.bucket for one in leads.values() if one.bucket is not None):
            self._sweep_bucket([one for one in leads.values() if one.bucket == bucket], limiter)
        policy, now_ms = self._rules.policy.patience, self._clock.now_ms()
        return [
            swept_of(one, one if one.bucket is None else leads[_asked_of(one)], policy, now_ms=now_ms) for one in begun
        ]

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
        _asked(lambda: look(store, jobs, with_etags=store.compares_etags()))
        seen = [one for one in jobs if one.objects is not None]
        ask_bookkeeper(self._loader, self._rules, seen)
        references = self._loader.load({one.key for one in seen})
        self._judge(seen, references)
        deletable, _others = one_for_each([one for one in seen if one.is_to_delete], lambda one: one.name)
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
                request=one.job.request,
                objects=one.facts,
                reference=one.judged_on,
                exclusive=one.place.exclusive,
                cluster_names_are_unique=one.place.cluster_names_are_unique,
                absent_since_ms=one.job.absent_since_ms,
                baseline=one.job.baseline,
            )
            one.verdict = judge_offload(case, self._rules.policy, now_ms=self._clock.now_ms())

    def _judge_changed(self, deletable: Sequence[OffloadJob], references: Mapping[str, Reference]) -> None:
        """Right before the delete: stop if a newer instance took over, and judge again whose owner changed."""
        checks = {key: _checks(references[key]) for key in {one.key for one in deletable}}
        epoch = self._rules.epoch
        holding = self._loader.holding([epoch, *(check for each in checks.values() for check in each)])
        if epoch not in holding:
            raise FencedError("another instance of this service has taken over; stopping without deleting")
        changed = {key for key, each in checks.items() if not holding.issuperset(each)}
        if changed:
            self._judge([one for one in deletable if one.key in changed], self._loader.load(changed))

    def _confirm_kept(self, store: ObjectStore, seen: Sequence[OffloadJob]) -> None:
        """Look for the kept objects again.

        Where they are gone and their owner still refers to them, somebody deleted data that is in use. Where the owner
        gave them up meanwhile, a broker deleted them, as it may.
        """
        kept = {_seen_key(one): one for one in seen if one.is_in_use and _seen_key(one)}
        keys = list(kept)[:_CONFIRMED_AT_MOST]
        there = _asked(lambda: store.existing(keys)) if keys else set()
        missing = [kept[key] for key in keys if key not in there]
        if missing:
            self._judge(missing, self._loader.load({one.key for one in missing}))
        for one in missing:
            if one.is_in_use:
                one.later(Reason.KEPT_AND_GONE, f"{one.key} refers to it, and {one.name} vanished during the sweep")


def _asked_of(one: OffloadJob) -> _Asked:
    """What a verdict rests on: where the objects lie, under which name, and who is said to own them."""
    return one.bucket, one.name, one.asks


def _seen_key(one: OffloadJob) -> str:
    """The key of an object that we saw: the index, else the data object; "" where there was neither."""
    if one.facts.index is not None:
        return one.index_key
    return one.name if one.facts.data is not None else ""


class _StoreFailedError(Exception):
    """The store of one bucket failed; carries the verdict of the requests for that bucket."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


def _asked(ask: Callable[[], _T]) -> _T:
    """Ask the store only: where ZooKeeper fails, every request has to wait, not just those for one bucket."""
    try:
        return ask()
    except UnavailableError as error:
        raise _StoreFailedError(Verdict(Outcome.RETRY, Reason.STORE_UNAVAILABLE, str(error))) from error
    except RefusedError as error:
        raise _StoreFailedError(Verdict(Outcome.RETRY, Reason.STORE_REFUSED, str(error))) from error


def _delete_proven(store: ObjectStore, deletable: Sequence[OffloadJob]) -> None:
    """Delete parts, then data, then index; a job that fails a step goes no further, and is kept."""
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
    """Return the (znode, version) that the reference rests on; -1: the znode of a gone owner still does not exist."""
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
