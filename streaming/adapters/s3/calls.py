"""The client of a bucket, shared by all threads. It classifies every answer as absent, refused or unknown.

1. SlowDown, 5xx, timeouts and broken connections are retried for `patience_seconds`; then the outcome is unknown
   (UnavailableError).
2. After that, the bucket gets no requests for `rest_seconds`, and then a single attempt, or a few if it answers that
   it is overloaded.
3. A missing bucket is a refusal, never a missing object. Refused credentials are read again if their file changed.
"""

import base64
import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.credentials import SharedCredentialProvider
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.parsers import ResponseParserError

from streaming.adapters.s3 import throttling
from streaming.adapters.s3.adaptive_pace import AdaptivePace
from streaming.errors import RefusedError, UnavailableError

_T = TypeVar("_T")

_CONNECT_SECONDS = 5
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 5.0
_MORE_IF_THROTTLED = 2  # extra attempts after a rest: a refusal for load proves that the bucket answers

THROTTLED = frozenset(
    {"SlowDown", "ServiceUnavailable", "RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequests"}
)
TRANSIENT = THROTTLED | {"InternalError", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict"}
ABSENT = frozenset({"NoSuchKey", "NoSuchUpload", "NoSuchVersion", "NotFound", "404"})
_UNSUPPORTED = frozenset({"NotImplemented", "MethodNotAllowed", "501", "405"})
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "InvalidObjectState", "403"})
CHANGED_CODES = frozenset({"PreconditionFailed", "412 Precondition Failed", "412"})
_BROKEN = (ConnectionError, HTTPClientError, IncompleteReadError, ResponseParserError)
_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "RequestTimeTooSkewed",
    }
)


class AbsentError(Exception):
    """There is no such object or upload."""


class UnsupportedError(RefusedError):
    """The store does not support this kind of request."""


class DeniedError(RefusedError):
    """No permission for this object, or it is archived; other objects may be accessible."""


