"""Creates missing deletion topics and checks existing ones, whose policies it never changes silently.

The first sender to a lane creates it, but only in an existing tenant (with topics.lanes = "namespace", in an existing
namespace): what an administrator deleted is not created again.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any

from streaming.config.settings import Settings
from streaming.errors import BusyError, ConfigError, RefusedError, StopRequestedError, UnavailableError
from streaming.ports import TopicAdmin
from udfs.paths import namespace_of
from udfs.requests.lanes import Lanes
from udfs.requests.retry import LEAST_MESSAGE_BYTES

log = logging.getLogger("ledger-reaper")

PATIENCE_SECONDS = 90  # brokers detect a vanished client within 30 to 60 s (keepAliveIntervalSeconds)
_POLL_SECONDS = 0.2
MOST_PARTITIONS = 64  # of a lane, and of another topic that is not listed: a tenant chose how many it has


def ensure_topics(admin: TopicAdmin, settings: Settings, stop: Event | None = None) -> tuple[int, int]:
    """Create or check all topics, and return the numbers of partitions of RETRY and of the DLQ.

    Raises ConfigError with all faults, and StopRequestedError if stop is set while it waits for a subscription.
    """
    topics = settings.topics
    watch = (topics.watch,) if settings.watch.enabled else ()
    partitions = _ensure_all(
        admin, settings, (*topics.requests, topics.retry, topics.dead_letter, *watch), stop or Event()
    )
    return partitions[topics.retry], partitions[topics.dead_letter]


def ensure_topic(admin: TopicAdmin, settings: Settings, topic: str) -> None:
    """Create or check a single topic. Raises ConfigError with all its faults."""
    _ensure_all(admin, settings, (topic,), Event())


def ensure_request_topic(admin: TopicAdmin, settings: Settings, topic: str) -> None:
    """Create or check the request topic to which a caller sends, with the caller's rights.

    A role that may only produce can neither create nor check topics. It may send if every partition has the service's
    subscription. Raises ConfigError, UnavailableError, and RefusedError if the topic or its subscription is missing.
    """
    is_lane = settings.topics.is_lane(topic)
    try:
        (_ensure_lane if is_lane else ensure_topic)(admin, settings, topic)
    except RefusedError as refusal:
        partitions = admin.partitions(topic)
        if partitions is None and is_lane:
            raise RefusedError(
                f"{topic} can't be created ({refusal}). Let an administrator of the tenant send its first request; if "
                "the tenant or namespace was deleted, topics.shared_without_lane = true lets requests use the shared "
                "topic"
            ) from refusal
        if partitions is None:
            raise RefusedError(
                f"{topic} does not exist, and this role may not create it; have its tenant's administrator create it, "
                f"or the operator list it in topics.requests ({refusal})"
            ) from refusal
        # with the service's subscription, no message is trimmed that the service has not read
        faults = _unsendable(admin, settings, topic, partitions)
        if faults:
            raise RefusedError("; ".join(faults)) from refusal


def require_sendable(admin: TopicAdmin, settings: Settings, topic: str) -> None:
    """Raise UnavailableError if a request that was sent to the topic before this call may be lost."""
    partitions = admin.partitions(topic)
    faults = ["it was deleted"] if partitions is None else _unsendable(admin, settings, topic, partitions)
    if faults:
        raise UnavailableError(f"requests to {topic} may be lost ({'; '.join(faults)}): send them again")


def _ensure_lane(admin: TopicAdmin, settings: Settings, lane: str) -> None:
    """Create a lane or check it, whatever other senders do at the same time or left unfinished.

    Raises what ensure_request_topic raises.
    """
    if admin.partitions(lane) is None:
        _create_lane(admin, settings, lane)
    # Before the policies and before the first message: brokers trim messages that no subscription keeps. While another
    # sender creates the subscription, brokers answer that it is busy.
    _soon(settings, lambda: _subscribes(admin, settings, lane))
    faults = subscribe_to(admin, settings, lane)
    is_usable = 0 < (admin.partitions(lane) or 0) <= MOST_PARTITIONS
    if is_usable and not _has_policies(admin, settings, lane) and _is_empty(admin, lane):
        # Nothing was sent yet, so this call or a killed sender has just created it. If several senders set policies at
        # the same time, a broker may keep only some of them: each sender repeats this until it reads all of them.
        _soon(settings, lambda: _policies_stay(admin, settings, lane))
        faults = subscribe_to(admin, settings, lane)
    if faults:
        raise ConfigError("; ".join(faults))


def _has_policies(admin: TopicAdmin, settings: Settings, lane: str) -> bool:
    quotas = admin.backlog_quota(lane).values()
    return (
        admin.retention(lane) == (settings.topics.retention_minutes, -1)
        and not admin.message_ttl(lane)
        and bool(quotas)
        and not any(quota.get("policy") == "consumer_backlog_eviction" for quota in quotas)
    )


def _policies_stay(admin: TopicAdmin, settings: Settings, lane: str) -> bool:
    _set_policies(admin, settings, lane)
    time.sleep(_POLL_SECONDS)  # a broker shows a new policy later, and then a concurrent writer's, which replaces it
    return _has_policies(admin, settings, lane)


def _subscribes(admin: TopicAdmin, settings: Settings, topic: str) -> bool:
    try:
        subscribe_to(admin, settings, topic)
    except BusyError:
        return False
    return True


def _create_lane(admin: TopicAdmin, settings: Settings, lane: str) -> None:
    if settings.topics.lanes is Lanes.TENANT:
        admin.ensure_namespace(lane, with_tenant=False)
        # The namespace is for the lane alone. Without this, a broker would create a topic for a producer that connects
        # after the lane was deleted, and the service would not read it.
        _soon(settings, lambda: admin.forbid_topic_creation(namespace_of(lane)))
    partitions = settings.topics.lane_partitions
    if admin.create_partitioned_topic(lane, partitions):
        log.info("created %s with %s partitions, for the first request of its tenant", lane, partitions)
    elif not _soon(settings, lambda: admin.partitions(lane) is not None):  # another sender creates it now
        raise ConfigError(
            f"{lane} can't be created, because a topic has the name of one of its partitions: a broker created that "
            f"topic for a producer after the lane was deleted, and the service does not read it. Delete "
            f"{lane}-partition-0, or the partition that exists"
        )


def _unsendable(admin: TopicAdmin, settings: Settings, topic: str, partitions: int) -> list[str]:
    """Return why a message sent to the topic could be lost."""
    if partitions == 0:
        return [f"{topic} is not partitioned; this service writes to fixed partitions. Use another topic name."]
    subscription = settings.topics.subscription
    return [
        f"{partition} has no subscription {subscription}: `run` creates it; publish nothing before that"
        for partition in (f"{topic}-partition-{n}" for n in range(partitions))
        if not admin.internal_stats(partition).has_subscription(subscription)
    ]


def _ensure_all(admin: TopicAdmin, settings: Settings, topics: Sequence[str], stop: Event) -> dict[str, int]:
    faults: list[str] = []
    partitions: dict[str, int] = {}
    for topic in topics:
        admin.ensure_namespace(topic)
        partitions[topic] = _ensure(admin, settings, topic, faults, stop)
    if faults:
        raise ConfigError("the deletion topics can't be used as they are:\n  " + "\n  ".join(faults))
    return partitions


def _ensure(admin: TopicAdmin, settings: Settings, topic: str, faults: list[str], stop: Event) -> int:
    configured = settings.two_phase.ledger_deletion_parallelism
    partitions = admin.partitions(topic)
    if partitions is None:
        admin.create_partitioned_topic(topic, configured)
        # Before the first message can be published: the broker could trim messages that no subscription keeps.
        _subscribe(admin, settings, topic, stop)
        _set_policies(admin, settings, topic)
        log.info("created %s with %s partitions", topic, configured)
        faults += _deviations(admin, settings, topic)
        return configured
    if partitions == 0:
        faults.append(f"{topic} is not partitioned; this service writes to fixed partitions. Use another topic name.")
        return 0
    if partitions != configured:
        log.warning(
            "%s has %s partitions and two_phase.ledger_deletion_parallelism is %s; the topic stays as it is",
            topic,
            partitions,
            configured,
        )
    _subscribe(admin, settings, topic, stop)
    deviations = _deviations(admin, settings, topic)
    if deviations and _is_empty(admin, topic):
        # the topic is empty: a start created it and was killed before it set the policies
        _set_policies(admin, settings, topic)
        log.info("set the policies of %s, which is empty", topic)
        deviations = _deviations(admin, settings, topic)
    faults += deviations + _evictions(admin, topic)
    return partitions


def _is_empty(admin: TopicAdmin, topic: str) -> bool:
    return all(entry < 0 for _, entry in admin.last_positions(topic).values())


def _subscribe(admin: TopicAdmin, settings: Settings, topic: str, stop: Event) -> None:
    """Create the subscription. Raises BusyError if another client holds it for longer than PATIENCE_SECONDS."""
    give_up_s = time.monotonic() + PATIENCE_SECONDS  # the connection of a killed run may still hold it for a while
    is_logged = False
    while True:
        try:
            return admin.ensure_subscription(topic, settings.topics.subscription)
        except BusyError as error:
            if time.monotonic() > give_up_s:
                raise
            if not is_logged:
                log.info("waiting for at most %s s: %s", PATIENCE_SECONDS, error)
            is_logged = True
            if stop.wait(_POLL_SECONDS):
                raise StopRequestedError from error


def subscribe_to(admin: TopicAdmin, settings: Settings, topic: str) -> list[str]:
    """Create the subscription of a topic that is not listed, and return why the topic can't be read, if so."""
    partitions = admin.partitions(topic)
    if not partitions:
        return [f"{topic} is gone" if partitions is None else f"{topic} is not partitioned"]
    if partitions > MOST_PARTITIONS:
        return [
            f"{topic} has {partitions} partitions, and a topic that is not listed may have at most {MOST_PARTITIONS}: "
            "all other topics would wait while each partition is checked. List the topic in topics.requests, or "
            "recreate it with fewer partitions."
        ]
    admin.ensure_subscription(topic, settings.topics.subscription)
    return _deviations(admin, settings, topic) + _evictions(admin, topic)


