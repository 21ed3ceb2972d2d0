"""Makes sure that no request can be lost on a request topic, before the first request is sent to it.

1. The topic is partitioned, and every partition has the service's durable subscription: without it, a broker may trim a
   message that the service has not read. A topic that a broker would create for a message has neither.
2. Only a lane is created here. Any other topic may be one that no service reads, so it must exist, with the
   subscription, which the service creates.
3. A lane gets its subscription before its policies, and both before its first message. If a creator was interrupted,
   the next caller completes an empty lane.
4. A role that may only produce can check the partitions and subscriptions, and that is enough.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ledger_reaper_client.admin import Admin, path_of
from ledger_reaper_client.errors import ForbiddenError, RefusedError, UnavailableError
from ledger_reaper_client.names import LANE_NAME, LANE_NAMESPACE, encode_name, is_lane, parse_topic
from ledger_reaper_client.settings import MOST_PARTITIONS, Settings


class LostError(UnavailableError):
    """The service does not read the topic as it is now."""


def ensure_request_topic(admin: Admin, settings: Settings, topic: str) -> int:
    """Create or check a request topic, and return the number of its partitions.

    Raises RefusedError or ForbiddenError if a request could be lost, with the remedy; UnavailableError.
    """
    partitions = admin.partitions(topic)
    if partitions is None:
        partitions = _create(admin, settings, topic)
    if partitions == 0:
        raise RefusedError(f"{topic} is not partitioned, so the service can't read it: delete it; {_remedy(settings)}")
    if _has_too_many(topic, partitions):
        raise RefusedError(
            f"{topic} has {partitions} partitions, and the service reads no lane of more than {MOST_PARTITIONS}: "
            f"delete it; {_remedy(settings)}"
        )
    is_empty = True
    for partition in partitions_of(topic, partitions):
        stats = admin.internal_stats(partition)
        is_empty = is_empty and not any(entries for _ledger_id, entries, _offloaded in stats.ledgers)
        if encode_name(settings.subscription) not in stats.cursors:
            _subscribe(admin, settings, topic, partition)
    if is_empty and is_lane(topic):
        _set_policies(admin, settings, topic)
    _check_policies(admin, topic)
    return partitions


def check_stored(admin: Admin, settings: Settings, topic: str) -> None:
    """Raise LostError if a request that was stored before this call may be lost; UnavailableError.

    A lane can be deleted at any time, and most brokers then create a topic that the service does not read for the
    producer that connects again.
    """
    partitions = admin.partitions(topic)
    fault = "" if partitions else "it was deleted"
    if _has_too_many(topic, partitions or 0):
        fault = f"it has {partitions} partitions, and the service reads no lane of more than {MOST_PARTITIONS}"
    for partition in partitions_of(topic, 0 if fault else partitions or 0):
        if encode_name(settings.subscription) not in admin.internal_stats(partition).cursors:
            fault = f"{partition} has no subscription {settings.subscription}"
    if fault:
        raise LostError(f"requests to {topic} may be lost ({fault}): send them again, which is harmless")


def partitions_of(topic: str, partitions: int) -> list[str]:
    """Return the names of a topic's partitions."""
    return [f"{topic}-partition-{number}" for number in range(partitions)]


def _has_too_many(topic: str, partitions: int) -> bool:
    return partitions > MOST_PARTITIONS and is_lane(topic)


def _create(admin: Admin, settings: Settings, topic: str) -> int:
    if not is_lane(topic):
        raise RefusedError(
            f"there is no topic {topic}; the service creates the topics that it reads (topics.requests), so check the "
            'name, or use lanes="tenant" or lanes="namespace" if the operator has set topics.lanes'
        )
    try:
        if topic.endswith(f"/{LANE_NAMESPACE}/{LANE_NAME}"):
            _create_namespace(admin, topic)
        answer = admin.call("PUT", f"{path_of(topic)}/partitions", body=settings.lane_partitions)
        if answer.status != 409:
            admin.done(answer, f"create {topic}", _remedy(settings))
    except ForbiddenError as error:
        raise ForbiddenError(
            f"{topic} does not exist, and this role may not create it: {_remedy(settings)} ({error})"
        ) from error
    give_up = time.monotonic() + settings.timeout_seconds
    while (partitions := admin.partitions(topic)) is None:  # another client is creating it
        if time.monotonic() > give_up:
            raise RefusedError(
                f"{topic} can't be created, because a topic is named like one of its partitions: delete "
                f"{topic}-partition-0, which a broker created for a producer after the lane was deleted"
            )
        time.sleep(0.2)
    return partitions


