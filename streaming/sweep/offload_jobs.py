"""The words of a sweep of tiered storage: what it needs, and a request for objects on its way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streaming.ports import ObjectStore
from streaming.state.journal import ObjectEntry
from streaming.sweep.jobs import Job, OpenJob
from udfs.formats.offload_index import index_name, object_name
from udfs.judge_offload import OffloadPolicy, refuse_request
from udfs.offload_target import Bucket
from udfs.paths import Layout
from udfs.records import OffloadFacts, PendingDelete, Verdict
from udfs.references import key_of


class ObjectJournal(Protocol):
    """Where deletes of objects are written down before they happen."""

    def write_objects(self, entries: Sequence[ObjectEntry]) -> None:
        """Make entries durable; returns only then. Raises UnavailableError."""
        ...


class Stores(Protocol):
    """Finds the bucket that a request means, and opens it."""

    def places(self, requests: Sequence[PendingDelete]) -> list[Bucket | Verdict]:
        """Find each request's bucket, in order, without asking any store; a Verdict where we may not touch any."""
        ...

    def store(self, bucket: Bucket) -> ObjectStore:
        """Return the store of an allowed bucket. Raises RefusedError where it can't be opened."""
        ...


@dataclass(frozen=True, slots=True)
class OffloadRules:
    """What a sweep of objects goes by. epoch, layout, ledgers_root: as in streaming.sweep.jobs.SweepRules."""

    epoch: tuple[str, int]
    policy: OffloadPolicy
    layout: Layout
    ledgers_root: str


@dataclass(slots=True, kw_only=True)
class OffloadJob(OpenJob):
    """A job for an offloaded ledger. name, index_key: keys of its data object and of its index object.

    objects: what the bucket holds under these keys; None until we looked.
    """

    name: str = ""
    index_key: str = ""
    bucket: Bucket | None = None
    objects: OffloadFacts | None = None

    @property
    def place(self) -> Bucket:
        """Return the bucket, once it was found."""
        if self.bucket is None:
            raise AssertionError(f"ledger {self.job.request.ledger_id} has no bucket")
        return self.bucket

    @property
    def facts(self) -> OffloadFacts:
        """Return what we saw of the objects."""
        if self.objects is None:
            raise AssertionError(f"{self.name} was not looked at")
        return self.objects


def opened(job: Job) -> OffloadJob:
    """Begin a job; a request for what no broker offloads has its verdict at once."""
    request = job.request
    refused = refuse_request(request)
    if refused is not None or request.offload_context is None:
        return OffloadJob(job, key_of(request), verdict=refused)
    uuid, ledger_id = request.offload_context.uuid, request.ledger_id
    name, index_key = object_name(uuid, ledger_id), index_name(uuid, ledger_id)
    return OffloadJob(job, key_of(request), name=name, index_key=index_key)
