"""A bookie's HTTP API: its disk, its garbage collection, and reads of entries.

Answers about the disk and about collections are limited: each in size, and all answers of one call together in time.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer
from typing import Any

import httpx

from streaming.errors import RefusedError, UnavailableError
from udfs.formats.bookie_disk import BookieAnswers, BookieDisk, has_metrics_of_a_bookie, parse_bookie_disk
from udfs.units import MIB

_NO_SUCH_SERVICE = frozenset({401, 403, 404, 405, 501})
_MOST_BYTES = 16 * MIB  # of an answer; a bookie's metrics take 0.2 MB
_METRICS = "/metrics"
_QUESTIONS = {  # field of BookieAnswers -> path
    "config": "/api/v1/config/server_config",
    "info": "/api/v1/bookie/info",
    "gc": "/api/v1/bookie/gc",
    "gc_details": "/api/v1/bookie/gc_details",
}
_COLLECT = "/api/v1/bookie/gc"
_SUSPENDED = "/api/v1/bookie/gc/suspend_compaction"  # since BookKeeper 4.16
_ENABLE = "set httpServerEnabled=true in its bookkeeper.conf"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class _NoAnswerError(Exception):
    """The bookie's answer is incomplete, late, or larger than the limit."""


def read_disk(url: str, timeout_seconds: float) -> BookieDisk:
    """Ask a bookie for its disk usage. Raises UnavailableError."""
    try:
        with _asking(url, timeout_seconds) as bookie:
            answer = bookie.ask("GET", _METRICS)
            metrics = answer.content.decode(errors="replace") if answer.is_success else ""
            if not has_metrics_of_a_bookie(metrics):
                raise UnavailableError(f"{url}{_METRICS} answers {answer.status} without the metrics of a bookie")
            return parse_bookie_disk(url, metrics, _answers(bookie))
    except _NoAnswerError as error:
        raise UnavailableError(
            f"bookie {url} did not return its metrics: {error}; is httpServerEnabled=true?"
        ) from error


def start_collection(url: str, timeout_seconds: float, *, compact: bool) -> None:
    """Request a garbage collection. Raises UnavailableError (then the collection may run), RefusedError."""
    # without a body, the bookie forces a major compaction
    body = {"forceMajor": compact, "forceMinor": False}
    try:
        with _asking(url, timeout_seconds) as bookie:
            if not compact:
                _require_that_bodies_are_read(url, bookie.ask("GET", _SUSPENDED))
            answer = bookie.ask("PUT", _COLLECT, body)
    except _NoAnswerError as error:
        raise UnavailableError(f"bookie {url} did not answer the request to collect: {error}") from error
    if answer.status in _NO_SUCH_SERVICE:
        raise _refused(url, answer)
    if answer.status >= 500:
        raise UnavailableError(f"bookie {url} answers {answer.status} to the request to collect; its log shows why")
    if not answer.is_success:
        raise RefusedError(f"bookie {url} answers {answer.status} to the request to collect; its log shows why")


def can_read(url: str, ledger_id: int, entry_id: int, *, timeout_seconds: float) -> bool:
    """Have a bookie read an entry as a client of BookKeeper does, from any bookie that holds it.

    This does not fence the ledger. False (an answer of 500) may also mean that this bookie can read no ledger at all.
    Raises UnavailableError if the bookie itself does not answer, or has no such service.
    """
    parameters = {"ledger_id": ledger_id, "start_entry_id": entry_id, "end_entry_id": entry_id}
    try:
        answer = httpx.get(
            f"{url.rstrip('/')}/api/v1/ledger/read/", params=parameters, timeout=timeout_seconds, trust_env=False
        )
        entries = answer.json() if answer.is_success else {}
    except (httpx.HTTPError, ValueError) as error:
        raise UnavailableError(f"bookie {url} did not read entry {entry_id} of ledger {ledger_id}: {error}") from error
    if answer.status_code in _NO_SUCH_SERVICE:
        raise UnavailableError(f"bookie {url} answers {answer.status_code}: it does not read ledgers over HTTP")
    return isinstance(entries, dict) and str(entry_id) in entries


@dataclass(frozen=True, slots=True)
class _Asking:
    """The questions to one bookie, and the time at which the last answer must be complete."""

    client: httpx.Client
    deadline: float  # by time.monotonic()

    def ask(self, method: str, path: str, body: Any = None) -> _Answer:
        """Return the answer. Raises _NoAnswerError."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _NoAnswerError("no time is left")
        try:
            with self.client.stream(method, path, json=body, timeout=left) as answer:
                # httpx would unpack a small answer to any size
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise _NoAnswerError("its answer is compressed")
                return _Answer(answer.status_code, self._whole(answer.iter_raw()))
        # RuntimeError: the timer of _asking closed the client
        except (httpx.HTTPError, RuntimeError) as error:
            raise _NoAnswerError(str(error) or type(error).__name__) from error

    def _whole(self, parts: Iterator[bytes]) -> bytes:
        read = bytearray()
        for part in parts:
            read += part
            if len(read) > _MOST_BYTES:
                raise _NoAnswerError(f"its answer has more than {_MOST_BYTES // MIB} MiB")
            if time.monotonic() > self.deadline:
                raise _NoAnswerError("its answer arrives too slowly")
        return bytes(read)


@contextmanager
def _asking(url: str, timeout_seconds: float) -> Iterator[_Asking]:
    headers = {"Accept-Encoding": "identity"}
    with httpx.Client(base_url=url.rstrip("/"), headers=headers, trust_env=False) as client:
        # httpx limits only the time between two reads, and headers may arrive byte by byte: so a timer limits the call
        timer = Timer(timeout_seconds, client.close)
        timer.daemon = True
        timer.start()
        try:
            yield _Asking(client, time.monotonic() + timeout_seconds)
        finally:
            timer.cancel()


def _answers(bookie: _Asking) -> BookieAnswers:
    found: dict[str, Any] = {}
    faults = []
    statuses = set()
    for field, path in _QUESTIONS.items():
        try:
            answer = bookie.ask("GET", path)
            statuses.add(answer.status)
            if answer.is_success:
                found[field] = json.loads(answer.content)
            else:
                faults.append(f"{path} answers {answer.status}")
        except _NoAnswerError as error:
            statuses.add(0)
            faults.append(f"{path}: {error}")
        except (ValueError, RecursionError):
            faults.append(f"{path} does not answer with JSON")
    if statuses == {404}:
        # with httpServerEnabled=false the server of the metrics has no other path
        faults = [f"its HTTP API, which returns its settings, disks and collections, is off: {_ENABLE}"]
    return BookieAnswers(**found, faults=tuple(faults))


def _require_that_bodies_are_read(url: str, answer: _Answer) -> None:
    """Raise RefusedError unless the bookie has _SUSPENDED.

    BookKeeper already read the body of a request to collect when it got this path, so a bookie with the path reads the
    body.
    """
    if answer.status == 404:
        raise RefusedError(
            f"bookie {url} has no {_SUSPENDED}. Either its HTTP API is off ({_ENABLE}), or it is older than BookKeeper "
            "4.16 and would force a compaction: wait for its own collection (gcWaitTime), or request a compaction too"
        )
    if answer.status in _NO_SUCH_SERVICE:
        raise _refused(url, answer)
    if not answer.is_success:
        raise UnavailableError(f"bookie {url} answers {answer.status}, so no collection was requested")


def _refused(url: str, answer: _Answer) -> RefusedError:
    return RefusedError(f"bookie {url} answers {answer.status}: it accepts no HTTP request to collect; {_ENABLE}")
