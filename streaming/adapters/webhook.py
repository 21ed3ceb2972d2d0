"""Posts JSON to a URL. The URL may contain a secret, so no error and no log shows it."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from streaming.config.hosts import may_carry_secret
from streaming.config.sections import NotifySettings
from streaming.errors import ConfigError, RefusedError, UnavailableError

_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The receiver of [notify]. Both files are read for each message."""

    url_file: str
    ca_file: str = ""  # PEM; "": the system's authorities
    is_secret: bool  # whether any path of the URL is a secret, as Slack's is
    seconds: float = _SECONDS  # for a message as a whole

    @classmethod
    def of(cls, notify: NotifySettings) -> Self:
        """Take the keys of the configuration's section."""
        return cls(url_file=notify.webhook_file, ca_file=notify.ca_file, is_secret=notify.format == "slack")

    def check(self) -> None:
        """Raise ConfigError if the files can't be used."""
        self._url()
        self._authorities()

    def post(self, body: Any) -> None:
        """Post a body as JSON. A redirect is not followed, because it would send the message to another receiver.

        Raises ConfigError as check(), RefusedError for an answer 3xx or 4xx, UnavailableError for 429, 5xx and no
        answer.
        """
        url, authorities = self._url(), self._authorities()
        try:
            status = asyncio.run(self._status(url, authorities, body))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:  # its text may contain the URL
            raise UnavailableError(f"the webhook of notify.webhook_file does not answer: {_cause(error)}") from None
        if status >= 500 or status == httpx.codes.TOO_MANY_REQUESTS:
            raise UnavailableError(f"the webhook of notify.webhook_file failed with {status}")
        if not httpx.codes.is_success(status):
            raise RefusedError(f"the webhook of notify.webhook_file refused the message with {status}")

    async def _status(self, url: str, authorities: ssl.SSLContext, body: Any) -> int:
        # httpx limits each read, so a receiver that sends a byte now and then would keep the caller for ever
        async with (
            asyncio.timeout(self.seconds),
            httpx.AsyncClient(timeout=self.seconds, follow_redirects=False, verify=authorities) as http,
            http.stream("POST", url, json=body) as answer,
        ):
            return answer.status_code

    def _authorities(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:  # ssl.SSLError is one, too
            raise ConfigError(f"notify.ca_file {self.ca_file} can't be used: {error}") from None

    def _url(self) -> str:
        """Return the URL in the file. Raises ConfigError, without the URL."""
        try:
            url = Path(self.url_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"notify.webhook_file {self.url_file} can't be read: {why}") from None
        try:
            parts = urlsplit(url)
            is_named = bool(parts.hostname) and parts.port != 0
            is_url = parts.scheme in ("http", "https") and is_named and not any(map(str.isspace, url))
        except ValueError:  # also of a port that is no number, or too large
            is_url = False
        if not is_url:
            raise ConfigError(f"notify.webhook_file {self.url_file} must contain one URL, http:// or https://")
        if (self.is_secret or "@" in parts.netloc) and not may_carry_secret(url):
            raise ConfigError(
                f"the URL in notify.webhook_file {self.url_file} contains a secret, so it must be https:// unless it "
                "leads to this machine"
            )
        return url


def _cause(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {cause.verify_message}; notify.ca_file names a private authority"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
