"""A bookie's HTTP API: its disk (entry logs, and the space that garbage collection reclaimed), and reads of entries.

Metrics are Prometheus text with the bookie's own names, one line for each ledger directory.
"""

import re
from dataclasses import dataclass
from typing import Any

import httpx

from streaming.errors import UnavailableError

_LINE = re.compile(r"^(?:\w*?_)?(ACTIVE_ENTRY_LOG_SPACE_BYTES|RECLAIMED_\w+_SPACE_BYTES)(?:\{[^}]*\})? ([0-9.eE+-]+)$")
_MILLISECONDS = 1000
_NO_SUCH_SERVICE = frozenset({401, 403, 404, 405, 501})


@dataclass(frozen=True, slots=True)
class BookieDisk:
    """Disk usage and garbage collection of a bookie."""

    url: str
    entry_log_bytes: int
    reclaimed_bytes: int  # since the bookie started
    # Compaction skips an entry log if a larger share (0 to 1) of it is live; 0: unknown.
    minor_threshold: float
    major_threshold: float
    gc_wait_seconds: int  # 0: unknown


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
    return disk_of(url, metrics, config)


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


def disk_of(url: str, metrics: str, config: Any) -> BookieDisk:
    """Parse a bookie's metrics and configuration."""
    entry_logs = reclaimed = 0
    for line in metrics.splitlines():
        match = _LINE.match(line)
        if match is not None and match[1].startswith("ACTIVE"):
            entry_logs += int(float(match[2]))
        elif match is not None:
            reclaimed += int(float(match[2]))
    settings = config if isinstance(config, dict) else {}
    return BookieDisk(
        url,
        entry_logs,
        reclaimed,
        _number(settings, "minorCompactionThreshold"),
        _number(settings, "majorCompactionThreshold"),
        int(_number(settings, "gcWaitTime") / _MILLISECONDS),
    )


def _number(config: dict[str, Any], key: str) -> float:
    try:
        return float(config.get(key, 0))
    except (TypeError, ValueError):
        return 0.0
