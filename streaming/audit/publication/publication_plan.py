"""A publication's plan: a file in published/ that is durable before the first request of the publication is sent.

It contains the number and size of the orphans (asked.py stores the orphans), and the last position of each partition of
the request topic before the first send.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from streaming.audit.audit_options import FindingFilters
from streaming.audit.output import Output
from streaming.audit.publication import asked
from streaming.audit.tables import Rows
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.topics.setup import ensure_topics

_FOLDER = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationPlan:
    """One publication."""

    name: str
    audit_id: str
    at_ms: int
    requests: int
    size_bytes: int
    after: Mapping[str, tuple[int, int]]  # partition -> last position (ledger id, entry id) before the first send
    is_done: bool = False


def plan_name(audit_id: str, filters: FindingFilters) -> str:
    """Return a name that all tries of the same publication share, and no other publication has."""
    return f"audit-{audit_id}-{_digest(filters)}"


def prepare(settings: Settings, output: Output, plan: PublicationPlan, orphans: Rows) -> tuple[PublicationPlan, bool]:
    """Write the plan and its orphans, or load the plan of an earlier run; True if this run is the first.

    Creates or checks the topics. Raises ConfigError, UnavailableError.
    """
    earlier = _read(output, plan.name)
    if earlier is not None:
        # an interrupted publication is resumed, and a repeated publication is done already
        return earlier, False
    topic = settings.topics.requests[0]
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
        if not admin.partitions(topic):
            raise ConfigError(f"{topic} is not partitioned, and the audit writes its requests to fixed partitions")
        fresh = replace(plan, after=admin.last_positions(topic))
    asked.keep(output, plan.name, orphans)
    # after the orphans, since an unfinished plan is resumed with them
    _write(output, fresh)
    return fresh, True


def finish(output: Output, plan: PublicationPlan) -> None:
    """Record that the topic has all requests of the plan. Raises UnavailableError."""
    _write(output, replace(plan, is_done=True))


def plans(output: Output) -> list[PublicationPlan]:
    """Return all publications of this folder, oldest first. Raises UnavailableError."""
    all_plans = [_read(output, name.removesuffix(".json")) for name in output.names(_FOLDER)]
    return sorted((plan for plan in all_plans if plan is not None), key=lambda plan: plan.at_ms)


def unfinished(output: Output, filters: FindingFilters) -> list[PublicationPlan]:
    """Return the interrupted publications with the same filters. Raises UnavailableError."""
    return [plan for plan in plans(output) if not plan.is_done and plan.name.endswith(f"-{_digest(filters)}")]


def _digest(filters: FindingFilters) -> str:
    return sha256(json.dumps(asdict(filters), sort_keys=True, default=str).encode()).hexdigest()[:12]


def _read(output: Output, name: str) -> PublicationPlan | None:
    content = output.read(f"{_FOLDER}/{name}.json")
    if content is None:
        return None
    fields = json.loads(content)
    after = {partition: (ledger_id, entry_id) for partition, (ledger_id, entry_id) in fields.pop("after").items()}
    return PublicationPlan(**fields, after=after)


def _write(output: Output, plan: PublicationPlan) -> None:
    output.write(f"{_FOLDER}/{plan.name}.json", json.dumps(asdict(plan), indent=2).encode())
