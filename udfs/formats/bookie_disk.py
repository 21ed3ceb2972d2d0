"""Disk usage as a bookie reports it: metrics as Prometheus text, and its configuration as JSON.

Metrics have the bookie's own names, and one line for each ledger directory.
"""

import re
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"^(?:\w*?_)?(ACTIVE_ENTRY_LOG_SPACE_BYTES|RECLAIMED_\w+_SPACE_BYTES)(?:\{[^}]*\})? ([0-9.eE+-]+)$")
_MILLISECONDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieDisk:
    """Disk usage and garbage collection of a bookie."""

    url: str
    entry_log_bytes: int
    reclaimed_bytes: int  # since the bookie started
    # Compaction skips an entry log if a larger share (0 to 1) of it is live; 0: unknown.
    minor_threshold: float
    major_threshold: float
    gc_wait_seconds: int  # 0: unknown


def parse_bookie_disk(url: str, metrics: str, config: Any) -> BookieDisk:
    """Return what a bookie's answers contain. Ignores a configuration that it does not understand."""
    entry_logs = reclaimed = 0
    for line in metrics.splitlines():
        match = _LINE.match(line)
        if match is not None and match[1].startswith("ACTIVE"):
            entry_logs += int(float(match[2]))
        elif match is not None:
            reclaimed += int(float(match[2]))
    keys = config if isinstance(config, dict) else {}
    return BookieDisk(
        url=url,
        entry_log_bytes=entry_logs,
        reclaimed_bytes=reclaimed,
        minor_threshold=_number(keys, "minorCompactionThreshold"),
        major_threshold=_number(keys, "majorCompactionThreshold"),
        gc_wait_seconds=int(_number(keys, "gcWaitTime") / _MILLISECONDS),
    )


def _number(config: dict[str, Any], key: str) -> float:
    try:
        return float(config.get(key, 0))
    except (TypeError, ValueError):
        return 0.0