def watch_topic(admin: TopicAdmin, settings: Settings) -> tuple[str, ...]:
    """Return topics.watch if it exists: a watcher creates it, whether it runs in the service or by itself.

    Raises what TopicAdmin raises.
    """
    try:
        return (settings.topics.watch,) if admin.partitions(settings.topics.watch) is not None else ()
    except RefusedError:
        if settings.watch.enabled:
            raise
        return ()  # without a watcher, the service needs no right to that topic


def _needs_deduplication(settings: Settings, topic: str) -> bool:
    return topic in settings.topics.deduplicated


def _set_policies(admin: TopicAdmin, settings: Settings, topic: str) -> None:
    admin.set_retention(topic, minutes=settings.topics.retention_minutes, megabytes=-1)
    admin.set_message_ttl(topic, seconds=0)
    if settings.topics.is_lane(topic):
        admin.set_backlog_quota_unlimited(topic)  # the tenant's namespace may have a quota that evicts
    if _needs_deduplication(settings, topic):
        admin.set_deduplication(topic, enabled=True)
        # a broker reads policies from a topic, and shows a new one later
        _soon(settings, lambda: admin.deduplication(topic))


def _deviations(admin: TopicAdmin, settings: Settings, topic: str) -> list[str]:
    """Return a message for each policy of an existing topic by which messages would be lost or duplicated."""
    faults = []
    if admin.message_ttl(topic):
        faults.append(f"{topic} has a message TTL: unread requests would expire. Remove the TTL.")
    if topic in (settings.topics.retry, settings.topics.dead_letter):
        most = admin.max_message_bytes(topic)
        if 0 < most < LEAST_MESSAGE_BYTES:
            faults.append(
                f"{topic} accepts messages of at most {most} bytes, and copies need {LEAST_MESSAGE_BYTES}: it would "
                "refuse every copy. Raise the topic's maxMessageSize, or remove it."
            )
    if _needs_deduplication(settings, topic):
        if not admin.deduplication(topic):
            faults.append(
                f"{topic} has no deduplication: messages of this service could be duplicated. Enable it "
                "(deduplicationEnabled)."
            )
        # the broker applies a policy that was just set, and loads a topic, with some delay
        elif not _soon(settings, lambda: admin.deduplicates(topic)):
            faults.append(
                f"{topic} is not deduplicated although its policy enables it: messages of this service could be "
                "duplicated. Check deduplicationStatus in the stats of its partitions, or use another topic."
            )
    return faults


