"""Whether the objects of an offloaded ledger exist, before the sweep deletes the ledger's copy in BookKeeper.

A list that says "offloaded, given up in BookKeeper" does not prove that the objects are there: a lifecycle rule,
another cluster or a person may have deleted them. Then the copy in BookKeeper is the last one, and an operator can
bring the topic back with it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from streaming.errors import RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore, Unreadable
from streaming.sweep.offload_jobs import Stores
from udfs.formats.managed_ledger import ManagedLedgerInfo, OffloadState
from udfs.formats.offload_index import index_name, object_name
from udfs.offload_target import Bucket
from udfs.records import OffloadContext, Outcome, PendingDelete, Reason, Reference, StoredObject, Verdict

# Takes requests for ledgers that their owners' references name as given up in BookKeeper. Returns in order None where
# both objects of each upload exist, and else why the ledger is kept.
Confirm = Callable[[Sequence[tuple[PendingDelete, Reference]]], list[Verdict | None]]
_Upload = tuple[int, str]


@dataclass(frozen=True, slots=True)
class OffloadedCopies:
    """Asks tiered storage, all ledgers of a bucket at a time. A Confirm."""

    loader: InUseLoader
    places: Stores

    def __call__(self, asked: Sequence[tuple[PendingDelete, Reference]]) -> list[Verdict | None]:
        """Ask for both objects of each upload. Raises UnavailableError when ZooKeeper does not answer."""
        lists = self.loader.lists({request.managed_ledger for request, _ in asked})
        listed = {owner: _uploads(info) for owner, info in lists.items()}
        needed = _needed({reference.key: reference for _, reference in asked}.values())
        uploads: list[PendingDelete] = []
        doubts: list[Verdict | None] = []
        of_upload: list[int] = []  # the place in `asked` that each upload belongs to
        for place, (request, reference) in enumerate(asked):
            uuids = needed[reference.key][request.ledger_id]
            known = listed.get(request.managed_ledger, {})
            states = [known.get((request.ledger_id, uuid)) for uuid in uuids]
            found = [_with(request, uuid, state) for uuid, state in zip(uuids, states, strict=True) if state]
            is_whole = bool(uuids) and len(found) == len(uuids)
            doubts.append(None if is_whole else _later(f"{reference.key} does not tell where its objects are"))
            uploads += found
            of_upload += [place] * len(found)
        for place, doubt in zip(of_upload, self._doubts(uploads), strict=True):
            doubts[place] = doubts[place] or doubt
        return doubts

    def _doubts(self, uploads: Sequence[PendingDelete]) -> list[Verdict | None]:
        doubts: list[Verdict | None] = [None] * len(uploads)
        of_bucket: defaultdict[Bucket, list[int]] = defaultdict(list)
        for place, found in enumerate(self.places.places(uploads)):
            if isinstance(found, Bucket):
                of_bucket[found].append(place)
            else:  # which bucket, or whether it is ours to read, is not known: that counts as in use
                doubts[place] = found if found.outcome is Outcome.RETRY else _later(found.detail)
        for bucket, places in of_bucket.items():
            for place, doubt in zip(places, self._in_bucket(bucket, [uploads[each] for each in places]), strict=True):
                doubts[place] = doubt
        return doubts

    def _in_bucket(self, bucket: Bucket, uploads: Sequence[PendingDelete]) -> list[Verdict | None]:
        names = [_name(upload) for upload in uploads]
        try:
            heads = _heads(self.places.store(bucket), names)
        except UnavailableError as error:
            return [Verdict(Outcome.RETRY, Reason.STORE_UNAVAILABLE, str(error))] * len(uploads)
        except RefusedError as error:
            return [_later(str(error))] * len(uploads)
        return [_missing(bucket, heads[data]) or _missing(bucket, heads[index]) for data, index in names]


def _heads(
    store: ObjectStore, names: Sequence[tuple[str, str]]
) -> Mapping[str, tuple[str, StoredObject | Unreadable | None]]:
    keys = [key for pair in names for key in pair]
    return {key: (key, head) for key, head in zip(keys, store.head_many(keys), strict=True)}


def _missing(bucket: Bucket, found: tuple[str, StoredObject | Unreadable | None]) -> Verdict | None:
    key, head = found
    if head is None:
        return _later(f"{key} does not exist in bucket {bucket.name}: the copy in BookKeeper may be the last one")
    return _later(head.detail) if isinstance(head, Unreadable) else None


def _needed(references: Iterable[Reference]) -> dict[str, defaultdict[int, list[str]]]:
    """Return by reference key and ledger the uploads that the owner needs, as the verdict rests on them."""
    needed: dict[str, defaultdict[int, list[str]]] = {}
    for reference in references:
        of_owner = needed[reference.key] = defaultdict(list)
        for ledger_id, uuid in sorted(reference.offloads):
            of_owner[ledger_id].append(uuid)
    return needed


def _uploads(info: ManagedLedgerInfo) -> dict[_Upload, OffloadState]:
    """Return the uploads whose objects have the names that we know; those of a streaming offload have others."""
    return {
        (each.ledger_id, each.offload.uuid): each.offload
        for each in info.ledgers
        if each.offload is not None and each.offload.uuid is not None and not each.offload.segment_uuids
    }


def _with(request: PendingDelete, uuid: str, state: OffloadState) -> PendingDelete:
    context = OffloadContext(uuid, driver_name=state.driver_name, driver_properties=state.driver_properties)
    return replace(request, offload_context=context)


def _name(upload: PendingDelete) -> tuple[str, str]:
    uuid = upload.offload_context.uuid if upload.offload_context else ""
    return object_name(uuid, upload.ledger_id), index_name(uuid, upload.ledger_id)


def _later(detail: str) -> Verdict:
    return Verdict(Outcome.RETRY, Reason.OFFLOAD_UNCONFIRMED, detail)
