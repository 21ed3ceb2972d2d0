"""Tests whether a store obeys `If-None-Match: *`, which keeps two writers of the state apart."""

from http import HTTPStatus
from typing import Any
from uuid import uuid4

from botocore.exceptions import ClientError

from streaming.adapters.s3.adaptive_pace import AdaptivePace
from streaming.adapters.s3.calls import S3Calls, S3Settings, UnsupportedError

_REFUSED = (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT)


def refuses_to_overwrite(settings: S3Settings, folder: str) -> bool:
    """Return whether the store refuses to overwrite an object; False also if it does not support such a request.

    This puts a test object below the folder twice, each time only if there is none, and then removes it. Raises
    UnavailableError, RefusedError.
    """
    test = _TestObject(settings, f"{folder}/.try-{uuid4().hex}")
    try:
        # if the answer to the first put is lost, the client's retry is refused, which proves the same
        return not (test.is_put(b"1") and test.is_put(b"2"))
    except UnsupportedError:
        return False
    finally:
        test.remove()


class _TestObject:
    """An object with a random name, which no other client uses."""

    def __init__(self, settings: S3Settings, key: str) -> None:
        self._name = {"Bucket": settings.bucket, "Key": key}
        self._calls, self._pace = S3Calls(settings), AdaptivePace()
        self._versions: list[dict[str, str]] = []

    def is_put(self, content: bytes) -> bool:
        return self._calls.call(lambda client: self._put(client, content), pace=self._pace)

    def _put(self, client: Any, content: bytes) -> bool:
        try:
            answer = client.put_object(**self._name, Body=content, IfNoneMatch="*")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] not in _REFUSED:
                raise
            if not self._versions:  # an earlier put succeeded, but its answer was lost
                self._versions.append({})
            return False
        self._versions.append({"VersionId": answer["VersionId"]} if "VersionId" in answer else {})
        return True

    def remove(self) -> None:
        for version in self._versions:
            # Allowed here: the name is random, and only the object that was just stored is removed.
            self._calls.call(lambda client, v=version: client.delete_object(**self._name, **v), pace=self._pace)  # type: ignore[misc]
