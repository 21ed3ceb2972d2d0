"""The calls of Pulsar's admin API that the client makes, over http.client.

Connection failures, timeouts, 429 and 5xx are retried at each host of admin_url for a limited time; then the outcome is
unknown (UnavailableError). A redirect to the broker that owns a topic is followed.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from ledger_reaper_client.credentials import OAuth2
from ledger_reaper_client.errors import ForbiddenError, RefusedError, UnavailableError
from ledger_reaper_client.names import encode_name, parse_topic
from ledger_reaper_client.settings import Settings

Position = tuple[int, int]  # ledger id, entry id
_REDIRECTS = 5  # a bundle that is being moved causes one or two
_ATTEMPTS = 4
_CONTEXT_SECONDS = 60.0
_MOST_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_EARLIEST = {"ledgerId": -1, "entryId": -1}
_BUSY = (409, 412)  # while another client moves or creates the cursor


@dataclass(frozen=True)
class Answer:
    """A broker's answer."""

    status: int
    body: Any  # parsed JSON; None if it is empty or no JSON
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def is_forbidden(self) -> bool:
        """Whether the role has no right, or the credentials are wrong: brokers answer 401 to both."""
        return self.status in (401, 403)


@dataclass(frozen=True)
class InternalStats:
    """The ledgers and subscriptions of a partition, as its broker reports them."""

    ledgers: tuple[tuple[int, int, bool], ...]  # (ledger id, entries, is offloaded)
    cursors: Mapping[str, Position]  # encoded subscription -> last acknowledged position
    last: Position  # position of the newest entry; entry -1: there is none


