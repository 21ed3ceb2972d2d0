"""A publication's plan: a file in published/ that is durable before the first request of the publication is sent.

It contains the number and size of the orphans (asked.py stores the orphans, with the request topic of each), and the
last position of each partition before the first send to it. A lane is opened, which means created or checked and added
to the plan, right before its first request. A lane that can't be opened leaves the plan unfinished: the next try opens
it and sends its requests.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

from streaming.audit.audit_options import FindingFilters
from streaming.audit.output import Output
from streaming.audit.publication import asked
from streaming.audit.tables import Rows
from streaming.clients import admin_for
from streaming.config.settings import Settings
from streaming.errors import ConfigError, RefusedError, UnavailableError
from streaming.ports import TopicAdmin
from streaming.topics.routing import RequestTopics, request_topics
from streaming.topics.setup import ensure_topics
from udfs.paths import base_topic, partition_index

log = logging.getLogger("ledger-reaper")

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
    to_shared: tuple[str, ...] = ()  # lanes that could not be opened, whose requests use the shared topic


def plan_name(audit_id: str, filters: FindingFilters) -> str:
    """Return a name that all tries of the same publication share, and no other publication has."""
    return f"audit-{audit_id}-{_digest(filters)}"


def prepare(settings: Settings, output: Output, plan: PublicationPlan, orphans: Rows) -> tuple[PublicationPlan, bool]:
    """Write the plan and its orphans, or load the plan of an earlier run; True if this run is the first.

    Raises ConfigError, UnavailableError.
    """
    earlier = _read(output, plan.name)
    if earlier is not None:
        # an interrupted publication is resumed, and a repeated publication is done already
        return earlier, False
    asked.keep(output, plan.name, orphans, settings.topics)
    # after the orphans, since an unfinished plan is resumed with them
    _write(output, plan)
    return plan, True


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A plan whose topics exist."""

    plan: PublicationPlan
    partitions: Mapping[str, tuple[str, ...]]  # request topic, as in the orphans' rows -> partitions to send to
    unsent: Mapping[str, tuple[int, str]]  # lane -> requests that can't be sent now, and why


def open_topics(settings: Settings, output: Output, plan: PublicationPlan, requests: Mapping[str, int]) -> OpenPlan:
    """Create or check the topics of a plan, and write their last positions into it.

    Raises ConfigError, UnavailableError, and RefusedError if the shared topic can't be used.

    Args:
        settings: the configuration.
        output: the audit's folder.
        plan: the plan, with the topics that an earlier run has opened.
        requests: request topic -> number of requests. The empty name: the only topic of a plan without lanes, which an
            earlier version of this program has written.
    """
    after = _by_topic(plan.after)
    to_shared = set(plan.to_shared)
    partitions: dict[str, tuple[str, ...]] = {}
    unsent: dict[str, tuple[int, str]] = {}
    with admin_for(settings) as admin:
        topics = request_topics(settings, admin)
        for name, count in requests.items():
            topic = name or next(iter(after))
            if topic not in to_shared:
                why = _unusable(admin, settings, topics, topic, after)
                if why and (topic in after or not settings.topics.shared_without_lane):
                    # requests that an earlier run may have sent to the lane must not be sent to another topic, too
                    unsent[topic] = (count, why)
                    continue
                if why:
                    log.warning("%s can't be used, so its requests use %s: %s", topic, settings.topics.requests[0], why)
                    to_shared.add(topic)
            if topic in to_shared:
                topic = settings.topics.requests[0]
                _unusable(admin, settings, topics, topic, after)
            partitions[name] = tuple(after[topic])
    positions = {partition: position for of_topic in after.values() for partition, position in of_topic.items()}
    opened = replace(plan, after=positions, to_shared=tuple(sorted(to_shared)))
    if opened != plan:
        _write(output, opened)
    return OpenPlan(opened, partitions, unsent)


_Positions = dict[str, dict[str, tuple[int, int]]]  # topic -> partition -> position, by the partitions' numbers


def _unusable(admin: TopicAdmin, settings: Settings, topics: RequestTopics, topic: str, after: _Positions) -> str:
    """Open a topic and add its positions to `after`; return why it can't be used, if it is a lane. Raises otherwise."""
    if not settings.topics.takes(topic):
        return "it is no request topic of this configuration any more; audit again"
    if not settings.topics.is_lane(topic):
        if topic not in after:
            ensure_topics(admin, settings)
            if not admin.partitions(topic):
                raise ConfigError(f"{topic} is not partitioned, and the audit writes its requests to fixed partitions")
            after[topic] = admin.last_positions(topic)
        return ""
    if error := topics.open_lane(topic):
        return error.why
    try:
        now = admin.last_positions(topic)
    except (RefusedError, UnavailableError) as error:
        return str(error)
    if not after.get(topic) or not now.keys() >= after[topic].keys():
        # otherwise the lane was recreated with fewer partitions, and what was sent to it before is gone with it
        after[topic] = now
    return ""


def _by_topic(after: Mapping[str, tuple[int, int]]) -> _Positions:
    topics: _Positions = {}
    for partition in sorted(after, key=partition_index):
        topics.setdefault(base_topic(partition), {})[partition] = after[partition]
    return topics


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
    return PublicationPlan(**{**fields, "to_shared": tuple(fields.get("to_shared", ()))}, after=after)


def _write(output: Output, plan: PublicationPlan) -> None:
    fields = asdict(plan)
    if not plan.to_shared:
        del fields["to_shared"]  # earlier versions of this program do not know it
    output.write(f"{_FOLDER}/{plan.name}.json", json.dumps(fields, indent=2).encode())
