"""The result of an audit, and its file next to the findings (summary.json)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from streaming.audit.audit_options import FindingFilters
from streaming.audit.certificate import Certificate
from streaming.audit.output import Output
from streaming.errors import ConfigError

FILE = "summary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """The ledgers or objects that the topics of a namespace refer to, of one component and type."""

    namespace: str
    component: str
    ledger_type: str
    count: int
    size_bytes: int  # from the topics' own lists


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The result of an audit."""

    audit_id: str
    instance_id: str  # BookKeeper's own name for the cluster that was audited
    started_ms: int
    ended_ms: int
    certificate: Certificate
    totals: Mapping[str, Any]  # how much was listed, how much is in use, and class -> count and bytes
    in_use: tuple[InUse, ...]
    cluster: str = ""  # the cluster's name and ZooKeeper, as cluster_label() gives them; "": an older audit's


def remember(output: Output, result: AuditResult, filters: FindingFilters) -> None:
    """Write summary.json. Raises UnavailableError.

    Args:
        output: the audit's folder.
        result: the result.
        filters: the filters of the report next to it; findings/ has all findings.
    """
    content = {
        "audit_id": result.audit_id,
        "instance_id": result.instance_id,
        "cluster": result.cluster,
        "started_ms": result.started_ms,
        "ended_ms": result.ended_ms,
        "filters": asdict(filters),
        "certificate": result.certificate.as_json(),
        "totals": result.totals,
        "in_use": [asdict(in_use) for in_use in result.in_use],
    }
    output.write(FILE, json.dumps(content, indent=2).encode())


def remembered(output: Output) -> AuditResult:
    """Read the last audit's summary.json. Raises ConfigError if there is none or it is damaged, UnavailableError."""
    fields = _fields(output)
    try:
        return AuditResult(
            audit_id=fields["audit_id"],
            instance_id=fields["instance_id"],
            cluster=fields.get("cluster", ""),
            started_ms=fields["started_ms"],
            ended_ms=fields["ended_ms"],
            certificate=Certificate.from_json(fields["certificate"]),
            totals=fields["totals"],
            in_use=tuple(InUse(**in_use) for in_use in fields["in_use"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(output, error) from error


def remembered_filters(output: Output) -> FindingFilters:
    """Read the filters of the report next to summary.json. Raises as remembered."""
    fields = _fields(output)
    try:
        return FindingFilters(**fields["filters"])
    except (KeyError, TypeError) as error:
        raise _damaged(output, error) from error


def _fields(output: Output) -> dict[str, Any]:
    content = output.read(FILE)
    if content is None:
        raise ConfigError(f"{output.shown} has no audit yet: run `ledger-reaper audit` without --last first")
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise _damaged(output, error) from error


def _damaged(output: Output, error: Exception) -> ConfigError:
    return ConfigError(f"{output.shown}/{FILE} is damaged ({error}): run `ledger-reaper audit` again")
