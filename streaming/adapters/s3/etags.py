"""Tests whether a store compares ETags when it deletes: S3 and Ceph do, MinIO never, and moto not in DeleteObjects."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol
from uuid import uuid4

from streaming.adapters.s3.calls import AbsentError, DeniedError, UnsupportedError
from streaming.errors import ReaperError, RefusedError, UnavailableError
from streaming.ports import CHANGED

log = logging.getLogger("ledger-reaper")

_FALSE_ETAG = '"00000000000000000000000000000000"'


class OwnObjects(Protocol):
    """A bucket in which this service may store a test object for a moment."""

    def put_own(self, key: str, content: bytes) -> str:
        """Store an object of our own and return its ETag."""
        ...

    def remove_own(self, key: str) -> None:
        """Remove every version of an object of our own."""
        ...

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Delete keys with these ETags; return key -> error for those that are refused."""
        ...

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return which keys exist."""
        ...


def compares_etags(bucket: OwnObjects) -> bool:
    """Delete a test object with a false ETag, which must fail, and then with its own ETag.

    Returns False also if this service may not store objects in the bucket; deletes then carry no ETag.

    Raises UnavailableError, also if the store refuses for a reason that may pass (an expired token, a wrong clock, a
    missing bucket); the caller tests again later.
    """
    key = f".ledger-reaper-{uuid4().hex}"
    try:
        etag = bucket.put_own(key, b"tests whether deletes compare ETags")
        try:
            is_kept = bucket.delete([key], {key: _FALSE_ETAG}) == {key: CHANGED} and bucket.existing([key]) == {key}
            compares = is_kept and not bucket.delete([key], {key: etag}) and not bucket.existing([key])
        finally:
            with suppress(ReaperError, AbsentError):
                bucket.remove_own(key)
    # these two are permanent; other refusals may pass (an expired token, a wrong clock, a missing bucket)
    except (DeniedError, UnsupportedError) as error:
        log.warning(
            "deletes in tiered storage carry no ETag, because the store does not allow the test of ETags: %s", error
        )
        return False
    except (RefusedError, AbsentError) as error:
        raise UnavailableError(f"can't test whether deletes compare ETags: {error}") from error
    return compares
