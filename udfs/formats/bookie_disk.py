"""Disk usage and garbage collection as a bookie reports them: metrics as Prometheus text, and JSON of its HTTP API.

Metrics have the bookie's own names, and one line for each ledger directory.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

_LINE = re.compile(
    r"(?:\w*?_)?(ACTIVE_ENTRY_LOG_SPACE_BYTES|ACTIVE_ENTRY_LOG_TOTAL|ACTIVE_LEDGER_TOTAL|RECLAIMED_\w+_SPACE_BYTES"
    r"|ledgers_count|write_cache_size)(?:\{([^}]*)\})? ([0-9.eE+-]+)"
)
_DIRECTORY = re.compile(r'\bledgerDir="([^"]*)"')
_LONGEST_LINE = 4096
_MILLISECONDS = 1000
_MOST = 2**63 - 1  # the bookie counts in a Java long
_LIVE, _LOGS, _AT_LAST_CYCLE = "ACTIVE_ENTRY_LOG_SPACE_BYTES", "ACTIVE_ENTRY_LOG_TOTAL", "ACTIVE_LEDGER_TOTAL"
_LEDGERS, _WRITE_CACHE, _RECLAIMED = "ledgers_count", "write_cache_size", "RECLAIMED"

_ByDirectory = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieDisk:
    """Disk usage and garbage collection of a bookie. None: not reported, or not known yet."""

    url: str
    entry_log_bytes: int  # live bytes of its finished entry logs; 0 until its first collection after a start
    reclaimed_bytes: int  # since the bookie started
    # Compaction skips an entry log if a larger share (0 to 1) of it is live; 0: the bookie never compacts.
    minor_threshold: float | None
    major_threshold: float | None
    gc_wait_seconds: int  # 0: unknown
    live_bytes: int | None = None  # entry_log_bytes, once every ledger directory has been collected since the start
    entry_logs: int | None = None  # finished entry logs at that collection
    ledgers: int | None = None  # in its index now, including deleted ones that it has not collected
    write_cache_bytes: int | None = None  # not in an entry log yet
    disk_total_bytes: int | None = None  # of the file systems of its ledger directories
    disk_free_bytes: int | None = None
    last_minor_ms: int | None = None  # the last compaction of any ledger directory; None: none since its start
    last_major_ms: int | None = None
    is_collecting: bool | None = None  # a requested collection, or a compaction, is running
    faults: tuple[str, ...] = ()  # questions that it did not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieAnswers:
    """A bookie's answers as JSON values; None: it gave none."""

    config: Any = None  # /api/v1/config/server_config
    info: Any = None  # /api/v1/bookie/info
    gc: Any = None  # /api/v1/bookie/gc
    gc_details: Any = None  # /api/v1/bookie/gc_details
    faults: tuple[str, ...] = ()


def parse_bookie_disk(url: str, metrics: str, answers: BookieAnswers) -> BookieDisk:
    """Return what a bookie's answers contain. Ignores what it does not understand."""
    values = _metrics(metrics)
    has_cycle = _has_collected(values)
    config, info = (answer if isinstance(answer, dict) else {} for answer in (answers.config, answers.info))
    wait_ms = _setting(config, "gcWaitTime") or 0.0
    return BookieDisk(
        url=url,
        entry_log_bytes=_sum(values, _LIVE) or 0,
        reclaimed_bytes=_sum(values, _RECLAIMED) or 0,
        minor_threshold=_setting(config, "minorCompactionThreshold"),
        major_threshold=_setting(config, "majorCompactionThreshold"),
        gc_wait_seconds=int(wait_ms / _MILLISECONDS),
        live_bytes=_sum(values, _LIVE) if has_cycle else None,
        entry_logs=_sum(values, _LOGS) if has_cycle else None,
        ledgers=_sum(values, _LEDGERS),
        write_cache_bytes=_sum(values, _WRITE_CACHE),
        disk_total_bytes=_count(info, "totalSpace"),
        disk_free_bytes=_count(info, "freeSpace"),
        last_minor_ms=_last_compaction(answers.gc_details, "Minor"),
        last_major_ms=_last_compaction(answers.gc_details, "Major"),
        is_collecting=_is_collecting(answers.gc, answers.gc_details),
        faults=answers.faults,
    )


def has_metrics_of_a_bookie(metrics: str) -> bool:
    """Whether these metrics are a bookie's: every kind of ledger storage with entry logs reports _LIVE."""
    return _LIVE in _metrics(metrics)


def _metrics(text: str) -> dict[str, dict[str, int]]:
    """Return metric -> ledger directory -> value."""
    # prometheus_client's parser takes 14 times as long (10 MB: 1.3 s), and one malformed line ends it
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in text.splitlines():
        match = _LINE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        value = None if match is None else _long(match[3])
        if match is None or value is None:
            continue
        name = _RECLAIMED if match[1].startswith(_RECLAIMED) else match[1]
        directory = _DIRECTORY.search(match[2] or "")
        found[name][directory[1] if directory else ""] += value
    return {name: dict(by_directory) for name, by_directory in found.items()}


def _has_collected(values: Mapping[str, _ByDirectory]) -> bool:
    """Whether each directory has completed a collection since the start: its gauges are 0 until then."""
    at_last_cycle, now = values.get(_AT_LAST_CYCLE, {}), values.get(_LEDGERS, {})
    # a directory whose index is empty has no live bytes, collected or not
    return bool(at_last_cycle) and all(
        count > 0 or now.get(directory) == 0 for directory, count in at_last_cycle.items()
    )


def _sum(values: Mapping[str, _ByDirectory], name: str) -> int | None:
    return sum(values[name].values()) if name in values else None


def _long(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if isfinite(value) and 0 <= value <= _MOST else None


def _setting(config: Mapping[str, Any], key: str) -> float | None:
    """Return a number of server_config, whose values are texts; only keys that the bookie's file sets are there."""
    try:
        value = float(config[key])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return max(0.0, value) if isfinite(value) else None


def _count(answer: Mapping[str, Any], key: str) -> int | None:
    value = answer.get(key)
    return value if type(value) is int and 0 <= value <= _MOST else None


def _last_compaction(details: Any, kind: str) -> int | None:
    times = [
        _count(directory, f"last{kind}CompactionTime")
        for directory in _directories(details)
        # until the first compaction the time is the bookie's start
        if _count(directory, f"{kind.lower()}CompactionCounter")
    ]
    return max((time for time in times if time), default=None)


def _is_collecting(gc: Any, details: Any) -> bool | None:
    # {"is_in_force_gc": "true"}, a text
    flags = [str(gc["is_in_force_gc"]).lower() == "true"] if isinstance(gc, dict) and "is_in_force_gc" in gc else []
    for directory in _directories(details):
        flags += [directory.get(f"{kind}Compacting") is True for kind in ("force", "major", "minor")]
    return any(flags) if flags else None


def _directories(details: Any) -> list[dict[str, Any]]:
    return [directory for directory in details if isinstance(directory, dict)] if isinstance(details, list) else []
