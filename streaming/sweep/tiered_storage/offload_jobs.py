"""The jobs of a sweep of tiered storage, one for each request to delete objects, and the ports of the sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streaming.ports import ObjectStore
from streaming.state.journal import ObjectEntry
from streaming.sweep.jobs import Job, OpenJob
from udfs.formats.offload_index import index_name, object_name
from udfs.offload_drivers import Bucket
from udfs.owners.references import key_of
from udfs.paths import Layout
from udfs.records import OffloadFacts, PendingDelete, Verdict
from udfs.verdicts.judge_offload import OffloadPolicy, refuse_request


class ObjectJournal(Protocol):
    """Records deletes of objects before they happen."""

    def write_objects(self, entries: Sequence[ObjectEntry]) -> None:
        """Make entries durable, and return only then. Raises UnavailableError."""
        ...


class Stores(Protocol):
    """Finds the bucket of a request, and opens it."""

    def buckets(self, requests: Sequence[PendingDelete]) -> list[Bucket | Verdict]:
        """Find each request's bucket, in order, without a call to any store; a Verdict if we may not touch it."""
        ...

    def store(self, bucket: Bucket) -> ObjectStore:
        """Return the store of an allowed bucket. Raises RefusedError if it can't be opened."""
        ...


@dataclass(frozen=True, slots=True)
class OffloadRules:
    """The settings of a sweep of objects."""

    epoch: tuple[str, int]  # epoch, layout and ledgers_root are as in streaming.sweep.jobs.SweepRules
    policy: OffloadPolicy
    layout: Layout
    ledgers_root: str


@dataclass(slots=True, kw_only=True)
class OffloadJob(OpenJob):
    """A job for an offloaded ledger."""

    name: str = ""  # the key of the data object
    index_key: str = ""  # the key of the index object
    found_bucket: Bucket | None = None
    objects: OffloadFacts | None = None  # what the bucket has under these keys; None until it is read

    @property
    def bucket(self) -> Bucket:
        """Return the bucket, once it was found."""
        if self.found_bucket is None:
            raise AssertionError(f"ledger {self.request.ledger_id} has no bucket")
        return self.found_bucket

    @property
    def facts(self) -> OffloadFacts:
        """Return what the bucket has, once it was read."""
        if self.objects is None:
            raise AssertionError(f"{self.name} was not read")
        return self.objects


def opened(job: Job) -> OffloadJob:
    """Create the OffloadJob of a job. A request for a ledger that no broker offloads gets its verdict at once."""
    request = job.request
    refused = refuse_request(request)
    if refused is not None or request.offload_context is None:
        return OffloadJob(job, key_of(request), verdict=refused)
    uuid, ledger_id = request.offload_context.uuid, request.ledger_id
    name, index_key = object_name(uuid, ledger_id), index_name(uuid, ledger_id)
    return OffloadJob(job, key_of(request), name=name, index_key=index_key)
