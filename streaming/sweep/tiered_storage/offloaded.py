"""Checks that the objects of an offloaded ledger exist before the sweep deletes the ledger's copy in BookKeeper."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from streaming.errors import RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore, Unreadable
from streaming.sweep.tiered_storage.offload_jobs import Stores
from udfs.formats.managed_ledger import ManagedLedgerInfo, OffloadState
from udfs.formats.offload_index import index_name, object_name
from udfs.offload_drivers import Bucket
from udfs.records import OffloadContext, Outcome, PendingDelete, Reason, Reference, StoredObject, Verdict

# Takes requests for ledgers that their owners list but need in tiered storage only (Reference.given_up). Returns, in
# order, None if both objects of each of the ledger's uploads exist, and otherwise why the ledger is kept.
Confirm = Callable[[Sequence[tuple[PendingDelete, Reference]]], list[Verdict | None]]
_Upload = tuple[int, str]


@dataclass(frozen=True, slots=True)
class OffloadedCopies:
    """Reads tiered storage, all ledgers of a bucket at a time. A Confirm."""

    loader: InUseLoader
    stores: Stores

    def __call__(self, ledgers: Sequence[tuple[PendingDelete, Reference]]) -> list[Verdict | None]:
        """Check both objects of each upload. Raises UnavailableError when ZooKeeper does not answer."""
        lists = self.loader.lists({request.managed_ledger for request, _ in ledgers})
        listed = {owner: _uploads(info) for owner, info in lists.items()}
        needed = _needed({reference.key: reference for _, reference in ledgers}.values())
        uploads: list[PendingDelete] = []
        doubts: list[Verdict | None] = []
        of_upload: list[int] = []  # the index in `ledgers` of each upload's ledger
        for at, (request, reference) in enumerate(ledgers):
            uuids = needed[reference.key][request.ledger_id]
            states_of = listed.get(request.managed_ledger, {})
            states = [states_of.get((request.ledger_id, uuid)) for uuid in uuids]
            located = [_with(request, uuid, state) for uuid, state in zip(uuids, states, strict=True) if state]
            is_whole = bool(uuids) and len(located) == len(uuids)
            doubts.append(
                None if is_whole else _later(f"{reference.key} does not name the location of the ledger's objects")
            )
            uploads += located
            of_upload += [at] * len(located)
        for at, doubt in zip(of_upload, self._doubts(uploads), strict=True):
            doubts[at] = doubts[at] or doubt
        return doubts

    def _doubts(self, uploads: Sequence[PendingDelete]) -> list[Verdict | None]:
        doubts: list[Verdict | None] = [None] * len(uploads)
        by_bucket: defaultdict[Bucket, list[int]] = defaultdict(list)
        for at, bucket in enumerate(self.stores.buckets(uploads)):
            if isinstance(bucket, Bucket):
                by_bucket[bucket].append(at)
            else:  # the bucket, or whether we may read it, is not known: that counts as in use
                doubts[at] = bucket if bucket.outcome is Outcome.RETRY else _later(bucket.detail)
        for bucket, indices in by_bucket.items():
            for at, doubt in zip(indices, self._in_bucket(bucket, [uploads[at] for at in indices]), strict=True):
                doubts[at] = doubt
        return doubts

    def _in_bucket(self, bucket: Bucket, uploads: Sequence[PendingDelete]) -> list[Verdict | None]:
        names = [_name(upload) for upload in uploads]
        try:
            heads = _heads(self.stores.store(bucket), names)
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
    # The list's state "offloaded, deleted from BookKeeper" does not prove that the objects exist: a lifecycle rule,
    # another cluster or an operator may have deleted them. Then an operator can restore the topic from the copy in
    # BookKeeper.
    if head is None:
        return _later(f"{key} does not exist in bucket {bucket.name}: the copy in BookKeeper may be the last one")
    return _later(head.detail) if isinstance(head, Unreadable) else None


def _needed(references: Iterable[Reference]) -> dict[str, defaultdict[int, list[str]]]:
    """Return, by reference key and ledger, the UUIDs of the uploads that the owner needs: the verdict rests on them."""
    needed: dict[str, defaultdict[int, list[str]]] = {}
    for reference in references:
        of_owner = needed[reference.key] = defaultdict(list)
        for ledger_id, uuid in sorted(reference.offloads):
            of_owner[ledger_id].append(uuid)
    return needed


def _uploads(info: ManagedLedgerInfo) -> dict[_Upload, OffloadState]:
    """Return the uploads whose objects have known names; the objects of a streaming offload have other names."""
    return {
        (ledger.ledger_id, ledger.offload.uuid): ledger.offload
        for ledger in info.ledgers
        if ledger.offload is not None and ledger.offload.uuid is not None and not ledger.offload.segment_uuids
    }


def _with(request: PendingDelete, uuid: str, state: OffloadState) -> PendingDelete:
    context = OffloadContext(uuid=uuid, driver_name=state.driver_name, driver_properties=state.driver_properties)
    return replace(request, offload_context=context)


def _name(upload: PendingDelete) -> tuple[str, str]:
    uuid = upload.offload_context.uuid if upload.offload_context else ""
    return object_name(uuid, upload.ledger_id), index_name(uuid, upload.ledger_id)


def _later(detail: str) -> Verdict:
    return Verdict(Outcome.RETRY, Reason.OFFLOAD_UNCONFIRMED, detail)
