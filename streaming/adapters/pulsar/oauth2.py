"""Access tokens by OAuth2's client credentials grant (RFC 6749, 4.4), with the key file of Pulsar's own clients.

A process keeps an access token until a tenth of its life is left. The client secret is sent only over TLS or to this
machine, and after no redirect.
"""

import json
import os
import re
import ssl
import threading
import time
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from streaming.config.hosts import may_carry_secret
from streaming.errors import ConfigError, ReaperError, RefusedError, UnavailableError

_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 1 << 20
_RETRY_SECONDS = 10.0
_LIFE_SECONDS = 60.0  # of a token whose life the issuer does not state, or states as more than the next
_MOST_LIFE_SECONDS = 1e9
# what RFC 6749 allows in an error's name; other text of the answer may quote the secret
_ERROR = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth2:
    """A client, its issuer, and the access tokens that it requests."""

    key_file: str  # JSON with client_id and client_secret
    issuer_url: str
    audience: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    asked_at: float  # of time.monotonic(), as the others
    renew_at: float
    ends_at: float


_tokens: dict[OAuth2, _Token] = {}
_lock = threading.Lock()


def _forget_parents_lock() -> None:
    global _lock  # noqa: PLW0603  a lock that another thread of the parent held at the fork is never released
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_parents_lock)


def access_token(oauth2: OAuth2) -> str:
    """Return this process's access token. Request one from the issuer if there is none, or its renewal is due.

    Raises ConfigError for an unusable key file, RefusedError if the issuer refuses the client, UnavailableError if it
    does not answer.
    """
    with _lock:
        kept, now = _tokens.get(oauth2), time.monotonic()
        if kept is None or now >= kept.renew_at:
            try:
                kept = _requested(oauth2)
            except ReaperError:
                # until the kept token ends, the issuer may be away, or know a rotated secret before the key file does
                if kept is None or now >= kept.ends_at:
                    raise
                kept = replace(kept, asked_at=now, renew_at=now + _RETRY_SECONDS)
            _tokens[oauth2] = kept
        return kept.text


def refused(oauth2: OAuth2, token: str) -> None:
    """Note that a broker refused a token: its issuer may have changed its key, or revoked the token.

    The next access_token() requests another, but not more often than every 10 s.
    """
    with _lock:
        kept = _tokens.get(oauth2)
        if kept is not None and kept.text == token:
            renew_at = min(kept.renew_at, kept.asked_at + _RETRY_SECONDS)
            _tokens[oauth2] = replace(kept, renew_at=renew_at)


def is_sendable(token: str) -> bool:
    """Whether a token can be sent in a header. HTTP's library quotes any other in its error, and so in the log."""
    return token.isascii() and token.isprintable()


def _requested(oauth2: OAuth2) -> _Token:
    client = _client_of(oauth2.key_file)
    # without a context, httpx trusts certifi's authorities, not the system's
    context = ssl.create_default_context()
    with httpx.Client(timeout=_TIMEOUT_SECONDS, follow_redirects=False, trust_env=False, verify=context) as http:
        endpoint = _token_endpoint(http, oauth2.issuer_url)
        form = {"grant_type": "client_credentials", **client, "audience": oauth2.audience, "scope": oauth2.scope}
        asked_at = time.monotonic()
        status, answer = _answer(http, "POST", endpoint, {key: value for key, value in form.items() if value})
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise RefusedError(
            f"{endpoint} refuses the client of pulsar.oauth2_key_file {oauth2.key_file} "
            f"({_error(answer) or int(status)}): check its id, secret, audience and scope"
        )
    token, life = answer.get("access_token"), answer.get("expires_in")
    if status != HTTPStatus.OK or not isinstance(token, str) or not token or not is_sendable(token):
        raise UnavailableError(f"{endpoint} answered {int(status)} without a valid access token")
    seconds = float(life) if isinstance(life, int | float) and 0 < life < _MOST_LIFE_SECONDS else _LIFE_SECONDS
    return _Token(token, asked_at, asked_at + 0.9 * seconds, asked_at + seconds)


def _client_of(key_file: str) -> dict[str, str]:
    try:
        key = json.loads(Path(key_file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"pulsar.oauth2_key_file {key_file} can't be read: {error.strerror}") from error
    except ValueError:  # without the cause, which quotes the file
        key = None
    client = {name: key.get(name) for name in ("client_id", "client_secret")} if isinstance(key, dict) else {}
    texts = {name: value for name, value in client.items() if isinstance(value, str) and value}
    if len(texts) < 2:
        raise ConfigError(
            f"pulsar.oauth2_key_file {key_file} must be Pulsar's key file: JSON with client_id and client_secret"
        )
    return texts


def _token_endpoint(http: httpx.Client, issuer_url: str) -> str:
    url = f"{issuer_url.rstrip('/')}/.well-known/openid-configuration"
    _require_safe(url)
    status, answer = _answer(http, "GET", url)
    endpoint = answer.get("token_endpoint")
    if status != HTTPStatus.OK or not isinstance(endpoint, str):
        raise UnavailableError(f"{url} answered {int(status)} without a token_endpoint: check pulsar.oauth2_issuer_url")
    _require_safe(endpoint)
    return endpoint


def _require_safe(url: str) -> None:
    if not may_carry_secret(url):
        raise UnavailableError(f"{url} is not reached over TLS; the client secret is not sent there")


def _answer(
    http: httpx.Client, method: str, url: str, form: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    try:
        with http.stream(method, url, data=form, headers={"Accept": "application/json"}) as answer:
            content, until = bytearray(), time.monotonic() + _TIMEOUT_SECONDS
            for part in answer.iter_bytes():
                content += part
                if time.monotonic() > until:  # all threads wait for it
                    raise httpx.ReadTimeout("its answer arrives too slowly")
                if len(content) > _MOST_BYTES:
                    raise UnavailableError(f"{url} answered with more than {_MOST_BYTES} bytes")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: no name for DNS
        raise UnavailableError(
            f"{url} does not answer ({type(error).__name__}: {error}): check pulsar.oauth2_issuer_url"
        ) from error
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    return answer.status_code, body if isinstance(body, dict) else {}


def _error(answer: dict[str, Any]) -> str:
    name = answer.get("error")
    return name if isinstance(name, str) and _ERROR.fullmatch(name) else ""
