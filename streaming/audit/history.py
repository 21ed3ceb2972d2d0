"""The trend: history.jsonl, next to the findings, has a line for each of the last audits."""

import json
from dataclasses import dataclass

from streaming.audit.output import Output

FILE = "history.jsonl"
_KEPT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAudit:
    """The totals of an audit. Only audits without filters are counted: others would distort the trend."""

    at_ms: int
    complete: bool
    orphans: int
    orphan_bytes: int
    missing: int
    ledgers: int


def read(output: Output) -> list[PastAudit]:
    """Return the audits, oldest first, without lines that can't be parsed. Raises UnavailableError."""
    past = []
    for line in (output.read(FILE) or b"").splitlines():
        try:
            past.append(PastAudit(**json.loads(line)))
        # another version may have written this line; leaving it out changes the trend, and never a finding
        except (ValueError, TypeError):
            continue
    return past


def add(output: Output, newest: PastAudit) -> list[PastAudit]:
    """Append an audit and return all. Raises UnavailableError."""
    past = [*read(output), newest][-_KEPT:]
    lines = [
        json.dumps({name: getattr(audit, name) for name in PastAudit.__dataclass_fields__}, separators=(",", ":"))
        for audit in past
    ]
    output.write(FILE, "\n".join([*lines, ""]).encode())
    return past
