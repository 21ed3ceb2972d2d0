"""What an audit came to, and the file beside its findings that remembers it (summary.json)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from streaming.audit.certificate import Certificate
from streaming.audit.options import FindingFilters
from streaming.audit.place import Place
from streaming.errors import ConfigError

FILE = "summary.json"


@dataclass(frozen=True, slots=True)
class InUse:
    """What the topics of a namespace refer to, of one component and type; the bytes stand in the topics' own lists."""

    namespace: str
    component: str
    ledger_type: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What an audit came to. totals: how much it listed, how much is in use, and class -> count and bytes.

    instance_id: BookKeeper's own name for the cluster that the audit looked at.
    """

    audit_id: str
    instance_id: str
    started_ms: int
    ended_ms: int
    certificate: Certificate
    totals: Mapping[str, Any]
    in_use: tuple[InUse, ...]


def remember(place: Place, result: AuditResult, filters: FindingFilters) -> None:
    """Write summary.json. filters: what the report beside it shows; findings/ holds all. Raises UnavailableError."""
    content = {
        "audit_id": result.audit_id,
        "instance_id": result.instance_id,
        "started_ms": result.started_ms,
        "ended_ms": result.ended_ms,
        "filters": asdict(filters),
        "certificate": result.certificate.as_json(),
        "totals": result.totals,
        "in_use": [asdict(each) for each in result.in_use],
    }
    place.write(FILE, json.dumps(content, indent=2).encode())


def remembered(place: Place) -> AuditResult:
    """Read the last audit's summary.json. Raises ConfigError where there is none, UnavailableError."""
    fields = _fields(place)
    try:
        return AuditResult(
            fields["audit_id"],
            fields["instance_id"],
            fields["started_ms"],
            fields["ended_ms"],
            Certificate.from_json(fields["certificate"]),
            fields["totals"],
            tuple(InUse(**each) for each in fields["in_use"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(place, error) from error


def remembered_filters(place: Place) -> FindingFilters:
    """Read by which filters the report beside summary.json was restricted. Raises as remembered."""
    fields = _fields(place)
    try:
        return FindingFilters(**fields["filters"])
    except (KeyError, TypeError) as error:
        raise _damaged(place, error) from error


def _fields(place: Place) -> dict[str, Any]:
    content = place.read(FILE)
    if content is None:
        raise ConfigError(f"{place.shown} holds no audit yet: run `ledger-reaper audit` without --last first")
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise _damaged(place, error) from error


def _damaged(place: Place, error: Exception) -> ConfigError:
    return ConfigError(f"{place.shown}/{FILE} is damaged ({error}): run `ledger-reaper audit` again")
