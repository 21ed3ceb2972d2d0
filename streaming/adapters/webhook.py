"""Posts JSON to a URL. The URL may contain a secret, so no error and no log shows it."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from streaming.errors import ConfigError, RefusedError, UnavailableError

_SECONDS = 10.0


def post(url_file: str, body: Any) -> None:
    """Post a body as JSON to the URL in a file. A redirect is not followed.

    Raises ConfigError for a file without a URL, RefusedError for an answer 3xx or 4xx, UnavailableError for 429, 5xx
    and no answer.
    """
    url = url_in(url_file)
    try:
        answer = httpx.post(url, json=body, timeout=_SECONDS, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:  # its text may contain the URL
        raise UnavailableError(f"the webhook of notify.webhook_file does not answer: {type(error).__name__}") from None
    if answer.status_code >= 500 or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise UnavailableError(f"the webhook of notify.webhook_file failed with {answer.status_code}")
    if not answer.is_success:
        raise RefusedError(f"the webhook of notify.webhook_file refused the message with {answer.status_code}")


def url_in(url_file: str) -> str:
    """Return the URL in a file. Raises ConfigError, without the URL."""
    try:
        url = Path(url_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"notify.webhook_file {url_file} can't be read: {why}") from None
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and not any(map(str.isspace, url))
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(f"notify.webhook_file {url_file} must contain one URL, http:// or https://")
    return url
