"""A bookie's HTTP API: its disk (entry logs, and the space that garbage collection reclaimed), and reads of entries."""

import httpx

from streaming.errors import UnavailableError
from udfs.formats.bookie_disk import BookieDisk, parse_bookie_disk

_NO_SUCH_SERVICE = frozenset({401, 403, 404, 405, 501})


def read_disk(url: str, timeout_seconds: float) -> BookieDisk:
    """Ask a bookie for its disk usage. Raises UnavailableError."""
    base = url.rstrip("/")
    try:
        with httpx.Client(timeout=timeout_seconds, trust_env=False) as client:
            metrics = client.get(f"{base}/metrics").raise_for_status().text
            answer = client.get(f"{base}/api/v1/config/server_config")
            config = answer.json() if answer.is_success else {}
    except (httpx.HTTPError, ValueError) as error:
        raise UnavailableError(
            f"bookie {url} did not return its metrics: {error}; is httpServerEnabled=true?"
        ) from error
    return parse_bookie_disk(url, metrics, config)


def can_read(url: str, ledger_id: int, entry_id: int, *, timeout_seconds: float) -> bool:
    """Let a bookie read an entry as a BookKeeper client, from any bookie that holds it. This does not fence the ledger.

    False (500) may also mean that this bookie can read no ledger at all. Raises UnavailableError if the bookie itself
    does not answer, or has no such service.
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
