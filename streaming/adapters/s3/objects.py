"""ObjectStore over the S3 API, in bulk: a thousand keys per delete, and existence checks in few requests.

An object counts as absent only if the store reports that for a bucket that exists.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from streaming.adapters.s3.adaptive_pace import AdaptivePace
from streaming.adapters.s3.calls import (
    ABSENT,
    CHANGED_CODES,
    TRANSIENT,
    AbsentError,
    ChangedError,
    DeniedError,
    S3Calls,
    S3Settings,
    UnsupportedError,
)
from streaming.adapters.s3.etags import compares_etags
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import CHANGED, Unreadable
from udfs.records import StoredObject, UnfinishedUpload

# An index of 800,000 blocks has this size; a larger object is not an index, and would fill memory.
MAX_CONTENT_BYTES = 16 * 1024 * 1024
_KEYS_PER_DELETE = 1000  # S3's own limit
_DELETES_AT_ONCE = 4  # measured: 4 batches in flight were fastest; more only reached the store's limit
_DELETE_ROUNDS = 8  # for keys whose errors the store calls transient; each round is paced
_WORTH_A_PAGE = 8  # a listing must settle this many keys to be cheaper than a request for each
_UPLOADS_LISTED_BY_KEY = 4

_T = TypeVar("_T")
_R = TypeVar("_R")


class S3Objects:
    """ObjectStore on one bucket. Thread-safe; a process needs one for each bucket."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self.calls = S3Calls(settings)
        self.writes = AdaptivePace()
        self.reads = AdaptivePace()
        self._readers = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="s3-read")
        self._deleters = ThreadPoolExecutor(_DELETES_AT_ONCE, thread_name_prefix="s3-delete")
        self._deletes_in_bulk = True
        self._lock = Lock()
        self._compares: bool | None = None  # None: not tested yet

    def read_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Read small objects with their content, in the order of keys; None: does not exist."""
        return _gather(self._readers, self._read, keys)

    def head_many(self, keys: Sequence[str]) -> list[StoredObject | Unreadable | None]:
        """Describe objects without their content, in the order of keys; None: does not exist."""
        heads = _gather(self._readers, self._head, keys)
        # HEAD's 404 does not distinguish a missing object from a missing bucket
        if None in heads:
            self._require_bucket()
        return heads

    def compares_etags(self) -> bool:
        """Whether deletes compare ETags. The first call tests it with an object of our own."""
        with self._lock:
            if self._compares is None:
                self._compares = compares_etags(self)
            return self._compares

    def delete(self, keys: Sequence[str], etags: Mapping[str, str] | None = None) -> dict[str, str]:
        """Delete any number of keys; return key -> error for those that are refused."""
        batches = [keys[at : at + _KEYS_PER_DELETE] for at in range(0, len(keys), _KEYS_PER_DELETE)]
        errors: dict[str, str] = {}
        for refused in _gather(self._deleters, lambda batch: self._delete_batch(batch, etags or {}), batches):
            errors |= refused
        return errors

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return which of the keys exist now: listings show it for keys that are close together, HEAD for the rest."""
        ordered = sorted(set(keys))
        share = max(_WORTH_A_PAGE, -(-len(ordered) // self.settings.concurrency))
        parts = [ordered[at : at + share] for at in range(0, len(ordered), share)]
        results = _gather(self._readers, self._settle_by_pages, parts)
        listed = {key for existing, _ in results for key in existing}
        unsettled = [key for _, rest in results for key in rest]
        heads = self.head_many(unsettled) if unsettled else []
        return listed | {key for key, head in zip(unsettled, heads, strict=True) if head is not None}

    def list_keys(self, prefix: str = "") -> Iterator[tuple[str, int, int]]:
        """Yield every (key, size in bytes, last modified ms), ordered by key."""
        token: dict[str, str] = {}
        while True:
            page = self._page(Prefix=prefix, **token)
            for entry in page.get("Contents", ()):
                yield entry["Key"], entry["Size"], _ms(entry["LastModified"])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def unfinished_uploads(self, keys: Sequence[str]) -> list[UnfinishedUpload]:
        """Return unfinished (not completed or aborted) uploads to the keys; [] if the store can't list uploads."""
        distinct = set(keys)
        prefixes = sorted(distinct) if len(distinct) <= _UPLOADS_LISTED_BY_KEY else [""]
        try:
            lists = _gather(self._readers, self._uploads, prefixes)
        except UnsupportedError:
            return []
        return [upload for uploads in lists for upload in uploads if upload.key in distinct]

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> dict[str, str]:
        """Abort uploads; return key -> error for those that are refused."""
        errors = _gather(self._readers, self._abort, uploads)
        return {upload.key: error for upload, error in zip(uploads, errors, strict=True) if error}

    def undelete(self, keys: Sequence[str]) -> set[str]:
        """Remove the delete markers that hide the keys; return the keys that exist afterwards."""
        _gather(self._readers, self._unhide, keys)
        return self.existing(keys)

    def put_own(self, key: str, content: bytes) -> str:
        """Store an object of our own under a random name, and return its ETag."""
        named = {"Bucket": self.settings.bucket, "Key": key, "Body": content}
        return str(self.calls.call(lambda client: client.put_object(**named), pace=self.writes)["ETag"])

    def remove_own(self, key: str) -> None:
        """Remove every version of an object of our own, and its delete markers."""
        bucket = self.settings.bucket
        page = self.calls.call(lambda client: client.list_object_versions(Bucket=bucket, Prefix=key), pace=self.reads)
        for entry in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
            # Allowed here: the name is random, and only the object that was just stored is removed.
            self._delete_version(entry["Key"], entry["VersionId"])

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown(cancel_futures=True)
        self._deleters.shutdown(cancel_futures=True)

    def _read(self, key: str) -> StoredObject | Unreadable | None:
        def get(client: Any) -> StoredObject | Unreadable:
            answer = client.get_object(Bucket=self.settings.bucket, Key=key)
            with answer["Body"] as body:
                content = body.read(MAX_CONTENT_BYTES + 1)
            if len(content) > MAX_CONTENT_BYTES:
                return Unreadable(f"{key} has {answer['ContentLength']} bytes, more than any index")
            return _stored(answer, content)

        try:
            return self.calls.call(get, pace=self.reads)
        except AbsentError:
            return None
        except DeniedError:
            return self._head(key)  # an archived object can't be read, but its head can

    def _head(self, key: str) -> StoredObject | Unreadable | None:
        try:
            return self.calls.call(
                lambda client: _stored(client.head_object(Bucket=self.settings.bucket, Key=key)), pace=self.reads
            )
        except AbsentError:
            return None
        except DeniedError as error:
            return Unreadable(f"{key}: {error} (without s3:ListBucket, absent objects get the same answer)")

    def _require_bucket(self) -> None:
        try:
            self.calls.call(lambda client: client.head_bucket(Bucket=self.settings.bucket), pace=self.reads)
        except AbsentError as error:
            where = self.settings.endpoint or "AWS"
            raise RefusedError(
                f"there is no bucket {self.settings.bucket} at {where}: check tiered_storage.allowed"
            ) from error

    def _delete_batch(self, keys: Sequence[str], etags: Mapping[str, str]) -> dict[str, str]:
        if not self._deletes_in_bulk:
            return self._delete_one_by_one(keys, etags)
        errors: dict[str, str] = {}
        left = list(keys)
        for _round in range(_DELETE_ROUNDS):
            try:
                refused = self._delete_together(left, etags)
            except UnsupportedError:
                self._deletes_in_bulk = False
                return errors | self._delete_one_by_one(left, etags)
            errors |= {key: text for key, (code, text) in refused.items() if code not in TRANSIENT}
            left = [key for key, (code, _) in refused.items() if code in TRANSIENT]
            if not left:
                return errors
            self.writes.slow_down()
        raise UnavailableError(
            f"bucket {self.settings.bucket}: {len(left)} keys could not be deleted: the store is overloaded"
        )

    def _delete_together(self, keys: Sequence[str], etags: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Delete keys in one request; return key -> (code, text) for those that were not deleted."""

        def delete(client: Any) -> Any:
            objects = [{"Key": key, "ETag": etags[key]} if key in etags else {"Key": key} for key in keys]
            named = {"Objects": objects, "Quiet": True}
            return client.delete_objects(Bucket=self.settings.bucket, Delete=named)

        answer = self.calls.call(delete, pace=self.writes, units=len(keys))
        codes = {error["Key"]: (error.get("Code", ""), error.get("Message", "")) for error in answer.get("Errors", ())}
        return {
            key: (code, CHANGED if code in CHANGED_CODES else f"{code}: {text}")
            for key, (code, text) in codes.items()
            if code not in ABSENT
        }

    def _delete_one_by_one(self, keys: Sequence[str], etags: Mapping[str, str]) -> dict[str, str]:
        """Delete keys in stores without DeleteObjects, such as Google's."""
        errors = _gather(self._readers, lambda key: self._delete_one(key, etags.get(key)), keys)
        return {key: error for key, error in zip(keys, errors, strict=True) if error}

    def _delete_one(self, key: str, etag: str | None) -> str:
        named = {"Bucket": self.settings.bucket, "Key": key} | ({"IfMatch": etag} if etag else {})
        try:
            self.calls.call(lambda client: client.delete_object(**named), pace=self.writes)
        except AbsentError:
            return ""
        except ChangedError:
            return CHANGED
        except DeniedError as error:
            return str(error)
        return ""

    def _settle_by_pages(self, ordered: Sequence[str]) -> tuple[set[str], Sequence[str]]:
        """Return (keys that exist, keys that are not settled). A page of a listing settles every key in its range."""
        listed: set[str] = set()
        at = 0
        while len(ordered) - at >= _WORTH_A_PAGE:
            start = ordered[at][:-1]  # the page starts after this key
            page = self._page(StartAfter=start)
            names = [entry["Key"] for entry in page.get("Contents", ())]
            if names and names[0] <= start:
                break  # this store ignores StartAfter
            end = bisect_right(ordered, names[-1], at) if page.get("IsTruncated") else len(ordered)
            listed.update(set(names).intersection(ordered[at:end]))
            settled, at = end - at, end
            if settled < _WORTH_A_PAGE:
                break
        return listed, ordered[at:]

    def _page(self, **parameters: Any) -> Any:
        return self.calls.call(
            lambda client: client.list_objects_v2(Bucket=self.settings.bucket, **parameters), pace=self.reads
        )

    def _uploads(self, prefix: str) -> list[UnfinishedUpload]:
        uploads: list[UnfinishedUpload] = []
        marker: dict[str, str] = {}
        while True:
            page = self._uploads_page(prefix, marker)
            uploads += [
                UnfinishedUpload(entry["Key"], entry["UploadId"], _ms(entry["Initiated"]))
                for entry in page.get("Uploads", ())
            ]
            if not page.get("IsTruncated"):
                return uploads
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _uploads_page(self, prefix: str, marker: Mapping[str, str]) -> Any:
        named: dict[str, Any] = {"Bucket": self.settings.bucket, "Prefix": prefix, **marker}
        return self.calls.call(lambda client: client.list_multipart_uploads(**named), pace=self.reads)

    def _abort(self, upload: UnfinishedUpload) -> str:
        named = {"Bucket": self.settings.bucket, "Key": upload.key, "UploadId": upload.upload_id}
        try:
            self.calls.call(lambda client: client.abort_multipart_upload(**named), pace=self.writes)
        except AbsentError:
            return ""
        except DeniedError as error:
            return str(error)
        return ""

    def _unhide(self, key: str) -> None:
        bucket = self.settings.bucket
        page = self.calls.call(lambda client: client.list_object_versions(Bucket=bucket, Prefix=key), pace=self.reads)
        markers = [entry for entry in page.get("DeleteMarkers", ()) if entry["Key"] == key and entry["IsLatest"]]
        for marker in markers:
            # Allowed here: only the marker of an earlier delete is removed, never a version with data.
            self._delete_version(key, marker["VersionId"])

    def _delete_version(self, key: str, version: str) -> None:
        self.calls.call(
            lambda client: client.delete_object(Bucket=self.settings.bucket, Key=key, VersionId=version),
            pace=self.writes,
        )


def _gather(pool: ThreadPoolExecutor, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Return the results in the order of items.

    The first failure cancels the work that has not started, and is raised after all other work has ended.
    """
    if len(items) <= 1:
        return [work(item) for item in items]
    futures = [pool.submit(work, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()


def _stored(answer: Any, content: bytes | None = None) -> StoredObject:
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return StoredObject(
        size_bytes=answer["ContentLength"],
        last_modified_ms=_ms(answer["LastModified"]),
        user_metadata=metadata,
        version_id=answer.get("VersionId", ""),
        content=content,
        etag=answer.get("ETag", ""),
    )


def _ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
