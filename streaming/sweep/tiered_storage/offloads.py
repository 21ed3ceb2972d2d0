"""The sweep of tiered storage: read objects and owner, journal, read the owner again, delete, check again.

S3 has no transaction that could check the owner together with the delete. Instead:
1. objects are read before their owner;
2. owners are always read now, never from the cache. Right before the delete, their versions and our epoch's are
   compared once more, and no migration to another metadata store may have started;
3. each delete carries the ETag of the object that was judged, if the store compares ETags (S3 does; other stores are
   tried once with an object of our own);
4. each object is checked again after its deletion, and reported as DELETED only if it is not found.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from streaming.clock import Clock
from streaming.errors import FencedError, RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore
from streaming.state.journal import ObjectEntry
from streaming.sweep.jobs import Job, Limiter, Swept, split_duplicates, swept_of
from streaming.sweep.tiered_storage.offload_jobs import ObjectJournal, OffloadJob, OffloadRules, Stores, opened
from streaming.sweep.tiered_storage.offload_steps import (
    abort_uploads,
    delete_data,
    delete_indexes,
    kept_versions,
    read_objects,
)
from streaming.sweep.tiered_storage.upload_owners import ask_bookkeeper
from udfs.formats.store_migration import MIGRATION_STARTED, NO_MIGRATION
from udfs.offload_drivers import Bucket
from udfs.owners.references import fixed_paths, owner_of
from udfs.records import Outcome, Presence, Reason, Reference, Verdict
from udfs.verdicts.judge_offload import OffloadCase, judge_offload

_NAMES_AT_ONCE = 4_000  # four full DeleteObjects in flight; more would only lengthen the time from read to delete
_ABSENT = -1
_CONFIRMED_AT_MOST = 100  # kept objects that are checked once more: S3 needs a request for each

_T = TypeVar("_T")
_Question = tuple[Bucket | None, str, tuple[str, str, int | None]]


class OffloadSweeper:
    """Sweeps groups of OFFLOAD_LEDGER requests. Each worker process has an instance, without state between groups."""

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
        """Sweep jobs; return their results in order.

        Raises UnavailableError if ZooKeeper or the journal fails (then repeat all jobs), FencedError.
        """
        open_jobs = [opened(job) for job in jobs]
        self._find_buckets([job for job in open_jobs if job.verdict is None])
        leads: dict[_Question, OffloadJob] = {}
        for job in open_jobs:
            leads.setdefault(_question(job), job)
        for bucket in dict.fromkeys(job.found_bucket for job in leads.values() if job.found_bucket is not None):
            self._sweep_bucket([job for job in leads.values() if job.found_bucket == bucket], limiter)
        policy, now_ms = self._rules.policy.patience, self._clock.now_ms()
        return [
            swept_of(job, job if job.found_bucket is None else leads[_question(job)], policy, now_ms=now_ms)
            for job in open_jobs
        ]

    def _find_buckets(self, jobs: Sequence[OffloadJob]) -> None:
        for job, answer in zip(jobs, self._stores.buckets([job.request for job in jobs]), strict=True):
            if isinstance(answer, Verdict):
                job.verdict = answer
            else:
                job.found_bucket = answer

    def _sweep_bucket(self, jobs: Sequence[OffloadJob], limiter: Limiter | None) -> None:
        try:
            store = _from_store(lambda: self._stores.store(jobs[0].bucket))
            for start in range(0, len(jobs), _NAMES_AT_ONCE):
                self._sweep_group(store, jobs[start : start + _NAMES_AT_ONCE], limiter)
        # only the requests for this bucket come back later; those for other buckets continue
        except _StoreFailedError as failed:
            for job in jobs:
                job.verdict = job.verdict or failed.verdict

    def _sweep_group(self, store: ObjectStore, jobs: Sequence[OffloadJob], limiter: Limiter | None) -> None:
        _from_store(lambda: read_objects(store, jobs, with_etags=store.compares_etags()))
        readable = [job for job in jobs if job.objects is not None]
        ask_bookkeeper(self._loader, self._rules, readable)
        # after the objects: a UUID that the owner's list does not name by now never
        # returns to it (udfs.verdicts.judge_offload)
        references = self._loader.load({job.key for job in readable})
        self._judge(readable, references)
        deletable, _duplicates = split_duplicates([job for job in readable if job.is_to_delete], lambda job: job.name)
        if deletable:
            self._delete(store, deletable, references, limiter)
        self._confirm_kept(store, readable)

    def _delete(
        self,
        store: ObjectStore,
        deletable: Sequence[OffloadJob],
        references: Mapping[str, Reference],
        limiter: Limiter | None,
    ) -> None:
        # durable before any object is deleted
        self._journal.write_objects([_entry(job, references[job.key]) for job in deletable])
        if limiter is not None:
            limiter.wait_for(len(deletable))
        # last, since this is as close as S3 allows to a check in the delete's transaction
        self._judge_changed(deletable, references)
        _delete_proven(store, [job for job in deletable if job.is_to_delete])

    def _judge(self, jobs: Sequence[OffloadJob], references: Mapping[str, Reference]) -> None:
        for job in jobs:
            job.judged_on = references[job.key]
            case = OffloadCase(
                request=job.request,
                objects=job.facts,
                reference=job.judged_on,
                exclusive=job.bucket.exclusive,
                cluster_names_are_unique=job.bucket.cluster_names_are_unique,
                absent_since_ms=job.given.absent_since_ms,
                baseline=job.given.baseline,
            )
            job.verdict = judge_offload(case, self._rules.policy, now_ms=self._clock.now_ms())

    def _judge_changed(self, deletable: Sequence[OffloadJob], references: Mapping[str, Reference]) -> None:
        """Right before the delete: stop if a newer instance took over, and judge again the jobs whose owner changed."""
        checks_of = {key: _checks(references[key]) for key in {job.key for job in deletable}}
        epoch = self._rules.epoch
        checks = [check for each in checks_of.values() for check in each]
        holding = self._loader.holding([epoch, NO_MIGRATION, *checks])
        if epoch not in holding:
            raise FencedError("another instance of this service has taken over; stopping without deleting")
        if NO_MIGRATION not in holding:  # the lists of owners may be old
            raise UnavailableError(MIGRATION_STARTED)
        changed = {key for key, checks in checks_of.items() if not holding.issuperset(checks)}
        if changed:
            self._judge([job for job in deletable if job.key in changed], self._loader.load(changed))

    def _confirm_kept(self, store: ObjectStore, jobs: Sequence[OffloadJob]) -> None:
        """Check the kept objects again, and report those that vanished while their owner still refers to them.

        Such an object was in use, and something other than this sweep deleted it.
        """
        kept = {_existing_key(job): job for job in jobs if job.is_in_use and _existing_key(job)}
        keys = list(kept)[:_CONFIRMED_AT_MOST]
        there = _from_store(lambda: store.existing(keys)) if keys else set()
        missing = [kept[key] for key in keys if key not in there]
        if missing:
            # if its owner has released it since, a broker deleted it, as brokers may
            self._judge(missing, self._loader.load({job.key for job in missing}))
        for job in missing:
            if job.is_in_use:
                job.later(Reason.KEPT_AND_GONE, f"{job.key} refers to it, and {job.name} vanished during the sweep")


def _question(job: OffloadJob) -> _Question:
    """Return what a verdict rests on: the bucket of the objects, their name, and the owner that the request names."""
    return job.found_bucket, job.name, job.rests_on


def _existing_key(job: OffloadJob) -> str:
    """Return the key of an object that exists: the index, else the data object; "" if there was neither."""
    if job.facts.index is not None:
        return job.index_key
    return job.name if job.facts.data is not None else ""


class _StoreFailedError(Exception):
    """The store of one bucket failed; carries the verdict of the requests for that bucket."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


