"""What a bookie tells by HTTP: of its disk (entry logs, what garbage collection gave back), and of a ledger's entries.

Metrics are Prometheus text; names are the bookie's own, one line for each ledger directory.
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
    """One bookie. reclaimed_bytes: since it started. Thresholds: share of an entry log (0 to 1) that must be live for
    it to be left alone, 0 where the bookie does not say. gc_wait_seconds: 0 where it does not say.
    """

    url: str
    entry_log_bytes: int
    reclaimed_bytes: int
    minor_threshold: float
    major_threshold: float
    gc_wait_seconds: int


def look(url: str, timeout_seconds: float) -> BookieDisk:
    """Ask one bookie. Raises UnavailableError."""
    base = url.rstrip("/")
    try:
        with httpx.Client(timeout=timeout_seconds, trust_env=False) as client:
            metrics = client.get(f"{base}/metrics").raise_for_status().text
            answer = client.get(f"{base}/api/v1/config/server_config")
            config = answer.json() if answer.is_success else {}
    except (httpx.HTTPError, ValueError) as error:
        raise UnavailableError(f"bookie {url} did not tell its metrics: {error}; is httpServerEnabled=true?") from error
    return disk_of(url, metrics, config)


def can_read(url: str, ledger_id: int, entry_id: int, *, timeout_seconds: float) -> bool:
    """Have a bookie read one entry as a client of BookKeeper, from whichever bookies hold it. It fences nothing.

    False (500) may also mean that this bookie can read no ledger at all. Raises UnavailableError where the bookie
    itself does not answer, or has no such service.
    """
    where = {"ledger_id": ledger_id, "start_entry_id": entry_id, "end_entry_id": entry_id}
    try:
        answer = httpx.get(
            f"{url.rstrip('/')}/api/v1/ledger/read/", params=where, timeout=timeout_seconds, trust_env=False
        )
        found = answer.json() if answer.is_success else {}
    except (httpx.HTTPError, ValueError) as error:
        raise UnavailableError(f"bookie {url} did not read entry {entry_id} of ledger {ledger_id}: {error}") from error
    if answer.status_code in _NO_SUCH_SERVICE:
        raise UnavailableError(f"bookie {url} answers {answer.status_code}: it does not read ledgers by HTTP")
    return isinstance(found, dict) and str(entry_id) in found


def disk_of(url: str, metrics: str, config: Any) -> BookieDisk:
    """Read what the bookie answered."""
    entry_logs = reclaimed = 0
    for line in metrics.splitlines():
        match = _LINE.match(line)
        if match is not None and match[1].startswith("ACTIVE"):
            entry_logs += int(float(match[2]))
        elif match is not None:
            reclaimed += int(float(match[2]))
    known = config if isinstance(config, dict) else {}
    return BookieDisk(
        url,
        entry_logs,
        reclaimed,
        _number(known, "minorCompactionThreshold"),
        _number(known, "majorCompactionThreshold"),
        int(_number(known, "gcWaitTime") / _MILLISECONDS),
    )


def _number(config: dict[str, Any], key: str) -> float:
    try:
        return float(config.get(key, 0))
    except (TypeError, ValueError):
        return 0.0
