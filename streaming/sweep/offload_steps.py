"""The steps of a sweep in one bucket; every function talks to that store only."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from streaming.ports import CHANGED, ObjectStore, Unreadable
from streaming.sweep.offload_jobs import OffloadJob
from udfs.formats.errors import FormatError
from udfs.formats.offload_index import parse_offload_index
from udfs.judge_offload import CLUSTER_KEY
from udfs.records import OffloadFacts, Reason, StoredObject, UnfinishedUpload

_NO_VERSIONS = frozenset({"", "null"})  # "null": stored before the bucket had versions, or while they were suspended


def look(store: ObjectStore, jobs: Sequence[OffloadJob], *, with_etags: bool = False) -> None:
    """Write into each job what the bucket holds under its name; give it a verdict where that can't be read.

    Mostly one request a job is enough, for the index. We ask for the data object only if the index does not prove all
    that we need to know of it, or with_etags: for the ETag that its delete has to carry.
    """
    indexes = store.read_many([one.index_key for one in jobs])
    facts = [_by_index(index) for index in indexes]
    if with_etags:
        facts = [replace(known, index_only=False) for known in facts]
    asked = [one.name for one, known in zip(jobs, facts, strict=True) if not known.index_only]
    heads = dict(zip(asked, store.head_many(asked), strict=True))
    uploads: defaultdict[str, list[UnfinishedUpload]] = defaultdict(list)
    for upload in store.unfinished_uploads([one.name for one in jobs]):
        uploads[upload.key].append(upload)
    for one, index, known in zip(jobs, indexes, facts, strict=True):
        head = heads.get(one.name)
        blind = next((each for each in (index, head) if isinstance(each, Unreadable)), None)
        if blind is not None:
            one.later(Reason.LEDGER_UNREADABLE, blind.detail)
            continue
        data = head if isinstance(head, StoredObject) else None
        one.objects = replace(known, data=data, uploads=tuple(uploads[one.name]))
        one.length_bytes = _bytes_of(one.objects)


def abort_uploads(store: ObjectStore, jobs: Sequence[OffloadJob]) -> list[OffloadJob]:
    """Abort uploads that were never completed; return the jobs that may go on."""
    mine = {one.name: one for one in jobs if one.facts.uploads}
    if not mine:
        return list(jobs)
    # Allowed here: judged deletable, and begun so long ago that no broker completes them.
    errors = store.abort_uploads([upload for one in mine.values() for upload in one.facts.uploads])
    left = {upload.upload_id for upload in store.unfinished_uploads(list(mine))}
    for name, one in mine.items():
        if name in errors:
            one.later(Reason.STORE_REFUSED, f"parts of {name}: {errors[name]}")
        elif any(upload.upload_id in left for upload in one.facts.uploads):
            one.later(Reason.STILL_THERE, f"parts of {name} were found after they were given up")
    return _going_on(jobs)


def delete_data(store: ObjectStore, jobs: Sequence[OffloadJob]) -> list[OffloadJob]:
    """Delete data objects, and look for them afterwards; return the jobs that may go on."""
    return _delete(
        store,
        jobs,
        lambda one: one.name if one.facts.data or one.facts.index_only else "",
        lambda one: one.facts.data.etag if one.facts.data else "",
    )


def delete_indexes(store: ObjectStore, jobs: Sequence[OffloadJob]) -> list[OffloadJob]:
    """Delete index objects, which are the proof, last, and look for them afterwards; return the jobs that are done."""
    return _delete(
        store,
        jobs,
        lambda one: one.index_key if one.facts.index else "",
        lambda one: one.facts.index.etag if one.facts.index else "",
    )


def kept_versions(facts: OffloadFacts) -> str:
    """Say that a bucket with versions keeps the bytes; "" for other buckets."""
    stored = [each for each in (facts.data, facts.index) if each is not None]
    if all(each.version_id in _NO_VERSIONS for each in stored):
        return ""
    return (
        "the bucket has versions: delete markers hide the objects, their bytes stay until a lifecycle rule takes them"
    )


def _delete(
    store: ObjectStore,
    jobs: Sequence[OffloadJob],
    key_of: Callable[[OffloadJob], str],
    etag_of: Callable[[OffloadJob], str],
) -> list[OffloadJob]:
    mine = {key_of(one): one for one in jobs if key_of(one)}
    etags = {key: etag_of(one) for key, one in mine.items() if etag_of(one)} if store.compares_etags() else {}
    # Allowed here: judged deletable, durable in the journal, owners and epoch unchanged a moment ago. Where the store
    # compares ETags, nothing but the very object that was judged goes.
    errors = store.delete(list(mine), etags)
    there = store.existing([key for key in mine if errors.get(key, CHANGED) == CHANGED])
    for key, one in mine.items():
        if errors.get(key) == CHANGED and key in there:
            one.later(Reason.LEDGER_CHANGED, f"{key} was stored again between our look and our delete")
        elif key in errors and errors[key] != CHANGED:
            one.later(Reason.STORE_REFUSED, f"{key}: {errors[key]}")
        elif key in there:
            one.later(Reason.STILL_THERE, f"{key} was found after its deletion")
    return _going_on(jobs)


def _going_on(jobs: Sequence[OffloadJob]) -> list[OffloadJob]:
    return [one for one in jobs if one.verdict is None]


def _by_index(index: StoredObject | Unreadable | None) -> OffloadFacts:
    if not isinstance(index, StoredObject):
        return OffloadFacts(data=None, index=None, index_detail="there is no index object")
    if index.content is None:
        return OffloadFacts(data=None, index=index, index_detail="the index object is archived and can't be read")
    try:
        parsed = parse_offload_index(index.content)
    except FormatError as error:
        return OffloadFacts(data=None, index=index, index_detail=str(error))
    # The index names the ledger's owner and the cluster, and without versions an undo needs nothing of the data object.
    is_proof = bool(parsed.metadata.custom_metadata) and CLUSTER_KEY in index.user_metadata and not index.version_id
    return OffloadFacts(
        data=None, index=index, metadata=parsed.metadata, data_bytes=parsed.data_bytes, index_only=is_proof
    )


def _bytes_of(facts: OffloadFacts) -> int:
    data_bytes = facts.data.size_bytes if facts.data else facts.data_bytes if facts.index_only else 0
    return data_bytes + (facts.index.size_bytes if facts.index else 0)
