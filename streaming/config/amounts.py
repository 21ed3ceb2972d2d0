"""Reads durations (30m, 6h, 7d), times, sizes (500G), topic names and enumerated values of the command line.

pydantic's types differ: its timedelta refuses 30m, and its ByteSize reads 10G as a power of ten.
"""

import difflib
import re
from collections.abc import Iterable
from datetime import UTC, datetime

from streaming.errors import ConfigError
from udfs.paths import topic_named

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)(i?B)?")


def seconds_of(text: str, option: str) -> int:
    """Read "90s", "30m", "6h", "7d" or "2w". Raises ConfigError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigError(f"{option} {text}: write a number and one of s, m, h, d and w, as in 6h")
    return int(match[1]) * _SECONDS[match[2]]


def time_of(text: str, option: str, now_ms: int) -> int:
    """Read a time as ms since 1970: "2h" (ago), "2026-11-28" or "2026-11-28T17:05" (UTC, unless it has an offset).

    Raises ConfigError.
    """
    if _DURATION.fullmatch(text.strip().lower()):
        return now_ms - seconds_of(text, option) * 1000
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ConfigError(
            f'{option} {text}: write how long ago, as in 2h, or a time of UTC, as in 2026-11-28 or "2026-11-28 17:05"'
        ) from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_text(seconds: int) -> str:
    """Write a duration as seconds_of reads it, in the largest unit that is exact: 21600 -> "6h"; 0 -> "never"."""
    unit = next((unit for unit, size in reversed(_SECONDS.items()) if seconds % size == 0), "s")
    return f"{seconds // _SECONDS[unit]}{unit}" if seconds else "never"


def bytes_of(text: str, option: str) -> int:
    """Read "500", "10M", "2GiB" (all powers of two). Raises ConfigError."""
    match = _SIZE.fullmatch(text.strip().replace(" ", ""))
    if match is None:
        raise ConfigError(f"{option} {text}: write a number of bytes, or a number and one of K, M, G and T, as in 10G")
    return int(match[1]) * _BYTES[match[2]]


def topic_from(text: str, option: str) -> str:
    """Read a topic in any form that pulsar-admin and our tables print, as `persistent://…`. Raises ConfigError."""
    try:
        return topic_named(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


def one_of(text: str, values: Iterable[str], option: str, *, page: str = "") -> str:
    """Return the value that the operator wrote in upper or lower case.

    Raises ConfigError, which names the most similar value, and all of them or the page of the docs that explains them.
    """
    of_text = {str(value).lower(): str(value) for value in values}
    if text.lower() in of_text:
        return of_text[text.lower()]
    similar = most_similar(text, of_text.values())
    hint = f"; did you mean {similar}?" if similar else ""
    rest = f"{page} explains all values" if page else f"choose one of {', '.join(of_text.values())}"
    raise ConfigError(f"{option} {text or repr(text)}: no such value{hint} ({rest})")


def most_similar(wrong: str, names: Iterable[str]) -> str:
    """Return the name that an operator probably meant, in whatever case it was written; "" if none is similar."""
    of_text = {name.lower(): name for name in names}
    return "".join(of_text[name] for name in difflib.get_close_matches(wrong.lower(), of_text, 1))
