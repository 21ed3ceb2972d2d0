"""Checks suspects in tiered storage: reads their objects, then their owners, and judges them by the service's rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streaming.audit import audit_columns as a
from streaming.audit.walk.reference_scan import store_label
from streaming.audit.walk.suspects import request_of
from streaming.clock import Clock
from streaming.errors import RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore
from streaming.sweep.jobs import Job
from streaming.sweep.tiered_storage.buckets import OffloadBuckets, offload_policy
from streaming.sweep.tiered_storage.offload_jobs import OffloadJob, opened
from streaming.sweep.tiered_storage.offload_steps import read_objects
from udfs import columns as c
from udfs.formats.offload_index import index_name, object_name
from udfs.offload_drivers import Bucket
from udfs.records import Outcome, Presence, Reason, Reference, Verdict
from udfs.verdicts.finding_classes import SEEN_ONCE, FindingClass, SuspectCheck, check_of_missing, check_of_verdict
from udfs.verdicts.judge import Policy
from udfs.verdicts.judge_offload import OffloadCase, OffloadPolicy, judge_offload

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChecker:
    """Checks many suspects at a time."""

    buckets: OffloadBuckets
    loader: InUseLoader
    clock: Clock
    policy: Policy
    offload_grace_ms: int

    def check(self, rows: Sequence[_Row]) -> list[SuspectCheck]:
        """Return one check for each row, in order. Raises UnavailableError when ZooKeeper does not answer.

        The rows of a bucket are UNKNOWN if tiered_storage.allowed does not name the bucket, or if its store refuses or
        does not answer.
        """
        checks: dict[int, SuspectCheck] = {}
        for label in dict.fromkeys(str(row[a.STORE]) for row in rows):
            indices = [at for at, row in enumerate(rows) if row[a.STORE] == label]
            checks |= dict(zip(indices, self._of_bucket(label, [rows[at] for at in indices]), strict=True))
        return [checks[at] for at in range(len(rows))]

    def _of_bucket(self, label: str, rows: Sequence[_Row]) -> list[SuspectCheck]:
        bucket = next((item for item in self.buckets.allowed if store_label(item.endpoint, item.name) == label), None)
        if bucket is None:
            return [_unknown(Reason.STORE_NOT_ALLOWED, f"tiered_storage.allowed does not name {label}")] * len(rows)
        try:
            store = self.buckets.store(bucket)
            there = _existing(store, [row for row in rows if row[a.IS_REFERENCE]])
            jobs = {_name(row): _job(row) for row in rows if not row[a.IS_REFERENCE]}
            read_objects(store, list(jobs.values()))
        except (UnavailableError, RefusedError) as error:
            return [_unknown(Reason.STORE_UNAVAILABLE, str(error))] * len(rows)
        # The owners are read after the objects: a broker writes an offload's UUID into the topic's list before it
        # stores the first object, and a UUID that was removed from the list never returns to it. So if the list does
        # not name the UUID now, it never will (udfs/verdicts/judge_offload.py has the reasons, and one exception).
        references = self.loader.load(row[c.REFERENCE_KEY] for row in rows)
        policy = offload_policy(self.buckets.configuration, self.policy, offload_grace_ms=self.offload_grace_ms)
        return [
            _missing(row, references[row[c.REFERENCE_KEY]], is_there=_name(row) in there)
            if row[a.IS_REFERENCE]
            else self._judged(jobs[_name(row)], references[row[c.REFERENCE_KEY]], bucket, policy)
            for row in rows
        ]

    def _judged(self, job: OffloadJob, reference: Reference, bucket: Bucket, policy: OffloadPolicy) -> SuspectCheck:
        if job.objects is None:
            return check_of_verdict(
                job.verdict or Verdict(Outcome.RETRY, Reason.LEDGER_UNREADABLE, f"nothing is known about {job.name}")
            )
        since_ms = job.given.absent_since_ms
        case = OffloadCase(
            request=job.request,
            objects=job.objects,
            reference=reference,
            exclusive=bucket.exclusive,
            cluster_names_are_unique=bucket.cluster_names_are_unique,
            absent_since_ms=since_ms,
        )
        return check_of_verdict(judge_offload(case, policy, now_ms=self.clock.now_ms()))


def _existing(store: ObjectStore, rows: Sequence[_Row]) -> set[tuple[str, int]]:
    """Return the uploads whose object and index both exist; a broker can read neither without the other."""
    keys = [key(*_name(row)) for row in rows for key in (object_name, index_name)]
    there = store.existing(keys) if keys else set()
    return {_name(row) for row in rows if {object_name(*_name(row)), index_name(*_name(row))} <= there}


def _missing(row: _Row, reference: Reference, *, is_there: bool) -> SuspectCheck:
    is_referenced = None
    if reference.presence is not Presence.UNREADABLE:
        is_referenced = (row[c.LEDGER_ID], row[c.UUID]) in reference.offloads
    check = check_of_missing(is_referenced=is_referenced, is_there=is_there)
    if check.finding_class is not FindingClass.MISSING:
        return check
    return replace(check, detail=f"the object {object_name(*_name(row))} or its index does not exist in {row[a.STORE]}")


def _job(row: _Row) -> OffloadJob:
    absent_since_ms = row[a.SEEN_MS] if row[c.REASON] in SEEN_ONCE else None
    return opened(Job(request_of(row), absent_since_ms))


def _name(row: _Row) -> tuple[str, int]:
    return row[c.UUID], row[c.LEDGER_ID]


def _unknown(reason: Reason, detail: str) -> SuspectCheck:
    return check_of_verdict(Verdict(Outcome.RETRY, reason, detail))
