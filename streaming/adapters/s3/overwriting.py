"""Whether a store refuses to overwrite an object when it is asked to: what keeps two writers of the state apart."""

from http import HTTPStatus
from typing import Any
from uuid import uuid4

from botocore.exceptions import ClientError

from streaming.adapters.s3.calls import S3Calls, S3Settings, UnsupportedError
from streaming.adapters.s3.pace import AdaptivePace

_REFUSED = (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT)


def refuses_to_overwrite(settings: S3Settings, folder: str) -> bool:
    """Put one object below the folder twice, on condition that there is none; then remove it.

    Raises UnavailableError, RefusedError.
    """
    tried = _Object(settings, f"{folder}/.try-{uuid4().hex}")
    try:
        # where the answer to the first put was lost, the client's second try is refused: that is an answer, too
        return not (tried.is_put(b"1") and tried.is_put(b"2"))
    except UnsupportedError:
        return False
    finally:
        tried.remove()


class _Object:
    """An object of a random name, which is ours alone."""

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
            if not self._versions:  # the object is there, and nobody got the answer to its put
                self._versions.append({})
            return False
        self._versions.append({"VersionId": answer["VersionId"]} if "VersionId" in answer else {})
        return True

    def remove(self) -> None:
        for version in self._versions:
            # allowed: nobody else knows the name, and what is removed is what we have just put
            self._calls.call(lambda client, v=version: client.delete_object(**self._name, **v), pace=self._pace)  # type: ignore[misc]
