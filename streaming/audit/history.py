"""The trend: history.jsonl, beside the findings, holds one line for each of the last audits."""

import json
from dataclasses import dataclass

from streaming.audit.place import Place

FILE = "history.jsonl"
_KEPT = 500


@dataclass(frozen=True, slots=True)
class PastAudit:
    """What one audit found. Only audits without filters are counted: others would bend the trend."""

    at_ms: int
    complete: bool
    orphans: int
    orphan_bytes: int
    missing: int
    ledgers: int


def read(place: Place) -> list[PastAudit]:
    """Return the audits, oldest first, without lines that can't be parsed: the trend decides nothing.

    Raises UnavailableError.
    """
    past = []
    for line in (place.read(FILE) or b"").splitlines():
        try:
            past.append(PastAudit(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return past


def add(place: Place, newest: PastAudit) -> list[PastAudit]:
    """Write one more and return all. Raises UnavailableError."""
    past = [*read(place), newest][-_KEPT:]
    lines = [
        json.dumps({name: getattr(each, name) for name in PastAudit.__dataclass_fields__}, separators=(",", ":"))
        for each in past
    ]
    place.write(FILE, "\n".join([*lines, ""]).encode())
    return past
