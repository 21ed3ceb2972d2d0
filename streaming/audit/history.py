"""What the last audits came to: one line each in history.jsonl beside the findings, for the trend."""

import json
from dataclasses import dataclass

from streaming.audit.place import Place

FILE = "history.jsonl"
_KEPT = 500


@dataclass(frozen=True, slots=True)
class Past:
    """One audit that looked at everything (no filters)."""

    at_ms: int
    complete: bool
    orphans: int
    orphan_bytes: int
    missing: int
    ledgers: int


def read(place: Place) -> list[Past]:
    """Oldest first; lines that can't be read are left out: a trend is a convenience. Raises UnavailableError."""
    past = []
    for line in (place.read(FILE) or b"").splitlines():
        try:
            past.append(Past(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return past


def add(place: Place, newest: Past) -> list[Past]:
    """Write one more; returns all. Raises UnavailableError."""
    past = [*read(place), newest][-_KEPT:]
    lines = [
        json.dumps({name: getattr(each, name) for name in Past.__dataclass_fields__}, separators=(",", ":"))
        for each in past
    ]
    place.write(FILE, "\n".join([*lines, ""]).encode())
    return past
