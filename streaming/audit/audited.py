"""What an audit came to, and how it is remembered beside its findings (summary.json)."""

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
class Share:
    """How much is in use of a namespace, by component; bytes as the owners' lists tell them."""

    namespace: str
    component: str
    ledger_type: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit came to. totals: how much was listed and is in use, and class -> count and bytes.

    instance_id: BookKeeper's own name for the cluster that was audited.
    """

    audit_id: str
    instance_id: str
    started_ms: int
    ended_ms: int
    certificate: Certificate
    totals: Mapping[str, Any]
    in_use: tuple[Share, ...]


def remember(place: Place, audited: Audited, filters: FindingFilters) -> None:
    """Write it down. filters: what the report beside it shows; the findings are all there. Raises UnavailableError."""
    content = {
        "audit_id": audited.audit_id,
        "instance_id": audited.instance_id,
        "started_ms": audited.started_ms,
        "ended_ms": audited.ended_ms,
        "filters": asdict(filters),
        "certificate": audited.certificate.as_json(),
        "totals": audited.totals,
        "in_use": [asdict(share) for share in audited.in_use],
    }
    place.write(FILE, json.dumps(content, indent=2).encode())


def remembered(place: Place) -> Audited:
    """The last audit there. Raises ConfigError where there is none, UnavailableError."""
    content = place.read(FILE)
    if content is None:
        raise ConfigError(f"no audit in {place.location}: run `ledger-reaper audit` without --last first")
    try:
        fields = json.loads(content)
        return Audited(
            fields["audit_id"],
            fields["instance_id"],
            fields["started_ms"],
            fields["ended_ms"],
            Certificate.from_json(fields["certificate"]),
            fields["totals"],
            tuple(Share(**share) for share in fields["in_use"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{place.location}/{FILE} is damaged ({error}): run `ledger-reaper audit` anew") from error
