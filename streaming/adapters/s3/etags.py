"""Whether a store compares ETags when it deletes: S3 and Ceph do, MinIO ignores them (moto: in DeleteObjects)."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol
from uuid import uuid4

from streaming.adapters.s3.calls import AbsentError, DeniedError, UnsupportedError
from streaming.errors import ReaperError, RefusedError, UnavailableError
from streaming.ports import CHANGED

log = logging.getLogger("ledger-reaper")

_OTHER = '"00000000000000000000000000000000"'


class OwnObjects(Protocol):
    """A bucket in which we may keep an object of our own for a moment."""

    def put_own(self, key: str, content: bytes) -> str:
        """Store an object; returns its ETag."""
        ...

    def remove_own(self, key: str) -> None:
        """Remove whatever is left of it."""
        ...

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Delete keys, with ETags."""
        ...

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return which keys exist."""
        ...


def compares_etags(bucket: OwnObjects) -> bool:
    """Delete an object of ours with a false ETag, which has to fail, and then with its own.

    False too where we may not store an object: then deletes carry no ETag. Raises UnavailableError, also if the
    store refused for a reason that may pass (an expired token, a wrong clock, a missing bucket); ask again later.
    """
    key = f".ledger-reaper-{uuid4().hex}"
    try:
        etag = bucket.put_own(key, b"tries whether deletes compare ETags")
        try:
            is_kept = bucket.delete([key], {key: _OTHER}) == {key: CHANGED} and bucket.existing([key]) == {key}
            compares = is_kept and not bucket.delete([key], {key: etag}) and not bucket.existing([key])
        finally:
            with suppress(ReaperError, AbsentError):
                bucket.remove_own(key)
    except (DeniedError, UnsupportedError) as error:
        log.warning(
            "deletes in tiered storage carry no ETag, since it can't be tried whether they are compared: %s", error
        )
        return False
    except (RefusedError, AbsentError) as error:
        raise UnavailableError(f"it can't be tried whether deletes compare ETags: {error}") from error
    return compares
