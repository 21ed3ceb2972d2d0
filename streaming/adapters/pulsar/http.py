"""HTTP client of Pulsar's admin API: follows redirects with the token, distinguishes faults, and bounds every call.

1. A broker that does not own a topic answers 307. After a redirect, too, a secret is only sent over TLS, or to this
   machine.
2. Connection failures, timeouts, 429 and 5xx are retried for a limited time; then the outcome is unknown
   (UnavailableError).
3. If admin_url names several brokers, each retry goes to the next of them, and each broker is tried at least once.
4. A host that hangs costs little time, because this process remembers it (silence.py).
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Lock
from typing import Any, Self
from urllib.parse import quote, urljoin, urlsplit

import httpx
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from streaming.adapters.pulsar.credentials import Credentials
from streaming.adapters.pulsar.silence import TRY_SECONDS, Silence, silence
from streaming.adapters.pulsar.tls import Tls, tls_context
from streaming.config.hosts import hosts_of, may_carry_secret
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError, UnavailableError
from udfs.paths import SEGMENT_DOMAIN, is_v1, topic_of
from udfs.units import MIB

_REDIRECTS = 5  # a bundle that is being moved causes one or two
_ATTEMPTS = 4
_CONNECT_SECONDS = 5.0
_KEPT_CONNECTIONS = 64
_MOST_BYTES = 64 * MIB  # of an answer: 300,000 topics or ledgers; more would fill an executor's memory
_BUSY = {429, 502, 503, 504}  # these do not concern the topic of the request
_TRY_AGAIN = {HTTPStatus.TOO_MANY_REQUESTS, *(status for status in HTTPStatus if status >= 500)}
_OF_A_TENANT = re.compile(
    r"/admin/(?:v[23]/)?(?:(?:non-)?persistent|namespaces|scalable|schemas|transactions/\w+)/([^/]+)/"
)
_REDIRECTING = {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.TEMPORARY_REDIRECT, 308}


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarAdminSettings:
    """How to reach the admin API of any broker. Picklable, hashable, and free of secrets."""

    admin_url: str  # may name several brokers: http://a:8080,b:8080
    credentials: Credentials = field(default_factory=Credentials)
    tls: Tls = field(default_factory=Tls)
    # After this time there are no retries, except at brokers that were not tried yet; an attempt that has started by
    # then may take as long again.
    timeout_seconds: float = 30.0
    concurrency: int = 8  # requests at once

    @classmethod
    def of(cls, pulsar: PulsarSettings) -> Self:
        """Create the settings from the configuration's section."""
        return cls(
            admin_url=pulsar.admin_url,
            credentials=Credentials.of(pulsar),
            tls=Tls.of(pulsar),
            timeout_seconds=pulsar.timeout_seconds,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's answer to a request."""

    status: int
    body: Any  # parsed JSON; None if the body is empty or not JSON
    reason: str  # the broker's own message
    location: str = ""  # of a redirect that was not followed

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


@dataclass(frozen=True, slots=True)
class Body:
    """A broker's answer that is not JSON."""

    status: int
    headers: Mapping[str, str]  # by lower-case name
    data: bytes
    is_whole: bool  # False: `data` is truncated


class _TransientError(UnavailableError):
    """A failure that may pass."""

    def __init__(self, host: str, text: str) -> None:
        super().__init__(text)
        self.host = host  # the host that failed: scheme://host:port


class NotAskedError(_TransientError):
    """No request was sent, because the host hangs or no time is left."""


class FailedAnswerError(_TransientError):
    """A broker answered 429 or 5xx."""

    def __init__(self, host: str, url: str, status: int, reason: str) -> None:
        super().__init__(host, f"{url} answered {status}: {reason}")
        self.reason = reason  # the broker's own message, without the URL
        self.is_busy = status in _BUSY  # the answer does not concern the topic


class AnswerTooLargeError(UnavailableError):
    """An answer exceeds the limit of bytes."""


@dataclass(frozen=True, slots=True)
class _Received:
    status: int
    phrase: str
    headers: Mapping[str, str]  # by lower-case name
    content: bytes

    def json(self) -> Any:
        """Return the parsed body; None where it is not JSON."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):  # the latter for brackets nested a thousand deep
            return None

    @property
    def reason(self) -> str:
        """The broker's own message, or a description of the answer."""
        body = self.json()
        if isinstance(body, dict) and isinstance(body.get("reason"), str):
            return str(body["reason"])
        return f"{self.phrase} ({len(self.content)} bytes, {self.headers.get('content-type', 'no type')})"


class PulsarHttp:
    """Sends requests to the admin API and returns statuses and JSON. Thread-safe."""

    def __init__(self, settings: PulsarAdminSettings, silence: Silence = silence) -> None:
        """Create the client. silence: remembers the hosts that hang; by default for the whole process."""
        self._settings = settings
        self._silence = silence
        self._hosts = hosts_of(settings.admin_url)
        # a shorter timeout does not prove that the host hangs
        self._least_patience = min(settings.timeout_seconds, TRY_SECONDS) / 2
        if urlsplit(settings.admin_url).scheme not in ("http", "https"):
            raise ConfigError(f"pulsar.admin_url = {settings.admin_url!r} must start with http:// or https://")
        self._lock = Lock()
        self._context = tls_context(settings.tls)
        self._http = self._new_client()
        self._former: httpx.Client | None = None

    def get(self, path: str, **params: str) -> Answer:
        """GET /admin/<path>. Raises UnavailableError."""
        return self.ask("GET", path, params=params)

    def ask(self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        """Send a request for /admin/<path>, and retry it after faults that may pass. Raises UnavailableError.

        An earlier attempt may already have made the requested change: 409 then means "done".
        """
        tried_all = stop_after_attempt(len(self._hosts))
        by_now = stop_after_attempt(_ATTEMPTS) | stop_after_delay(self._settings.timeout_seconds)
        trying = Retrying(
            retry=retry_if_exception_type(_TransientError),
            stop=lambda state: tried_all(state) and (_was_not_asked(state) or by_now(state)),
            wait=wait_random_exponential(multiplier=0.2, max=2.0),
            reraise=True,
        )
        return trying(self._on_one, method, f"admin/{path}", dict(params or {}), body)

    def get_from(self, host: str, path: str, *, deadline: float, kind: str = "") -> Answer:
        """GET /admin/<path> from this host only, once; a redirect is an answer.

        Raises UnavailableError, and its subclass FailedAnswerError if a retry may help.

        Args:
            host: http://broker:8080.
            path: below /admin/.
            deadline: of time.monotonic().
            kind: requests of this kind that hang have no effect on other requests to the host.
        """
        return self._from_host("GET", host, path, deadline, kind)

    def delete_from(self, host: str, path: str, *, deadline: float, kind: str) -> Answer:
        """DELETE /admin/<path>, otherwise like get_from: after an error, the deletion may have happened."""
        return self._from_host("DELETE", host, path, deadline, kind)

    def _from_host(self, method: str, host: str, path: str, deadline: float, kind: str) -> Answer:
        url = f"{host}/admin/{path}"
        own_deadline = min(deadline, time.monotonic() + self._settings.timeout_seconds)
        received = self._send(method, url, {}, None, deadline=own_deadline, what=kind and f"{host}{kind}")
        if received.status in _TRY_AGAIN:
            raise FailedAnswerError(_host(url), url, received.status, received.reason)
        location = received.headers.get("location", "") if received.status in _REDIRECTING else ""
        return Answer(received.status, received.json(), received.reason, location)

    def body(self, path: str, *, most_bytes: int, patience_seconds: float) -> Body | None:
        """GET /admin/<path> once, and read at most so many bytes; None without a valid HTTP answer in time.

        Headers may contain text of senders, with characters or of a length that HTTP does not allow. None therefore
        does not show whether a broker answers at all; callers check that with another path. Raises UnavailableError if
        no broker can be reached.
        """
        return self._hosts.first_answer(lambda host: self._body_from(host, path, most_bytes, patience_seconds))

    def close(self) -> None:
        """Close the connections."""
        for client in (self._http, self._former):
            if client is not None:
                client.close()

    def __enter__(self) -> Self:
        """Return itself; `with` closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    @property
    def _client(self) -> httpx.Client:
        """The client with the certificates as they are now."""
        with self._lock:
            context = tls_context(self._settings.tls)
            if context is not self._context:
                # other threads may still use the former client, but none any more the one before that
                if self._former is not None:
                    self._former.close()
                self._context = context
                self._http, self._former = self._new_client(), self._http
            return self._http

    def _new_client(self) -> httpx.Client:
        seconds = self._settings.timeout_seconds
        return httpx.Client(
            timeout=httpx.Timeout(seconds, connect=min(_CONNECT_SECONDS, seconds)),
            # no limit: a host that hangs must not use up the connections to others, and callers bound their requests
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_CONNECTIONS),
            verify=self._context,
            headers={"Accept-Encoding": "identity"},  # a few compressed bytes could decompress to more than the memory
            trust_env=False,  # a proxy from the environment would see the token
        )

    def _body_from(self, host: str, path: str, most_bytes: int, patience_seconds: float) -> Body | None:
        location = f"{host}/admin/{path}"
        # a sender has no influence on the time to connect
        timeout = httpx.Timeout(patience_seconds, connect=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
        for _ in range(_REDIRECTS):
            try:
                with self._client.stream("GET", location, headers=self._headers(location), timeout=timeout) as answer:
                    if answer.status_code not in _REDIRECTING:
                        return _body(answer, most_bytes)
                    location = urljoin(location, str(answer.headers.get("location", "")))
            except (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError, httpx.DecodingError):
                return None  # a proxy may close the connection if it can't forward the headers
            except httpx.HTTPError as error:
                raise UnavailableError(f"{host} does not answer ({type(error).__name__}: {error})") from error
        raise UnavailableError(f"{location} is redirected too often; do the brokers advertise the right addresses?")

    def _on_one(self, method: str, path: str, params: dict[str, str], body: Any) -> Answer:
        host = self._hosts.in_order[0]
        try:
            return self._once(method, f"{host}/{path}", params, body)
        except _TransientError as error:
            # a failure of another host, after a redirect, does not count: all hosts of admin_url would redirect to it
            if error.host == _host(host):
                self._hosts.failed(host)
            raise

    def _once(self, method: str, url: str, params: dict[str, str], body: Any) -> Answer:
        location = url
        for _ in range(_REDIRECTS):
            deadline = time.monotonic() + self._settings.timeout_seconds
            received = self._send(method, location, params, body, deadline=deadline)
            if received.status in _TRY_AGAIN:
                raise FailedAnswerError(_host(location), url, received.status, received.reason)
            if received.status not in _REDIRECTING:
                return Answer(received.status, received.json(), received.reason)
            # followed here, because HTTP clients drop Authorization when the host changes
            location = urljoin(location, received.headers.get("location", ""))
            params = {}  # the Location contains them
        text = f"{url} is redirected too often; do the brokers advertise the right addresses?"
        raise _TransientError(_host(location), text)

    def _send(  # noqa: PLR0913  each is part of a request
        self, method: str, url: str, params: dict[str, str], body: Any, *, deadline: float, what: str = ""
    ) -> _Received:
        """Send a request once, and read the whole answer before the deadline, even if its bytes arrive slowly.

        Args:
            what: the target that may hang; by default the host, for the tenant that the path names.
        """
        host = _host(url)
        tenant = "" if what else _tenant(url)
        what = what or host
        # computed for this URL: after a redirect to another machine without TLS, no secret must be sent
        own_headers = self._headers(url)
        try:
            patience = self._silence.patience(what, max(0.0, deadline - time.monotonic()), tenant)
        except UnavailableError as error:
            raise NotAskedError(host, str(error)) from error
        try:
            timeout = httpx.Timeout(patience, connect=min(_CONNECT_SECONDS, patience))
            until = time.monotonic() + patience
            with self._client.stream(
                method, url, params=params or None, json=body, headers=own_headers, timeout=timeout
            ) as answer:
                content = _whole(answer.iter_bytes(), until, url)
                headers = {name.lower(): text for name, text in answer.headers.items()}
                received = _Received(answer.status_code, answer.reason_phrase, headers, content)
        except AnswerTooLargeError:
            self._silence.answered(what, tenant)
            raise
        except httpx.HTTPError as error:
            if isinstance(error, httpx.TimeoutException) and patience >= self._least_patience:
                # no tenant has influence on the time to connect
                self._silence.timed_out(what, "" if isinstance(error, httpx.ConnectTimeout) else tenant)
            text = f"{host} does not answer ({type(error).__name__}: {error}). Check that the broker runs"
            raise _TransientError(host, f"{text}, and check pulsar.admin_url") from error
        self._silence.answered(what, tenant)
        if received.status == HTTPStatus.UNAUTHORIZED:
            self._settings.credentials.refused(own_headers)
        return received

    def _headers(self, url: str) -> dict[str, str]:
        credentials = self._settings.credentials
        if credentials.sends_secret and not may_carry_secret(url):
            raise UnavailableError(f"{_host(url)} is not reached over TLS; no secret is sent there")
        return credentials.headers()


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _tenant(url: str) -> str:
    """Return the tenant that could delay the answer; "" if it depends on no tenant."""
    match = _OF_A_TENANT.match(urlsplit(url).path)
    return match[1] if match else ""


def answering(settings: PulsarAdminSettings) -> str:
    """Return the URL of a broker that answers, for clients that accept only one URL; of any broker if none answers.

    If admin_url names only one broker, no request is sent.
    """
    hosts = hosts_of(settings.admin_url)
    if len(hosts) > 1:
        with PulsarHttp(settings) as http, suppress(UnavailableError):
            http.get("v2/clusters")
    return hosts.in_order[0]


def require_safe_secret(pulsar: PulsarSettings) -> None:
    """Raise ConfigError unless Pulsar's own clients send secrets over TLS, or every broker is on this machine.

    A plain service_url that names this machine may be a tunnel: the clients look up a topic through it, and then
    connect to the address that the topic's broker advertises. Raises UnavailableError.
    """
    if not Credentials.of(pulsar).sends_secret or pulsar.service_url.startswith("pulsar+ssl:"):
        return
    with PulsarHttp(PulsarAdminSettings.of(pulsar)) as http:
        brokers = http.get("v2/brokers").body
    if not isinstance(brokers, list) or not all(may_carry_secret(f"pulsar://{broker}") for broker in brokers):
        raise ConfigError(
            f"pulsar.service_url {pulsar.service_url} leads to brokers on other machines, to which the secret of "
            f"{pulsar.credential_keys[0]} would go unencrypted: use pulsar+ssl://"
        )


def topic_path(topic: str) -> str:
    """Return the path of a topic below /admin/: `v2/persistent/t/ns/name`, or `persistent/t/c/ns/name` (V1 names).

    Accepts all forms that udfs.paths accepts. Raises ValueError for invalid names, and for segments: their brokers
    answer none of these requests.
    """
    scheme, _, rest = topic_of(topic).partition("://")
    if scheme == SEGMENT_DOMAIN:
        raise ValueError(f"{topic} is a segment, about which brokers answer no such request")
    namespace, _, name = rest.rpartition("/")
    # the form in BookKeeper and ZooKeeper encodes a space as +, which means a plus sign in a URL's path
    return f"{_version(namespace)}{scheme}/{namespace}/{quote(name, safe='')}"


def subscription_path(topic: str, subscription: str) -> str:
    """Return the path of a topic's subscription below /admin/, for a subscription of exactly this name."""
    # Brokers decode this part of the path twice, unlike a topic's name. The second time, only + and % change.
    decoded_once = subscription.replace("%", "%25").replace("+", "%2B")
    return f"{topic_path(topic)}/subscription/{quote(decoded_once, safe='')}"


def namespace_path(namespace: str) -> str:
    """Return the path of the list of a namespace's topics: `v2/persistent/t/ns`, or `persistent/t/c/ns` (V1 names)."""
    return f"{_version(namespace)}persistent/{namespace}"


def policies_path(namespace: str) -> str:
    """Return the path of a namespace's policies: `v2/namespaces/t/ns`, or `namespaces/t/c/ns` (V1 names)."""
    return f"{_version(namespace)}namespaces/{namespace}"


def _version(namespace: str) -> str:
    return "" if is_v1(namespace) else "v2/"


def _body(answer: httpx.Response, most_bytes: int) -> Body:
    read = bytearray()
    for part in answer.iter_bytes():
        read += part
        if len(read) > most_bytes:
            break
    headers = {name.lower(): text for name, text in answer.headers.items()}
    return Body(answer.status_code, headers, bytes(read[:most_bytes]), len(read) <= most_bytes)


def _was_not_asked(state: RetryCallState) -> bool:
    return state.outcome is not None and isinstance(state.outcome.exception(), NotAskedError)


def _whole(parts: Iterable[bytes], until: float, url: str) -> bytes:
    read = bytearray()
    for part in parts:
        read += part
        if time.monotonic() > until:
            raise httpx.ReadTimeout("its answer arrives too slowly")
        if len(read) > _MOST_BYTES:
            raise AnswerTooLargeError(f"{url} answered with more than {_MOST_BYTES // MIB} MiB")
    return bytes(read)
