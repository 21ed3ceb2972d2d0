"""The stores of a dry run: they read the real stores, but only remember deletes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from streaming.ports import GuardedDelete, GuardResult, GuardStatus, ObjectStore, SweepStore, Unreadable, Znode
from streaming.state.journal import JournalEntry, ObjectEntry, SnapshotEntry
from udfs.paths import managed_ledger_path
from udfs.records import StoredObject, UnfinishedUpload


class DryRunStore:
    """ZooKeeper in a dry run: deletes are only remembered, and a remembered ledger is no longer found."""

    def __init__(self, store: SweepStore) -> None:
        self._store = store
        self._deleted: set[str] = set()

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Read from ZooKeeper; None for ledgers deleted in this dry run. Raises UnavailableError."""
        nodes = self._store.read_many(paths)
        return [None if path in self._deleted else node for path, node in zip(paths, nodes, strict=True)]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        """List from ZooKeeper. Raises UnavailableError."""
        return self._store.children_many(paths)

    def delete_guarded(self, batches: Sequence[GuardedDelete]) -> list[GuardResult]:
        """Remember the deletes; nothing is sent."""
        # the next read must not find the ledger: the sweep verifies each delete, and would count it as STILL_THERE
        self._deleted.update(path for batch in batches for path, _ in batch.deletes)
        return [GuardResult(GuardStatus.DELETED) for _ in batches]

    def acl_of(self, path: str) -> bytes | None:
        """Return an empty ACL: only the undo of a delete needs it, and nothing is deleted."""
        del path
        return b""


class DryRunObjects:
    """A bucket in a dry run. Raises as the bucket does."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._deleted: set[str] = set()

    def read_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read from the bucket; None for objects deleted in this dry run."""
        return self._without_deleted(keys, self._store.read_many(keys))

    def head_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read from the bucket; None for objects deleted in this dry run."""
        return self._without_deleted(keys, self._store.head_many(keys))

    def compares_etags(self) -> bool:
        """Return False: nothing is deleted, and the test would store an object."""
        return False

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> dict[str, str]:
        """Remember the deletes; nothing is sent."""
        del etags
        self._deleted.update(keys)
        return {}

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that exist in the bucket and were not deleted in this dry run."""
        return self._store.existing([key for key in keys if key not in self._deleted])

    def list_keys(self, prefix: str = "") -> Iterator[tuple[str, int, int]]:
        """List the bucket, without objects deleted in this dry run."""
        return (listed for listed in self._store.list_keys(prefix) if listed[0] not in self._deleted)

    def unfinished_uploads(self, keys: Sequence[str]) -> list[UnfinishedUpload]:
        """Read from the bucket, without uploads aborted in this dry run."""
        return [upload for upload in self._store.unfinished_uploads(keys) if upload.upload_id not in self._deleted]

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> dict[str, str]:
        """Remember the aborts; nothing is sent."""
        self._deleted.update(upload.upload_id for upload in uploads)
        return {}

    def undelete(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that exist: a dry run hides no object that could come back."""
        return self._store.existing(keys)

    def _without_deleted(
        self, keys: Sequence[str], found: Sequence[StoredObject | Unreadable | None]
    ) -> list[StoredObject | Unreadable | None]:
        return [None if key in self._deleted else stored for key, stored in zip(keys, found, strict=True)]


class DryRunSegments:
    """Brokers in a dry run: they delete nothing, and the store remembers the segment's own znode as deleted."""

    def __init__(self, store: DryRunStore) -> None:
        self._store = store

    def delete(self, segment: str, may_send: Callable[[], bool]) -> bool:
        """Remember the deletion if it may be sent. Raises what may_send raises."""
        if not may_send():
            return False
        self._store.delete_guarded([GuardedDelete((), ((managed_ledger_path(segment), -1),))])
        return True

    def close(self) -> None:
        """Do nothing."""


class NoJournal:
    """The journal in a dry run: nothing is deleted, so nothing is written."""

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Do nothing."""

    def write_objects(self, entries: Sequence[ObjectEntry]) -> None:
        """Do nothing."""

    def write_snapshots(self, entries: Sequence[SnapshotEntry]) -> None:
        """Do nothing."""

    def newest_snapshots(self, topic: str, keys: Collection[str]) -> dict[str, tuple[tuple[int, int], bytes]]:
        """Return nothing: a dry run restores nothing."""
        del topic, keys
        return {}
