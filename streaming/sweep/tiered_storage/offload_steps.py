"""The steps of a sweep in one bucket. Every function calls only the store of this bucket."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from streaming.ports import CHANGED, ObjectStore, Unreadable
from streaming.sweep.tiered_storage.offload_jobs import OffloadJob
from udfs.formats.errors import FormatError
from udfs.formats.offload_index import parse_offload_index
from udfs.records import OffloadFacts, Reason, StoredObject, UnfinishedUpload
from udfs.verdicts.judge_offload import CLUSTER_KEY

_NO_VERSIONS = frozenset({"", "null"})  # "null": stored before the bucket had versions, or while they were suspended


def read_objects(store: ObjectStore, jobs: Sequence[OffloadJob], *, with_etags: bool = False) -> None:
    """Set in each job what the bucket has under the job's keys; a job whose objects can't be read gets a verdict.

    Args:
        store: the bucket.
        jobs: the jobs.
        with_etags: read the data objects too, for the ETags that their deletes have to carry.
    """
    # Most jobs need a single request, for the index. The data object is read only if the index does not prove all that
    # we need to know about it.
    indexes = store.read_many([job.index_key for job in jobs])
    facts = [_by_index(index) for index in indexes]
    if with_etags:
        facts = [replace(fact, index_only=False) for fact in facts]
    names = [job.name for job, fact in zip(jobs, facts, strict=True) if not fact.index_only]
    heads = dict(zip(names, store.head_many(names), strict=True))
    uploads: defaultdict[str, list[UnfinishedUpload]] = defaultdict(list)
    for upload in store.unfinished_uploads([job.name for job in jobs]):
        uploads[upload.key].append(upload)
    for job, index, fact in zip(jobs, indexes, facts, strict=True):
        head = heads.get(job.name)
        unreadable = next((answer for answer in (index, head) if isinstance(answer, Unreadable)), None)
        if unreadable is not None:
            job.later(Reason.LEDGER_UNREADABLE, unreadable.detail)
            continue
        data = head if isinstance(head, StoredObject) else None
        job.objects = replace(fact, data=data, uploads=tuple(uploads[job.name]))
        job.length_bytes = _bytes_of(job.objects)


def abort_uploads(store: ObjectStore, jobs: Sequence[OffloadJob]) -> list[OffloadJob]:
    """Abort uploads that were never completed; return the jobs that may continue."""
    with_uploads = {job.name: job for job in jobs if job.facts.uploads}
    if not with_uploads:
        return list(jobs)
    # Allowed here: judged deletable, and started so long ago that no broker completes them.
    errors = store.abort_uploads([upload for job in with_uploads.values() for upload in job.facts.uploads])
    left = {upload.upload_id for upload in store.unfinished_uploads(list(with_uploads))}
    for name, job in with_uploads.items():
        if name in errors:
            job.later(Reason.STORE_REFUSED, f"parts of {name}: {errors[name]}")
        elif any(upload.upload_id in left for upload in job.facts.uploads):
            job.later(Reason.STILL_THERE, f"parts of {name} were found after their upload was aborted")
    return _without_verdict(jobs)


def delete_data(store: ObjectStore, jobs: Sequence[OffloadJob]) -> list[OffloadJob]:
    """Delete data objects, and check that they are gone; return the jobs that may continue."""
    return _delete(
        store,
        jobs,
        lambda job: job.name if job.facts.data or job.facts.index_only else "",
        lambda job: job.facts.data.etag if job.facts.data else "",
    )


def delete_indexes(store: ObjectStore, jobs: Sequence[OffloadJob]) -> list[OffloadJob]:
    """Delete index objects, and check that they are gone; return finished jobs.

    They prove ownership, so they are deleted last.
    """
    return _delete(
        store,
        jobs,
        lambda job: job.index_key if job.facts.index else "",
        lambda job: job.facts.index.etag if job.facts.index else "",
    )


def kept_versions(facts: OffloadFacts) -> str:
    """Return a note that a bucket with versions keeps the bytes; "" for other buckets."""
    stored = [head for head in (facts.data, facts.index) if head is not None]
    if all(head.version_id in _NO_VERSIONS for head in stored):
        return ""
    return (
        "the bucket has versions: delete markers hide the objects, their bytes stay until a lifecycle rule removes them"
    )


def _delete(
    store: ObjectStore,
    jobs: Sequence[OffloadJob],
    key_of: Callable[[OffloadJob], str],
    etag_of: Callable[[OffloadJob], str],
) -> list[OffloadJob]:
    by_key = {key_of(job): job for job in jobs if key_of(job)}
    etags = {key: etag_of(job) for key, job in by_key.items() if etag_of(job)} if store.compares_etags() else {}
    # Allowed here: judged deletable, durable in the journal, owners and epoch unchanged a moment ago. A store that
    # compares ETags deletes only the very object that was judged.
    errors = store.delete(list(by_key), etags)
    # a failed condition does not prove that the object exists: it may have been deleted in between
    there = store.existing([key for key in by_key if errors.get(key, CHANGED) == CHANGED])
    for key, job in by_key.items():
        if errors.get(key) == CHANGED and key in there:
            job.later(Reason.LEDGER_CHANGED, f"{key} was stored again between our read and our delete")
        elif key in errors and errors[key] != CHANGED:
            job.later(Reason.STORE_REFUSED, f"{key}: {errors[key]}")
        elif key in there:
            job.later(Reason.STILL_THERE, f"{key} was found after its deletion")
    return _without_verdict(jobs)


def _without_verdict(jobs: Sequence[OffloadJob]) -> list[OffloadJob]:
    return [job for job in jobs if job.verdict is None]


def _by_index(index: StoredObject | Unreadable | None) -> OffloadFacts:
    if not isinstance(index, StoredObject):
        return OffloadFacts(data=None, index=None, index_detail="there is no index object")
    if index.content is None:
        return OffloadFacts(data=None, index=index, index_detail="the index object is archived and can't be read")
    try:
        parsed = parse_offload_index(index.content)
    except FormatError as error:
        return OffloadFacts(data=None, index=index, index_detail=str(error))
    # The data object need not be read if the index names the ledger's owner and the cluster, and the bucket has no
    # versions: then an undo needs no facts of the data object.
    is_proof = bool(parsed.metadata.custom_metadata) and CLUSTER_KEY in index.user_metadata and not index.version_id
    return OffloadFacts(
        data=None, index=index, metadata=parsed.metadata, data_bytes=parsed.data_bytes, index_only=is_proof
    )


def _bytes_of(facts: OffloadFacts) -> int:
    data_bytes = facts.data.size_bytes if facts.data else facts.data_bytes if facts.index_only else 0
    return data_bytes + (facts.index.size_bytes if facts.index else 0)
