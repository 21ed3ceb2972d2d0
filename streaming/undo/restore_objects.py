"""Restores deleted objects of tiered storage by removing their delete markers, if their bucket keeps versions.

A bucket without versions has lost the objects; the journal's copy of an index still describes the content.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streaming.clients import CommandClients
from streaming.config.amounts import topic_from
from streaming.config.policies import allowed_buckets
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.ports import ObjectStore, Unreadable
from streaming.state import journal
from streaming.undo.restore_ledgers import condition_of
from streaming.undo.undo_report import Undone, UndoReport, UndoResult, UndoSelection
from udfs.offload_drivers import Target, allowed_bucket, normal_endpoint
from udfs.paths import base_topic, topic_of
from udfs.records import StoredObject

_LATER = "the object exists in a different version from the deleted one, and was not changed"
_UNKNOWN = (
    "the store does not say whether the object exists: if the right s3:GetObject or s3:ListBucket is missing, grant "
    "it, and undo the delete again"
)
_NO_VERSIONS = "the bucket kept no version of it: the object is lost; the journal has its index"


def undo_objects(
    settings: Settings, clients: CommandClients, selection: UndoSelection, *, dry_run: bool = False
) -> UndoReport:
    """Restore the selected objects. A second call does nothing more.

    Raises ConfigError if the journal has no such object, UnavailableError, RefusedError.
    """
    entries = _newest(selected_objects(settings, selection))
    return UndoReport([result for entry in entries for result in _restored(settings, clients, entry, dry_run=dry_run)])


def selected_objects(settings: Settings, selection: UndoSelection) -> list[Mapping[str, Any]]:
    """Return the journal's entries of the selected objects. Raises ConfigError if there is none."""
    entries: list[Mapping[str, Any]] = [
        entry
        for entry in journal.object_entries(settings.state_dir, journal.JournalQuery(where=condition_of(selection)))
        if not selection.topic or _is_of(entry, selection.topic)
    ]
    if not entries:
        days = settings.state.journal_days
        raise ConfigError(
            f"the journal in {settings.state.dir} has no such object: it keeps the deletes of this service for {days} "
            "days"
        )
    return entries


def _restored(
    settings: Settings, clients: CommandClients, entry: Mapping[str, Any], *, dry_run: bool
) -> list[UndoResult]:
    versions = dict(named.rsplit("@", 1) for named in entry["objects"])
    bucket = allowed_bucket(Target("", normal_endpoint(entry["endpoint"]), entry["bucket"]), allowed_buckets(settings))
    if bucket is None:
        refused = f"bucket {entry['bucket']} is not in tiered_storage.allowed any more"
        return [_result(entry, key, Undone.FAILED, refused) for key in versions]
    store = clients.objects(bucket)
    hidden = [key for key, head in zip(versions, store.head_many(list(versions)), strict=True) if head is None]
    if not dry_run:
        # only keys without a current version: an object that was stored since must not be replaced
        store.undelete([key for key in hidden if versions[key]])
    return _results(entry, store, versions, hidden, dry_run=dry_run)


def _results(
    entry: Mapping[str, Any], store: ObjectStore, versions: Mapping[str, str], hidden: Sequence[str], *, dry_run: bool
) -> list[UndoResult]:
    results = []
    for key, head in zip(versions, store.head_many(list(versions)), strict=True):
        if isinstance(head, Unreadable):
            # without s3:ListBucket, S3 refuses to say that an absent object is absent
            results.append(_result(entry, key, Undone.FAILED, f"{_UNKNOWN}: {head.detail}"))
        elif head is None and key not in hidden:
            results.append(_result(entry, key, Undone.FAILED, _UNKNOWN))
        elif key not in hidden:
            same = isinstance(head, StoredObject) and head.version_id == versions[key]
            results.append(_result(entry, key, Undone.EXISTS, "the object exists" if same else _LATER))
        elif not versions[key]:
            results.append(_result(entry, key, Undone.FAILED, _NO_VERSIONS))
        elif dry_run:
            results.append(_result(entry, key, Undone.WOULD_PUT_BACK, ""))
        elif isinstance(head, StoredObject) and head.version_id == versions[key]:
            results.append(_result(entry, key, Undone.PUT_BACK, ""))
        else:
            results.append(_result(entry, key, Undone.FAILED, f"version {versions[key]} did not come back"))
    return results


def _newest(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    newest: dict[tuple[str, str, str, int], Mapping[str, Any]] = {}
    for entry in entries:
        key = (entry["endpoint"], entry["bucket"], entry["uuid"], entry["ledger_id"])
        if key not in newest or entry["at_ms"] >= newest[key]["at_ms"]:
            newest[key] = entry
    return list(newest.values())


def _is_of(entry: Mapping[str, Any], topic: str) -> bool:
    owner = topic_of(str(entry["reference_key"]).partition(":")[2])
    return topic_from(topic, "--topic") in (owner, base_topic(owner))


def _result(entry: Mapping[str, Any], key: str, status: Undone, detail: str) -> UndoResult:
    owner = topic_of(str(entry["reference_key"]).partition(":")[2])
    return UndoResult(
        ledger_id=int(entry["ledger_id"]),
        path=f"{entry['endpoint'] or 's3:/'}/{entry['bucket']}/{key}",
        owner=owner,
        deleted_ms=int(entry["at_ms"]),
        status=status,
        detail=detail,
    )
