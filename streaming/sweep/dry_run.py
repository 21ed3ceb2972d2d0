"""The same sweep without effects: what would be deleted now, so that limits are judged before anything happens."""

from collections.abc import Iterator, Sequence

from streaming.ports import GuardedDelete, GuardResult, GuardStatus, ObjectStore, SweepStore, Unreadable, Znode
from streaming.state.journal import JournalEntry, ObjectEntry
from udfs.records import StoredObject, UnfinishedUpload


class DryRunStore:
    """Reads what is there; a delete is only remembered, and what was deleted is not found any more."""

    def __init__(self, store: SweepStore) -> None:
        self._store = store
        self._deleted: set[str] = set()

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Read through; None for what was deleted in this dry run. Raises UnavailableError."""
        nodes = self._store.read_many(paths)
        return [None if path in self._deleted else node for path, node in zip(paths, nodes, strict=True)]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        """Read through. Raises UnavailableError."""
        return self._store.children_many(paths)

    def delete_guarded(self, batches: Sequence[GuardedDelete]) -> list[GuardResult]:
        """Remember; nothing is sent."""
        self._deleted.update(path for batch in batches for path, _ in batch.deletes)
        return [GuardResult(GuardStatus.DELETED) for _ in batches]

    def acl_of(self, path: str) -> bytes | None:
        """An ACL is only needed to undo, and nothing has to be undone."""
        del path
        return b""


class DryRunObjects:
    """The same of a bucket. Raises as the bucket does."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._deleted: set[str] = set()

    def read_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read through."""
        return self._without_deleted(keys, self._store.read_many(keys))

    def head_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read through."""
        return self._without_deleted(keys, self._store.head_many(keys))

    def delete(self, keys: Sequence[str]) -> dict[str, str]:
        """Remember; nothing is sent."""
        self._deleted.update(keys)
        return {}

    def existing(self, keys: Sequence[str]) -> set[str]:
        """What a look afterwards would find; what was deleted in this dry run is not asked for."""
        return self._store.existing([key for key in keys if key not in self._deleted])

    def list_keys(self, prefix: str = "") -> Iterator[tuple[str, int, int]]:
        """Read through."""
        return (found for found in self._store.list_keys(prefix) if found[0] not in self._deleted)

    def unfinished_uploads(self, keys: Sequence[str]) -> list[UnfinishedUpload]:
        """Read through; none of those that were given up in this dry run."""
        return [each for each in self._store.unfinished_uploads(keys) if each.upload_id not in self._deleted]

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> dict[str, str]:
        """Remember; nothing is sent."""
        self._deleted.update(upload.upload_id for upload in uploads)
        return {}

    def undelete(self, keys: Sequence[str]) -> set[str]:
        """Nothing was hidden, so nothing comes back but what is there."""
        return self._store.existing(keys)

    def _without_deleted(
        self, keys: Sequence[str], found: Sequence[StoredObject | Unreadable | None]
    ) -> list[StoredObject | Unreadable | None]:
        return [None if key in self._deleted else each for key, each in zip(keys, found, strict=True)]


class NoJournal:
    """A journal for what does not happen."""

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Do nothing: nothing will be deleted."""

    def write_objects(self, entries: Sequence[ObjectEntry]) -> None:
        """Do nothing, likewise."""
