"""ObjectStore in memory, with S3's habits: versions, delete markers, parts that no listing shows, lies on request.

Faults are asked for as in MemoryStore; each delete of a key is one effect, so that a test can let a batch break off.
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
    """All versions of a key, oldest first; None is a delete marker."""

    stack: list[StoredObject | None] = field(default_factory=list)

    @property
    def current(self) -> StoredObject | None:
        return self.stack[-1] if self.stack else None


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


class MemoryObjects:
    """A bucket. versioned: it keeps what is deleted. denied: keys without rights. lies: deletes do nothing, and say OK.

    gone: the bucket was removed. compares: deletes compare ETags, as S3's do; MinIO ignores them.
    """

    def __init__(self, *, versioned: bool = False, clock: Clock | None = None, compares: bool = False) -> None:
        self.compares = compares
        self.faults = Faults()
        self.denied: set[str] = set()
        self.lies = False
        self.gone = False
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
        """Begin an upload that is never completed; returns its id."""
        upload_id = self._new_id("u")
        self._uploads[upload_id] = UnfinishedUpload(key, upload_id, self._clock.now_ms())
        return upload_id

    def stored(self) -> list[str]:
        """Every key, sorted; for assertions, faults or not."""
        return sorted(key for key, versions in self._keys.items() if versions.current is not None)

    def read_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read objects with their content, in order; None: does not exist."""
        self._step("read_many", keys)
        return [self._seen(key) for key in keys]

    def head_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Describe objects, in order; None: does not exist."""
        self._step("head_many", keys)
        found = [self._seen(key) for key in keys]
        return [replace(each, content=None) if isinstance(each, StoredObject) else each for each in found]

    def compares_etags(self) -> bool:
        """Return what the test chose."""
        return self.compares

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> dict[str, str]:
        """Delete keys, one effect each; returns key -> error for those refused."""
        self._step("delete", keys)
        judged = (etags or {}) if self.compares else {}
        changed = {key: CHANGED for key in keys if key in judged and self._etag_now(key) not in (None, judged[key])}
        return changed | self._each([key for key in keys if key not in changed], lambda key: key, self._drop)

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Which of the keys exist now."""
        self._step("existing", keys)
        return set(keys).intersection(self.stored())

    def list_keys(self, prefix: str = "") -> Iterator[tuple[str, int, int]]:
        """Every (key, size in bytes, last modified ms), by key."""
        self._step("list_keys", [prefix])
        for key in self.stored():
            stored = self._keys[key].current
            if key.startswith(prefix) and stored is not None:
                yield key, stored.size_bytes, stored.last_modified_ms

    def unfinished_uploads(self, keys: Sequence[str]) -> list[UnfinishedUpload]:
        """Uploads to any of the keys that are neither completed nor aborted."""
        self._step("unfinished_uploads", keys)
        return [upload for upload in self._uploads.values() if upload.key in set(keys)]

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> dict[str, str]:
        """Give up the parts of uploads, one effect each; returns key -> error for those refused."""
        self._step("abort_uploads", [upload.key for upload in uploads])
        return self._each(uploads, lambda upload: upload.key, lambda upload: self._uploads.pop(upload.upload_id, None))

    def undelete(self, keys: Sequence[str]) -> set[str]:
        """Take away the delete markers that hide the keys; returns those that exist afterwards."""
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

    def _each(self, items: Sequence[_T], key_of: Callable[[_T], str], apply: Callable[[_T], object]) -> dict[str, str]:
        errors = {}
        for item in items:
            if key_of(item) in self.denied:
                errors[key_of(item)] = "AccessDenied: Access Denied"
            elif not self.lies:
                self.faults.effect(lambda item=item: apply(item))  # type: ignore[misc]
        return errors

    def _seen(self, key: str) -> StoredObject | Unreadable | None:
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
