"""The client of a bucket, shared by all threads. It classifies every answer as absent, refused or unknown.

1. SlowDown, 5xx, timeouts and broken connections are retried for `patience_seconds`; then the outcome is unknown
   (UnavailableError).
2. After that, the bucket gets no requests for `rest_seconds`, and then a single attempt, or a few if it answers that
   it is overloaded.
3. A missing bucket is a refusal, never a missing object. Refused credentials are read again if their file changed.
"""

import base64
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import boto3
import tenacity
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
# 0.025 to 0.05 s at first, 2.5 to 5 s in the end
_WAIT = tenacity.wait_exponential(0.025, max=2.5) + tenacity.wait_random_exponential(0.025, max=2.5)
_AFTER_REST = tenacity.stop_after_attempt(3)  # if it refuses for load, which proves that the bucket answers

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


class _ThrottledError(UnavailableError):
    """The bucket has too much load."""


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
        self._lock = Lock()
        self._client: Any = None
        self._credentials_mtime_ns = 0
        self._rests_until_s = 0.0  # 0: the bucket answered the last request

    def call(self, action: Callable[[Any], _T], *, pace: AdaptivePace, units: int = 1) -> _T:
        """Run the action, and retry it while the fault may be temporary.

        Raises AbsentError, UnavailableError, RefusedError (UnsupportedError, DeniedError).
        """
        rests_until_s, now_s = self._rests_until_s, time.monotonic()
        # a chunk with requests for this bucket must not delay the requests for other buckets
        if rests_until_s > now_s:
            left_s = rests_until_s - now_s
            raise UnavailableError(f"{self._name()} did not answer; the next attempt is in {left_s:.0f} s")
        trying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_ThrottledError if rests_until_s else UnavailableError),
            stop=_AFTER_REST if rests_until_s else tenacity.stop_before_delay(self.settings.patience_seconds),
            wait=_WAIT,
            reraise=True,
        )
        try:
            return trying(lambda: self._attempt(action, pace, units))
        except UnavailableError:
            if self.settings.rest_seconds:
                self._rests_until_s = time.monotonic() + self.settings.rest_seconds
            raise

    def _attempt(self, action: Callable[[Any], _T], pace: AdaptivePace, units: int, *, may_renew: bool = True) -> _T:
        pace.take(units)
        self.requests += 1
        try:
            answer = action(self._connected())
        except (ClientError, BotoCoreError, ResponseParserError) as error:
            if may_renew and _code(error) in _CREDENTIALS and self._renew():
                return self._attempt(action, pace, units, may_renew=False)
            meaning = self._meaning(error)
            if isinstance(meaning, _ThrottledError):
                throttling.add()
                pace.slow_down()
            raise meaning from error
        self._rests_until_s = 0.0
        return answer

    def _meaning(self, error: Exception) -> Exception:
        """Return the error that the answer means; UnavailableError if a retry may help."""
        code, status, name, text = _code(error), _status(error), self._name(), _text(error)
        is_throttled = code in THROTTLED or status in (429, 503)
        is_unsupported = code in _UNSUPPORTED or status == 501
        is_transient = code in TRANSIENT or status >= 500 or isinstance(error, _BROKEN)
        if is_throttled or (is_transient and not is_unsupported):
            kind = _ThrottledError if is_throttled else UnavailableError
            return kind(f"{name} does not answer: {text}")
        self._rests_until_s = 0.0  # any answer proves that the store is reachable
        if is_unsupported:
            return UnsupportedError(f"{name} does not support this request: {text}")
        if code in ABSENT:
            return AbsentError()
        if code == "NoSuchBucket":
            return RefusedError(f"there is no {name}: check the name of the bucket")
        if code in _CREDENTIALS or isinstance(error, NoCredentialsError | PartialCredentialsError):
            return RefusedError(f"{name} refuses our credentials: {text}; renew them")
        refused = ChangedError if code in CHANGED_CODES else DeniedError if code in _DENIED else RefusedError
        return refused(f"{name} refuses: {text}")

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


def _text(error: Exception) -> str:
    """Return code and message as one short line."""
    # the store's code and message contain no secret
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
