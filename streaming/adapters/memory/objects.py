"""ObjectStore in memory that behaves like S3: versions, delete markers, and upload parts that no listing shows.

Each delete of a key is one effect of `faults`, so that a test can interrupt a batch.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from streaming.adapters.memory.faults import Faults
from streaming.clock import Clock, ManualClock
from streaming.errors import RefusedError
from streaming.ports import CHANGED, Unreadable
from udfs.records import StoredObject, UnfinishedUpload

_T = TypeVar("_T")


@dataclass(slots=True)
class _Versions:
    """All versions of a key."""

    stack: list[StoredObject | None] = field(default_factory=list)  # oldest first; None is a delete marker

    @property
    def current(self) -> StoredObject | None:
        return self.stack[-1] if self.stack else None


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class MemoryObjects:
    """A bucket.

    Args:
        versioned: deletes add delete markers and keep the versions.
        compares: deletes compare ETags, as S3's do; MinIO ignores them.
    """

    def __init__(self, *, versioned: bool = False, clock: Clock | None = None, compares: bool = False) -> None:
        self.compares = compares
        self.faults = Faults()
        self.denied: set[str] = set()  # keys for which we have no permissions
        self.lies = False  # deletes do nothing and report success
        self.gone = False  # the bucket was removed
        self._versioned = versioned
        self._clock = clock or ManualClock(1_700_000_000_000)
        self._keys: dict[str, _Versions] = {}
        self._uploads: dict[str, UnfinishedUpload] = {}
        self._given = 0

    def put(self, key: str, content: bytes, user_metadata: Mapping[str, str] | None = None) -> None:
        """Store an object, as an offloader does."""
        metadata = {name.lower(): value for name, value in (user_metadata or {}).items()}
        version = self._new_id("v") if self._versioned else ""
        stored = StoredObject(
            size_bytes=len(content),
            last_modified_ms=self._clock.now_ms(),
            user_metadata=metadata,
            version_id=version,
            content=bytes(content),
            etag=_etag(content),
        )
        versions = self._keys.setdefault(key, _Versions())
        versions.stack = [*versions.stack, stored] if self._versioned else [stored]

    def begin_upload(self, key: str) -> str:
        """Start an upload that is never completed, and return its id."""
        upload_id = self._new_id("u")
        self._uploads[upload_id] = UnfinishedUpload(key, upload_id, self._clock.now_ms())
        return upload_id

    def stored(self) -> list[str]:
        """Return every key, sorted. For assertions: faults and permissions are ignored."""
        return sorted(key for key, versions in self._keys.items() if versions.current is not None)

    def read_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read objects with their content, in the order of keys; None: does not exist."""
        self._step("read_many", keys)
        return [self._read(key) for key in keys]

    def head_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Describe objects without their content, in the order of keys; None: does not exist."""
        self._step("head_many", keys)
        objects = [self._read(key) for key in keys]
        return [replace(stored, content=None) if isinstance(stored, StoredObject) else stored for stored in objects]

    def compares_etags(self) -> bool:
        """Return what the test chose."""
        return self.compares

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> dict[str, str]:
        """Delete keys, an effect for each; return key -> error for those that are refused."""
        self._step("delete", keys)
        compared = (etags or {}) if self.compares else {}
        changed = {key: CHANGED for key in keys if key in compared and self._etag_now(key) not in (None, compared[key])}
        return changed | self._apply([key for key in keys if key not in changed], lambda key: key, self._drop)

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return which of the keys exist now."""
        self._step("existing", keys)
        return set(keys).intersection(self.stored())

    def list_keys(self, prefix: str = "") -> Iterator[tuple[str, int, int]]:
        """Yield every (key, size in bytes, last modified ms), ordered by key."""
        self._step("list_keys", [prefix])
        for key in self.stored():
            stored = self._keys[key].current
            if key.startswith(prefix) and stored is not None:
                yield key, stored.size_bytes, stored.last_modified_ms

    def unfinished_uploads(self, keys: Sequence[str]) -> list[UnfinishedUpload]:
        """Return uploads to any of the keys that are neither completed nor aborted."""
        self._step("unfinished_uploads", keys)
        return [upload for upload in self._uploads.values() if upload.key in set(keys)]

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> dict[str, str]:
        """Abort uploads, an effect for each; return key -> error for those that are refused."""
        self._step("abort_uploads", [upload.key for upload in uploads])
        return self._apply(uploads, lambda upload: upload.key, lambda upload: self._uploads.pop(upload.upload_id, None))

    def undelete(self, keys: Sequence[str]) -> set[str]:
        """Remove the delete markers that hide the keys; return the keys that exist afterwards."""
        self._step("undelete", keys)
        for key in keys:
            stack = self._keys[key].stack if key in self._keys else []
            if stack and stack[-1] is None:
                stack.pop()
        return set(keys).intersection(self.stored())

    def _etag_now(self, key: str) -> str | None:
        stored = self._keys[key].current if key in self._keys else None
        return None if stored is None else stored.etag

    def _drop(self, key: str) -> None:
        versions = self._keys.get(key)
        if versions is None:
            return
        if not self._versioned:
            del self._keys[key]
        elif versions.current is not None:
            versions.stack.append(None)

    def _apply(self, items: Sequence[_T], key_of: Callable[[_T], str], apply: Callable[[_T], object]) -> dict[str, str]:
        errors = {}
        for item in items:
            if key_of(item) in self.denied:
                errors[key_of(item)] = "AccessDenied: Access Denied"
            elif not self.lies:
                self.faults.effect(lambda item=item: apply(item))  # type: ignore[misc]
        return errors

    def _read(self, key: str) -> StoredObject | Unreadable | None:
        if key in self.denied:
            return Unreadable("AccessDenied: Access Denied")
        return self._keys[key].current if key in self._keys else None

    def _step(self, operation: str, keys: Sequence[str]) -> None:
        self.faults.step(operation, keys)
        if self.gone:
            raise RefusedError("there is no such bucket: check tiered_storage.allowed")

    def _new_id(self, kind: str) -> str:
        self._given += 1
        return f"{kind}{self._given}"