def _from_store(call: Callable[[], _T]) -> _T:
    """Call the store. Never wrap calls to ZooKeeper: if it fails, all requests have to wait, not just one bucket's."""
    try:
        return call()
    except UnavailableError as error:
        raise _StoreFailedError(Verdict(Outcome.RETRY, Reason.STORE_UNAVAILABLE, str(error))) from error
    except RefusedError as error:
        raise _StoreFailedError(Verdict(Outcome.RETRY, Reason.STORE_REFUSED, str(error))) from error


def _delete_proven(store: ObjectStore, deletable: Sequence[OffloadJob]) -> None:
    """Delete upload parts, then data, then index; if a step fails for a job, the next steps keep its objects."""
    allowed = [(job, job.verdict) for job in deletable]
    for job in deletable:
        job.verdict = None
    left: Sequence[OffloadJob] = deletable
    # the index holds the proof of ownership, so a pair whose data object is gone still has a provable owner
    for step in (abort_uploads, delete_data, delete_indexes):
        left = _step(store, left, step)
    for job, verdict in allowed:
        if job.verdict is None and verdict is not None:
            job.verdict = replace(verdict, detail=kept_versions(job.facts))


def _step(
    store: ObjectStore,
    jobs: Sequence[OffloadJob],
    step: Callable[[ObjectStore, Sequence[OffloadJob]], list[OffloadJob]],
) -> list[OffloadJob]:
    return _from_store(lambda: step(store, jobs))


def _checks(reference: Reference) -> tuple[tuple[str, int], ...]:
    """Return the (znode, version) pairs that the reference rests on; version -1: the znode must not exist."""
    if reference.presence is not Presence.GONE:
        return reference.checks
    return (*reference.checks, *((path, _ABSENT) for path in fixed_paths(owner_of(reference.key))))


def _entry(job: OffloadJob, reference: Reference) -> ObjectEntry:
    facts, request = job.facts, job.request
    stored = [(job.name, facts.data), (job.index_key, facts.index)]
    objects = [(key, head.version_id) for key, head in stored if head is not None]
    if facts.index_only:
        objects.insert(0, (job.name, ""))
    named = facts.index or facts.data
    return ObjectEntry(
        ledger_id=request.ledger_id,
        uuid=request.offload_context.uuid if request.offload_context else "",
        bucket=job.bucket,
        objects=tuple(objects),
        index=facts.index.content if facts.index else None,
        user_metadata=named.user_metadata if named else {},
        reference=reference,
    )
