"""The credentials of the caller's role, of one kind: a token, OAuth2, user and password, or a client certificate."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union
from urllib.parse import urlencode, urlsplit

from ledger_reaper_client.errors import ClientError, ConfigurationError, RefusedError, UnavailableError
from ledger_reaper_client.urls import may_carry_secret

_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 1 << 20
_LIFE_SECONDS = 60.0  # of an access token whose life the issuer does not state
_OAUTH2_ERROR = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Token:
    """A token (JWT), or a function that returns the current one, which each new connection calls."""

    token: str | Callable[[], str] = field(repr=False)

    def secret(self) -> str:
        """Return the token."""
        return _sendable(self.token() if callable(self.token) else self.token, "the token")


@dataclass(frozen=True)
class TokenFile:
    """A file with a token, read again for each new connection."""

    path: str

    def secret(self) -> str:
        """Return the token."""
        return _sendable(_read(self.path).strip(), f"token file {self.path}")


@dataclass(frozen=True)
class Basic:
    """User and password."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class ClientCertificate:
    """A certificate for mutual TLS. The files are read again for each new connection."""

    cert_file: str
    key_file: str


class OAuth2:
    """OAuth2's client credentials, with the key file of Pulsar's own clients (client_id and client_secret)."""

    def __init__(self, key_file: str, issuer_url: str, *, audience: str = "", scope: str = "") -> None:
        self.key_file = key_file
        self.issuer_url = issuer_url
        self._form = {"audience": audience, "scope": scope}
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0  # of time.monotonic()
        self._ends_at = 0.0

    def secret(self) -> str:
        """Return an access token; request another when a tenth of its life is left."""
        with self._lock:
            now = time.monotonic()
            if now >= self._renew_at:
                try:
                    self._token, life = self._requested()
                    self._renew_at, self._ends_at = now + 0.9 * life, now + life
                except ClientError:
                    if now >= self._ends_at:
                        raise
                    self._renew_at = now + 10  # the kept token is still valid
            return self._token

    def refused(self) -> None:
        """Note that a broker refused the token: the next secret() requests another."""
        with self._lock:
            self._renew_at = self._ends_at = 0.0

    def _requested(self) -> tuple[str, float]:
        try:
            key = json.loads(_read(self.key_file))
            client = {name: str(key[name]) for name in ("client_id", "client_secret")}
        except (ValueError, KeyError, TypeError):  # without the cause, which quotes the file
            raise ConfigurationError(
                f"OAuth2 key file {self.key_file} must be JSON with client_id and client_secret"
            ) from None
        url = f"{self.issuer_url.rstrip('/')}/.well-known/openid-configuration"
        status, answer = _json_from(url, None)
        endpoint = answer.get("token_endpoint")
        if status != 200 or not isinstance(endpoint, str):
            raise UnavailableError(f"{url} answered {status} without a token_endpoint: check issuer_url")
        form = {"grant_type": "client_credentials", **client, **self._form}
        status, answer = _json_from(endpoint, {name: value for name, value in form.items() if value})
        if status in (400, 401, 403):
            error = answer.get("error")
            # any other text of the answer could quote the secret
            shown = error if isinstance(error, str) and _OAUTH2_ERROR.fullmatch(error) else status
            raise RefusedError(f"{endpoint} refuses the client of {self.key_file} ({shown}): check id, secret, scope")
        token, life = answer.get("access_token"), answer.get("expires_in")
        if status != 200 or not isinstance(token, str):
            raise UnavailableError(f"{endpoint} answered {status} without an access token")
        seconds = float(life) if isinstance(life, (int, float)) and 0 < life < 1e9 else _LIFE_SECONDS
        return _sendable(token, "the access token"), seconds


Credentials = Union[Token, TokenFile, Basic, ClientCertificate, OAuth2]


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}") from error
    except UnicodeDecodeError:  # without the cause, which quotes the file
        raise ConfigurationError(f"{file} is not a text file in UTF-8") from None


def _sendable(secret: str, what: str) -> str:
    # an HTTP library would quote any other text in its error
    if not secret or not secret.isascii() or not secret.isprintable():
        raise ConfigurationError(f"{what} must be one token, on one line")
    return secret


def _json_from(url: str, form: Mapping[str, str] | None) -> tuple[int, dict[str, Any]]:
    """GET, or POST a form; follow no redirect. Return status and JSON object."""
    if not may_carry_secret(url):
        raise UnavailableError(f"{url} is not reached over TLS; the client secret is not sent there")
    parts = urlsplit(url)
    try:
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.netloc, timeout=_TIMEOUT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_SECONDS)
        try:
            headers = {"Accept": "application/json"}
            if form is not None:
                headers["Content-Type"] = "application/x-www-form-urlencoded"
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request(
                "GET" if form is None else "POST", path or "/", None if form is None else urlencode(form), headers
            )
            answer = connection.getresponse()
            content = answer.read(_MOST_BYTES)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise UnavailableError(f"{url} does not answer ({type(error).__name__}: {error}): check issuer_url") from error
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    return answer.status, body if isinstance(body, dict) else {}