class Admin:
    """Sends requests. Thread-safe. Every method raises UnavailableError, and RefusedError or ForbiddenError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._renew_s = 0.0  # of time.monotonic()

    def call(self, method: str, path: str, params: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        """Send a request for /admin/v2/PATH, with retries, and return the answer, whatever its status."""
        query = f"?{urlencode(params)}" if params else ""
        deadline = time.monotonic() + self._settings.timeout_seconds
        hosts = self._settings.hosts
        failure = UnavailableError("no host")
        for attempt in range(max(_ATTEMPTS, len(hosts))):
            if attempt:
                pause = random.uniform(0.1, 0.2 * 2.0**attempt)  # noqa: S311
                if attempt >= len(hosts) and time.monotonic() + pause > deadline:
                    break
                time.sleep(pause)
            try:
                return self._follow(method, f"{hosts[attempt % len(hosts)]}/admin/v2/{path}{query}", body)
            except UnavailableError as error:
                failure = error
        raise failure

    def done(self, answer: Answer, what: str, remedy: str = "check the name") -> Answer:
        """Return an answer 2xx; raise for any other."""
        text = f"Pulsar did not {what}: {answer.status} {answer.reason}"
        if answer.is_forbidden:
            raise ForbiddenError(f"{text}; grant this role the right, or renew its credentials if they are wrong")
        if not answer.ok:
            raise RefusedError(f"{text}; {remedy}")
        return answer

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions; 0 if the topic is not partitioned, None if it does not exist."""
        answer = self.call("GET", f"{path_of(topic)}/partitions", {"checkAllowAutoCreation": "false"})
        if answer.status == 404:
            return None
        body = self.done(answer, f"count the partitions of {topic}").body
        if not isinstance(body, dict) or not isinstance(body.get("partitions"), int):
            raise UnavailableError(f"the partitions of {topic} are in an unknown format: does admin_url name a broker?")
        return int(body["partitions"])

    def exists(self, topic: str) -> bool:
        """Whether a topic without partitions exists."""
        answer = self.call("GET", f"{path_of(topic)}/internalStats")
        return answer.status != 404 and self.done(answer, f"read internalStats of {topic}").ok

    def internal_stats(self, topic: str) -> InternalStats:
        """Return the internalStats of a partition, or of a topic without partitions."""
        answer = self.done(self.call("GET", f"{path_of(topic)}/internalStats"), f"read internalStats of {topic}")
        try:
            return _internal_stats(answer.body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnavailableError(f"internalStats of {topic} are in an unknown format: {error!r}") from error

    def subscribe(self, partition: str, subscription: str) -> None:
        """Create a durable subscription at the earliest message; an existing one stays as it is."""
        path = subscription_path(partition, subscription)
        give_up = time.monotonic() + self._settings.timeout_seconds
        while True:
            answer = self.call("PUT", path, body=_EARLIEST)
            if answer.ok or encode_name(subscription) in self.internal_stats(partition).cursors:
                return
            if answer.status not in _BUSY or time.monotonic() > give_up:
                self.done(answer, f"create subscription {subscription} on {partition}")
            time.sleep(0.2)

    def _tls(self) -> ssl.SSLContext:
        """Return a context with the certificates of the last minute, because to read the system's takes 50 ms."""
        with self._lock:
            if self._context is None or time.monotonic() > self._renew_s:
                self._context = self._settings.ssl_context()
                self._renew_s = time.monotonic() + _CONTEXT_SECONDS
            return self._context

    def _follow(self, method: str, url: str, body: Any) -> Answer:
        for _ in range(_REDIRECTS):
            status, phrase, location, content = self._send(method, url, body)
            if status not in (301, 302, 307, 308) or not location:
                return self._answer(url, status, phrase, content)
            url = urljoin(url, location)
        raise UnavailableError(f"{url}: more than {_REDIRECTS} redirects; the topic is being moved")

    def _answer(self, url: str, status: int, phrase: str, content: bytes) -> Answer:
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        reason = body.get("reason") if isinstance(body, dict) else None
        answer = Answer(status, body, reason if isinstance(reason, str) else phrase)
        if status == 429 or status >= 500:
            raise UnavailableError(f"{urlsplit(url).netloc} answered {status}: {answer.reason}")
        return answer

    def _send(self, method: str, url: str, body: Any) -> tuple[int, str, str, bytes]:
        parts, seconds = urlsplit(url), self._settings.timeout_seconds
        headers = self._settings.headers(url)
        if body is not None:
            headers["Content-Type"] = "application/json"
        until = time.monotonic() + seconds
        try:
            connection = (
                http.client.HTTPSConnection(parts.netloc, timeout=seconds, context=self._tls())
                if parts.scheme == "https"
                else http.client.HTTPConnection(parts.netloc, timeout=seconds)
            )
            try:
                target = f"{parts.path}?{parts.query}" if parts.query else parts.path
                connection.request(method, target, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                content = _whole(answer, until)
                location = answer.getheader("Location") or ""
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            text = f"{parts.scheme}://{parts.netloc} does not answer ({type(error).__name__}: {error})"
            raise UnavailableError(f"{text}; check that the broker runs, and check admin_url") from error
        if answer.status == 401 and isinstance(self._settings.credentials, OAuth2):
            self._settings.credentials.refused()
        return answer.status, answer.reason, location, content


def path_of(topic: str) -> str:
    """Return the path of a topic below /admin/v2/."""
    name = parse_topic(topic)
    return f"persistent/{name.full_namespace}/{quote(name.local_name, safe='')}"


def subscription_path(topic: str, subscription: str) -> str:
    """Return the path of a topic's subscription below /admin/v2/, for a subscription of exactly this name."""
    # Brokers decode this part of the path twice, unlike a topic's name. The second time, only + and % change.
    decoded_once = subscription.replace("%", "%25").replace("+", "%2B")
    return f"{path_of(topic)}/subscription/{quote(decoded_once, safe='')}"


def _whole(answer: http.client.HTTPResponse, until: float) -> bytes:
    read = bytearray()
    while chunk := answer.read(_CHUNK_BYTES):
        read += chunk
        if len(read) > _MOST_BYTES:
            raise UnavailableError(f"an answer of more than {_MOST_BYTES} bytes")
        if time.monotonic() > until:
            raise UnavailableError("an answer arrives too slowly")
    return bytes(read)


def _internal_stats(body: Any) -> InternalStats:
    ledgers = [(int(each["ledgerId"]), int(each["entries"]), each.get("offloaded") is True) for each in body["ledgers"]]
    if ledgers:  # the list has no count of entries for the ledger that is being written
        newest, entries, is_offloaded = ledgers[-1]
        ledgers[-1] = (newest, max(entries, int(body["currentLedgerEntries"])), is_offloaded)
    return InternalStats(
        tuple(ledgers),
        {str(name): position_of(cursor["markDeletePosition"]) for name, cursor in body["cursors"].items()},
        position_of(body["lastConfirmedEntry"]),
    )


def position_of(text: str) -> Position:
    """Parse `ledger:entry`."""
    ledger_id, _, entry_id = text.partition(":")
    return int(ledger_id), int(entry_id)