def _soon(settings: Settings, holds: Callable[[], bool]) -> bool:
    """Wait at most pulsar.timeout_seconds until the condition holds; return False if it does not."""
    give_up_s = time.monotonic() + settings.pulsar.timeout_seconds
    while not holds():
        if time.monotonic() > give_up_s:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _evictions(admin: TopicAdmin, topic: str) -> list[str]:
    if _evicts(admin.backlog_quota(topic)):
        return [f"{topic} has a backlog quota that evicts: unread requests would be lost. Use another policy."]
    return []


def _evicts(quotas: Mapping[str, Any]) -> bool:
    """Whether a quota with a limit discards messages above it."""
    return any(
        quota.get("policy") == "consumer_backlog_eviction"
        and (int(quota.get("limitSize", -1)) > 0 or int(quota.get("limitTime", -1)) > 0)
        for quota in quotas.values()
    )


def faults_of(admin: TopicAdmin, settings: Settings, topic: str) -> list[str] | None:
    """Return the topic's faults, and change nothing. None if there is no such topic: the first start creates it."""
    partitions = admin.partitions(topic)
    if partitions is None:
        return None
    faults = _unsendable(admin, settings, topic, partitions)
    if partitions == 0:
        return faults
    return faults + _deviations(admin, settings, topic) + _evictions(admin, topic)
