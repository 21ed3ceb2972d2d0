"""HTTP to Pulsar's admin API: redirects followed by hand with the token kept, faults told apart, every call bounded.

1. A broker that does not own a topic answers 307; HTTP clients drop Authorization when the host changes, so
   redirects are followed here. The token goes over TLS, or to this machine, wherever an answer redirects to.
2. No connection, a timeout, 429 and 5xx are tried again for a while; then the outcome is unknown (UnavailableError).
3. Where admin_url names several brokers, the next try goes to the next of them, and each is tried before we give up.
4. A host that hangs costs little: this process remembers it (silence.py), also where a redirect led there, and the host
   that redirected is not blamed.
"""

import json
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
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

from streaming.adapters.pulsar.silence import TRY_SECONDS, silence
from streaming.config.hosts import hosts_of, may_carry_token
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError, UnavailableError
from udfs.paths import topic_of
from udfs.units import MIB

_REDIRECTS = 5  # a bundle that is being moved answers with one or two
_ATTEMPTS = 4
_CONNECT_SECONDS = 5.0
_KEPT_CONNECTIONS = 64
_MOST_BYTES = 64 * MIB  # of an answer: 300,000 topics or ledgers; more would fill an executor's memory
_BUSY = {429, 502, 503, 504}  # they say nothing of the topic that was asked about
_TRY_AGAIN = {HTTPStatus.TOO_MANY_REQUESTS, *(status for status in HTTPStatus if status >= 500)}
_OF_A_TENANT = re.compile(r"/admin/(?:v[23]/)?(?:(?:non-)?persistent|namespaces|schemas|transactions/\w+)/([^/]+)/")
_REDIRECTING = {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.TEMPORARY_REDIRECT, 308}


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarAdminSettings:
    """How to reach the admin API of any broker. Picklable, hashable, holds no secret.

    admin_url: may name several brokers (`http://a:8080,b:8080`). token_file: read for every request, so that a rotated
    token is seen. timeout_seconds: after this time nothing is tried again, but for brokers that were not asked yet; a
    try that has begun by then may take as long once more. concurrency: requests at once.
    """

    admin_url: str
    token_file: str = ""
    tls_ca_file: str = ""
    tls_check_hostname: bool = True
    timeout_seconds: float = 30.0
    concurrency: int = 8

    @classmethod
    def of(cls, pulsar: PulsarSettings) -> Self:
        """Return them from the configuration's section."""
        return cls(
            admin_url=pulsar.admin_url,
            token_file=pulsar.token_file,
            tls_ca_file=pulsar.tls_trust_certs_file,
            tls_check_hostname=pulsar.tls_check_hostname,
            timeout_seconds=pulsar.timeout_seconds,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a broker said. body: parsed JSON, None where there is none or it is no JSON. reason: its own words."""

    status: int
    body: Any
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


@dataclass(frozen=True, slots=True)
class Body:
    """What a broker sent where it is no JSON. headers: by their names in small letters. is_whole: nothing was left."""

    status: int
    headers: Mapping[str, str]
    data: bytes
    is_whole: bool


class _TransientError(UnavailableError):
    """host: the host that failed, as `scheme://host:port`."""

    def __init__(self, host: str, text: str) -> None:
        super().__init__(text)
        self.host = host


class NotAskedError(_TransientError):
    """The host is known to hang, or no time is left for it."""


class FailedAnswerError(_TransientError):
    """A broker answered 429 or 5xx. reason: its own words, without the URL. is_busy: it said nothing of the topic."""

    def __init__(self, host: str, url: str, status: int, reason: str) -> None:
        super().__init__(host, f"{url} answered {status}: {reason}")
        self.reason = reason
        self.is_busy = status in _BUSY


class AnswerTooLargeError(UnavailableError):
    """An answer has more bytes than we read."""


@dataclass(frozen=True, slots=True)
class _Received:
    status: int
    phrase: str
    headers: Mapping[str, str]  # names in small letters
    content: bytes

    def json(self) -> Any:
        """Return the parsed body; None where it is not JSON."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None

    @property
    def reason(self) -> str:
        """The broker's own words, or what there is instead."""
        body = self.json()
        if isinstance(body, dict) and isinstance(body.get("reason"), str):
            return str(body["reason"])
        return f"{self.phrase} ({len(self.content)} bytes, {self.headers.get('content-type', 'no type')})"


class PulsarHttp:
    """The admin API as paths, statuses and JSON. Thread-safe."""

    def __init__(self, settings: PulsarAdminSettings) -> None:
        self._settings = settings
        self._hosts = hosts_of(settings.admin_url)
        # one that was asked when hardly any time was left has not hung
        self._least_patience = min(settings.timeout_seconds, TRY_SECONDS) / 2
        if urlsplit(settings.admin_url).scheme not in ("http", "https"):
            raise ConfigError(f"pulsar.admin_url = {settings.admin_url!r} must begin with http:// or https://")
        self._client = httpx.Client(
            timeout=httpx.Timeout(settings.timeout_seconds, connect=min(_CONNECT_SECONDS, settings.timeout_seconds)),
            # a host that hangs must not use up the connections that others need; who asks bounds what is under way
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_CONNECTIONS),
            verify=tls_context(settings.tls_ca_file, check_hostname=settings.tls_check_hostname),
            headers={"Accept-Encoding": "identity"},  # a few compressed bytes could unpack to more than our memory
            trust_env=False,  # a proxy from the environment would see the token
        )

    def get(self, path: str, **params: str) -> Answer:
        """GET /admin/<path>. Raises UnavailableError."""
        return self.ask("GET", path, params=params)

    def ask(self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        """Ask /admin/<path>, repeatedly while the answer is a passing fault. Raises UnavailableError.

        A method that changes something may have done so on an earlier try: 409 then means "done".
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
        """GET /admin/<path> of this host (`http://broker:8080`) alone, once; a redirect is an answer.

        deadline: of time.monotonic(). kind: that this kind of question hangs says nothing of others. Raises
        UnavailableError: FailedAnswerError where trying again may help.
        """
        url = f"{host}/admin/{path}"
        own_deadline = min(deadline, time.monotonic() + self._settings.timeout_seconds)
        received = self._send("GET", url, {}, None, deadline=own_deadline, what=kind and f"{host}{kind}")
        if received.status in _TRY_AGAIN:
            raise FailedAnswerError(_host(url), url, received.status, received.reason)
        return Answer(received.status, received.json(), received.reason)

    def body(self, path: str, *, most_bytes: int, patience_seconds: float) -> Body | None:
        """GET /admin/<path> once, and read so many bytes at most; None where no answer came in time that is HTTP.

        What senders wrote may stand in the headers, in characters or of a length that HTTP does not allow. So whether
        a broker is there at all is to be asked by another path. Raises UnavailableError if no broker can be reached.
        """
        return self._hosts.first_answer(lambda host: self._body_from(host, path, most_bytes, patience_seconds))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        """Return itself; `with` closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def _body_from(self, host: str, path: str, most_bytes: int, patience_seconds: float) -> Body | None:
        location = f"{host}/admin/{path}"
        # to connect takes its time whoever wrote what is asked for
        timeout = httpx.Timeout(patience_seconds, connect=_CONNECT_SECONDS, pool=_CONNECT_SECONDS)
        for _ in range(_REDIRECTS):
            try:
                with self._client.stream("GET", location, headers=self._headers(location), timeout=timeout) as answer:
                    if answer.status_code not in _REDIRECTING:
                        return _body(answer, most_bytes)
                    location = urljoin(location, str(answer.headers.get("location", "")))
            except (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError, httpx.DecodingError):
                return None  # a proxy may cut the connection where it can't pass on the headers
            except httpx.HTTPError as error:
                raise UnavailableError(f"{host} does not answer ({type(error).__name__}: {error})") from error
        raise UnavailableError(f"{location} is redirected again and again; are its brokers advertised rightly?")

    def _on_one(self, method: str, path: str, params: dict[str, str], body: Any) -> Answer:
        host = self._hosts.in_order[0]
        try:
            return self._once(method, f"{host}/{path}", params, body)
        except _TransientError as error:
            # every other host redirects to the same owner
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
            location = urljoin(location, received.headers.get("location", ""))
            params = {}  # the Location carries them
        text = f"{url} is redirected again and again; are its brokers advertised rightly?"
        raise _TransientError(_host(location), text)

    def _send(  # noqa: PLR0913  each is part of a request
        self, method: str, url: str, params: dict[str, str], body: Any, *, deadline: float, what: str = ""
    ) -> _Received:
        """Send once, and read the whole answer before the deadline, however slowly its bytes come.

        what: may hang by itself; by default the host, for the tenant that the path names.
        """
        host = _host(url)
        tenant = "" if what else _tenant(url)
        what = what or host
        own_headers = self._headers(url)
        try:
            patience = silence.patience(what, max(0.0, deadline - time.monotonic()), tenant)
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
            silence.answered(what, tenant)
            raise
        except httpx.HTTPError as error:
            if isinstance(error, httpx.TimeoutException) and patience >= self._least_patience:
                # no tenant has influence on how long it takes to connect
                silence.timed_out(what, "" if isinstance(error, httpx.ConnectTimeout) else tenant)
            text = f"{host} does not answer ({type(error).__name__}: {error}). Check that the broker runs"
            raise _TransientError(host, f"{text} and pulsar.admin_url") from error
        silence.answered(what, tenant)
        return received

    def _headers(self, url: str) -> dict[str, str]:
        name = self._settings.token_file
        if not name:
            return {}
        if not may_carry_token(url):
            raise UnavailableError(f"{_host(url)} is not reached over TLS; the token is not sent there")
        try:
            return {"Authorization": f"Bearer {Path(name).read_text().strip()}"}
        except OSError as error:
            raise ConfigError(f"pulsar.token_file {name} can't be read: {error.strerror}") from error


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _tenant(url: str) -> str:
    """Return the tenant that may have the answer delayed; "" where it depends on no tenant."""
    found = _OF_A_TENANT.match(urlsplit(url).path)
    return found[1] if found else ""


def answering(settings: PulsarAdminSettings) -> str:
    """Return the URL of a broker that answers, for clients that take only one; where none does, of any.

    Where admin_url names only one, nothing is asked.
    """
    hosts = hosts_of(settings.admin_url)
    if len(hosts) > 1:
        with PulsarHttp(settings) as http, suppress(UnavailableError):
            http.get("v2/clusters")
    return hosts.in_order[0]


def require_safe_token(pulsar: PulsarSettings) -> None:
    """Return if Pulsar's own clients can send their token: over TLS, or where every broker is on this machine.

    A plain service_url on this machine may be a tunnel, and those clients then follow a look-up to the address that a
    broker advertises. Raises ConfigError, UnavailableError.
    """
    if not pulsar.token_file or pulsar.service_url.startswith("pulsar+ssl:"):
        return
    with PulsarHttp(PulsarAdminSettings.of(pulsar)) as http:
        brokers = http.get("v2/brokers").body
    if not isinstance(brokers, list) or not all(may_carry_token(f"pulsar://{broker}") for broker in brokers):
        raise ConfigError(
            f"pulsar.service_url {pulsar.service_url} leads to brokers on other machines, to which the token would go "
            "unencrypted: use pulsar+ssl://"
        )


def topic_path(topic: str) -> str:
    """Return the path of a topic below /admin/: `v2/persistent/t/ns/name`, or `persistent/t/c/ns/name` (V1 names).

    Accepts all forms that udfs.paths does. Raises ValueError for what is no topic name.
    """
    scheme, _, rest = topic_of(topic).partition("://")
    *namespace, name = rest.split("/")
    version = "v2/" if len(namespace) == 2 else ""
    # BookKeeper's and ZooKeeper's form writes a space as +, which in a URL's path is a plus
    return f"{version}{scheme}/{'/'.join(namespace)}/{quote(name, safe='')}"


def namespace_path(namespace: str) -> str:
    """Return the path of the list of a namespace's topics: `v2/persistent/t/ns`, or `persistent/t/c/ns` (V1 names)."""
    version = "v2/" if namespace.count("/") == 1 else ""
    return f"{version}persistent/{namespace}"


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
            raise httpx.ReadTimeout("its answer comes too slowly")
        if len(read) > _MOST_BYTES:
            raise AnswerTooLargeError(f"{url} answered with more than {_MOST_BYTES // MIB} MiB")
    return bytes(read)


def tls_context(ca_file: str, *, check_hostname: bool) -> ssl.SSLContext:
    """Return how brokers' certificates are verified; without a file by the system's authorities. Raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        context.check_hostname = check_hostname
        return context
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"pulsar.tls_trust_certs_file {ca_file} can't be used: {error}") from error
