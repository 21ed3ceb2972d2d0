"""A publication's plan: a file in published/ that is durable before the first request of the publication is sent.

It says which orphans are requested, and where each partition of the request topic ended before; so a publication that
was cut short can go on, and a repeated one knows that it is done.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from pyspark.sql import DataFrame

from streaming.audit.options import FindingFilters
from streaming.audit.place import Place
from streaming.audit.publication import asked
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.topics.setup import ensure_topics

_FOLDER = "published"


@dataclass(frozen=True, slots=True)
class PublicationPlan:
    """One publication. after: partition -> its last position (ledger id, entry id) before the first send."""

    name: str
    audit_id: str
    at_ms: int
    requests: int
    size_bytes: int
    after: Mapping[str, tuple[int, int]]
    is_done: bool = False


def plan_name(audit_id: str, filters: FindingFilters) -> str:
    """Return a name that every try of the same publication has, and no other publication."""
    return f"audit-{audit_id}-{_digest(filters)}"


def prepare(
    settings: Settings, place: Place, plan: PublicationPlan, orphans: DataFrame
) -> tuple[PublicationPlan, bool]:
    """Write the plan and its orphans, or find what an earlier run of the same wrote; True if this run is the first.

    Makes or checks the topics. Raises ConfigError, UnavailableError.
    """
    known = _read(place, plan.name)
    if known is not None:
        return known, False
    topic = settings.topics.requests[0]
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
        if not admin.partitions(topic):
            raise ConfigError(f"{topic} is not partitioned, and the audit writes its requests to fixed partitions")
        fresh = replace(plan, after=admin.last_positions(topic))
    asked.keep(place, plan.name, orphans)
    _write(place, fresh)
    return fresh, True


def finish(place: Place, plan: PublicationPlan) -> None:
    """Write down that the topic holds all requests of the plan. Raises UnavailableError."""
    _write(place, replace(plan, is_done=True))


def plans(place: Place) -> list[PublicationPlan]:
    """Return every publication from this folder, oldest first. Raises UnavailableError."""
    found = [_read(place, name.removesuffix(".json")) for name in place.names(_FOLDER)]
    return sorted((plan for plan in found if plan is not None), key=lambda plan: plan.at_ms)


def unfinished(place: Place, filters: FindingFilters) -> list[PublicationPlan]:
    """Return the publications with the same filters that were cut short. Raises UnavailableError."""
    return [plan for plan in plans(place) if not plan.is_done and plan.name.endswith(f"-{_digest(filters)}")]


def _digest(filters: FindingFilters) -> str:
    return sha256(json.dumps(asdict(filters), sort_keys=True, default=str).encode()).hexdigest()[:12]


def _read(place: Place, name: str) -> PublicationPlan | None:
    content = place.read(f"{_FOLDER}/{name}.json")
    if content is None:
        return None
    fields = json.loads(content)
    after = {partition: (ledger_id, entry_id) for partition, (ledger_id, entry_id) in fields.pop("after").items()}
    return PublicationPlan(**fields, after=after)


def _write(place: Place, plan: PublicationPlan) -> None:
    place.write(f"{_FOLDER}/{plan.name}.json", json.dumps(asdict(plan), indent=2).encode())