def _create_namespace(admin: Admin, topic: str) -> None:
    """Create a tenant lane's namespace, which is for the lane alone."""
    namespace = parse_topic(topic).full_namespace
    if not admin.call("GET", f"namespaces/{namespace}").ok:
        answer = admin.call("PUT", f"namespaces/{namespace}")
        if answer.status != 409:
            admin.done(answer, f"create namespace {namespace}", "check that the tenant exists")
    policy = f"namespaces/{namespace}/autoTopicCreation"
    # otherwise a broker would create a topic for a producer that connects after the lane was deleted
    if admin.done(admin.call("GET", policy), f"read autoTopicCreation of {namespace}").body is None:
        answer = admin.call("POST", policy, body={"allowAutoTopicCreation": False})
        admin.done(answer, f"set autoTopicCreation of {namespace}")


def _subscribe(admin: Admin, settings: Settings, topic: str, partition: str) -> None:
    missing = f"{partition} has no subscription {settings.subscription}, so a request could be trimmed unread"
    if not is_lane(topic):
        raise RefusedError(f"{missing}: start the service, which creates it, or check the name of the topic")
    try:
        admin.subscribe(partition, settings.subscription)
    except ForbiddenError as error:
        raise ForbiddenError(f"{missing}, and this role may not create it: {_remedy(settings)} ({error})") from error


def _set_policies(admin: Admin, settings: Settings, topic: str) -> None:
    """Set the policies of an empty lane, as far as the role may: its creator may have been interrupted."""
    path = path_of(topic)
    unlimited = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
    retention = {"retentionTimeInMinutes": settings.retention_minutes, "retentionSizeInMB": -1}
    calls: list[tuple[str, dict[str, str], Any]] = [
        ("retention", {}, retention),
        ("messageTTL", {"messageTTL": "0"}, None),
        *(("backlogQuota", {"backlogQuotaType": kind}, unlimited) for kind in ("destination_storage", "message_age")),
    ]
    for policy, params, body in calls:
        try:
            admin.done(admin.call("POST", f"{path}/{policy}", params, body), f"set {policy} of {topic}")
        except ForbiddenError:  # a role that may only produce
            return


def _check_policies(admin: Admin, topic: str) -> None:
    """Refuse a topic whose policies discard unread messages, as far as the role may read the policies."""
    path = path_of(topic)
    namespace = parse_topic(topic).full_namespace
    ttl = admin.call("GET", f"{path}/messageTTL", {"applied": "true"})
    if ttl.ok and isinstance(ttl.body, int) and ttl.body > 0:
        raise RefusedError(f"{topic} has a message TTL, so unread requests would expire: remove the TTL")
    # without `applied`, for which a broker may wait 30 s for itself; the topic's own quotas replace the namespace's
    policies, own = admin.call("GET", f"namespaces/{namespace}"), admin.call("GET", f"{path}/backlogQuotaMap")
    quotas: dict[str, Any] = {}
    if policies.ok and isinstance(policies.body, dict):
        quotas.update(policies.body.get("backlog_quota_map") or {})
    if own.ok and isinstance(own.body, dict):
        quotas.update(own.body)
    if any(_evicts(quota) for quota in quotas.values()):
        raise RefusedError(f"{topic} has a backlog quota that evicts unread requests: use another policy")


def _evicts(quota: Any) -> bool:
    return (
        isinstance(quota, Mapping)
        and quota.get("policy") == "consumer_backlog_eviction"
        and (quota.get("limitSize", -1) > 0 or quota.get("limitTime", -1) > 0)
    )


def _remedy(settings: Settings) -> str:
    return (
        "have the tenant's administrator send the first request, or create the namespace, the partitioned topic "
        f"({settings.lane_partitions} partitions) and on each partition the subscription {settings.subscription} at "
        "the earliest message"
    )
