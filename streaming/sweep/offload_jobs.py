"""The words of a sweep of objects: what it needs, what it writes down, and a request on its way in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streaming.ports import ObjectStore
from streaming.state.journal import ObjectEntry
from streaming.sweep.jobs import Job
from udfs.formats.offload_index import index_name, object_name
from udfs.judge_offload import OffloadPolicy, refuse_request
from udfs.offload_target import Bucket
from udfs.records import OffloadFacts, Outcome, PendingDelete, Reason, Reference, Verdict
from udfs.references import key_of


class ObjectJournal(Protocol):
    """Where deletes of objects are written down before they happen."""

    def write_objects(self, entries: Sequence[ObjectEntry]) -> None:
        """Make entries durable; returns only then. Raises UnavailableError."""
        ...


class Stores(Protocol):
    """Which bucket a request means, and how to reach it."""

    def places(self, requests: Sequence[PendingDelete]) -> list[Bucket | Verdict]:
        """Find each request's bucket, in order, without asking any store; a Verdict where there is none for us."""
        ...

    def store(self, bucket: Bucket) -> ObjectStore:
        """Return the store of an allowed bucket. Raises RefusedError where it can't be opened."""
        ...


@dataclass(frozen=True, slots=True)
class OffloadRules:
    """What a sweep of objects needs to know. epoch: (path, version) that proves we are still the one."""

    epoch: tuple[str, int]
    policy: OffloadPolicy


@dataclass(slots=True)
class OffloadJob:
    """A job on its way. name is the data object's key. objects: None until they were looked at.

    judged_on: the reference that its verdict rests on.
    """

    job: Job
    key: str
    name: str = ""
    index_key: str = ""
    bucket: Bucket | None = None
    objects: OffloadFacts | None = None
    verdict: Verdict | None = None
    length_bytes: int = 0
    judged_on: Reference | None = None

    @property
    def is_to_delete(self) -> bool:
        """Whether the verdict of now is to delete."""
        return self.verdict is not None and self.verdict.outcome is Outcome.DELETED

    @property
    def place(self) -> Bucket:
        """The bucket, once there is one."""
        if self.bucket is None:
            raise AssertionError(f"ledger {self.job.request.ledger_id} has no bucket")
        return self.bucket

    @property
    def facts(self) -> OffloadFacts:
        """What was seen of the objects."""
        if self.objects is None:
            raise AssertionError(f"{self.name} was not looked at")
        return self.objects

    def later(self, reason: Reason, detail: str) -> None:
        """Keep it for now."""
        self.verdict = Verdict(Outcome.RETRY, reason, detail)


def opened(job: Job) -> OffloadJob:
    """Begin a job; one that no broker would offload has its verdict at once."""
    request = job.request
    refused = refuse_request(request)
    if refused is not None or request.offload_context is None:
        return OffloadJob(job, key_of(request), verdict=refused)
    uuid, ledger_id = request.offload_context.uuid, request.ledger_id
    return OffloadJob(job, key_of(request), object_name(uuid, ledger_id), index_name(uuid, ledger_id))