class ChangedError(RefusedError):
    """The object's ETag differs from the one that was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """How to reach a bucket. Picklable, hashable, and free of secrets."""

    endpoint: str  # "": AWS's own
    bucket: str
    region: str = "us-east-1"
    credentials_file: str = ""  # "": boto3's standard chain
    timeout_seconds: float = 30.0  # of one attempt
    patience_seconds: float = 60.0  # how long a request is retried
    rest_seconds: float = 0.0  # how long a bucket that did not answer gets no requests; 0: it always gets them
    concurrency: int = 16


class S3Calls:
    """Runs actions on the client. Thread-safe."""

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self.requests = 0
        self.retries = 0  # attempts beyond the first, of all calls
        self._lock = Lock()
        self._client: Any = None
        self._credentials_mtime_ns = 0
        self._rests_until_s = 0.0  # 0: the bucket answered the last request

    def call(self, action: Callable[[Any], _T], *, pace: AdaptivePace, units: int = 1) -> _T:
        """Run the action, and retry it while the fault may be temporary.

        Raises AbsentError, UnavailableError, RefusedError (UnsupportedError, DeniedError).
        """
        give_up_s = time.monotonic() + self._patience_seconds()
        extra_attempts = _MORE_IF_THROTTLED if self._rests_until_s else 0
        wait_s, is_renewed = _FIRST_WAIT_S, False
        while True:
            pace.take(units)
            try:
                answer = self._once(action)
            except (ClientError, BotoCoreError, ResponseParserError) as error:
                if not is_renewed and _code(error) in _CREDENTIALS and self._renew():
                    is_renewed = True
                    continue
                self._judge(error, pace)
                if time.monotonic() + wait_s >= give_up_s:
                    if not (extra_attempts and _is_throttled(error)):
                        self._rest()
                        raise UnavailableError(f"{self._name()} does not answer: {_text(error)}") from error
                    extra_attempts -= 1
            else:
                self._rests_until_s = 0.0
                return answer
            self.retries += 1
            time.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)

    def _patience_seconds(self) -> float:
        """Return how long a request may be retried. Raises UnavailableError while the bucket gets no requests."""
        if not self._rests_until_s:
            return self.settings.patience_seconds
        left_s = self._rests_until_s - time.monotonic()
        # a chunk with requests for this bucket must not delay the requests for other buckets
        if left_s > 0:
            raise UnavailableError(f"{self._name()} did not answer; the next attempt is in {left_s:.0f} s")
        return 0.0

    def _rest(self) -> None:
        if self.settings.rest_seconds:
            self._rests_until_s = time.monotonic() + self.settings.rest_seconds

    def _once(self, action: Callable[[Any], _T]) -> _T:
        self.requests += 1
        return action(self._connected())

    def _judge(self, error: Exception, pace: AdaptivePace) -> None:
        """Return if a retry may help; otherwise raise the error that the answer means."""
        if _is_throttled(error):
            throttling.add()
            pace.slow_down()
            return
        code, status = _code(error), _status(error)
        if code in TRANSIENT or status >= 500 or isinstance(error, _BROKEN):
            if code in _UNSUPPORTED or status == 501:
                raise UnsupportedError(f"{self._name()} does not support this request: {_text(error)}") from error
            return
        self._rests_until_s = 0.0  # any answer proves that the store is reachable
        if code in ABSENT:
            raise AbsentError from error
        if code == "NoSuchBucket":
            raise RefusedError(f"there is no {self._name()}: check the name of the bucket") from error
        if code in _UNSUPPORTED:
            raise UnsupportedError(f"{self._name()} does not support this request: {_text(error)}") from error
        if code in _CREDENTIALS or isinstance(error, NoCredentialsError | PartialCredentialsError):
            raise RefusedError(f"{self._name()} refuses our credentials: {_text(error)}; renew them") from error
        kind = ChangedError if code in CHANGED_CODES else DeniedError if code in _DENIED else RefusedError
        raise kind(f"{self._name()} refuses: {_text(error)}") from error

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        settings = self.settings
        options: dict[str, Any] = {
            "connect_timeout": min(_CONNECT_SECONDS, settings.timeout_seconds),
            "read_timeout": settings.timeout_seconds,
            "max_pool_connections": settings.concurrency + 8,
            # boto3's own retries are off, so that only this module waits
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            # stores other than AWS have no DNS name for each bucket, and support fewer checksums
            "s3": {"addressing_style": "path" if settings.endpoint else "auto"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "ignore_configured_endpoint_urls": True,  # the allow-list names the endpoint, not the environment
            "user_agent_extra": "ledger-reaper",
        }
        client = boto3.Session(**self._credentials()).client(
            "s3", region_name=settings.region, endpoint_url=settings.endpoint or None, config=Config(**options)
        )
        client.meta.events.register("before-call.s3.DeleteObjects", _with_md5)
        return client

    def _credentials(self) -> dict[str, Any]:
        name = self.settings.credentials_file
        if not name:
            return {}
        try:
            self._credentials_mtime_ns = Path(name).stat().st_mtime_ns
        except OSError as error:
            raise RefusedError(f"tiered_storage.credentials_file {name} can't be read: {error.strerror}") from error
        loaded = SharedCredentialProvider(creds_filename=name, profile_name="default").load()
        if loaded is None:
            raise RefusedError(f"tiered_storage.credentials_file {name} has no profile [default] with keys")
        keys = {
            "aws_access_key_id": loaded.access_key,
            "aws_secret_access_key": loaded.secret_key,
            "aws_session_token": loaded.token,
        }
        return {key: value for key, value in keys.items() if value}

    def _renew(self) -> bool:
        """Drop the client if its credentials file has changed; return True if this or another thread dropped it."""
        name = self.settings.credentials_file
        with self._lock:
            if self._client is None:
                return True
            try:
                is_newer = bool(name) and Path(name).stat().st_mtime_ns != self._credentials_mtime_ns
            except OSError:
                return False
            if is_newer:
                self._client = None
            return is_newer

    def _name(self) -> str:
        return f"bucket {self.settings.bucket} at {self.settings.endpoint or 'AWS'}"


def _with_md5(params: dict[str, Any], **_: Any) -> None:
    """Add the checksum that many stores other than AWS need, and that boto3 no longer sends with this request."""
    params["headers"]["Content-MD5"] = base64.b64encode(
        hashlib.md5(params["body"], usedforsecurity=False).digest()
    ).decode()


def _code(error: Exception) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _status(error: Exception) -> int:
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_throttled(error: Exception) -> bool:
    return _code(error) in THROTTLED or _status(error) in (429, 503)


def _text(error: Exception) -> str:
    """Return code and message as one short line."""
    # the store's code and message contain no secret
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
