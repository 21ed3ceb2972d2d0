"""The deletion topics: we make those that are missing, check the others, and never change one silently.

We make the subscription before anybody can publish: else the broker could trim messages that nobody has read.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

from streaming.config.settings import Settings
from streaming.errors import BusyError, ConfigError, RefusedError, StopRequestedError
from streaming.ports import TopicAdmin
from udfs.retry import LEAST_MESSAGE_BYTES

log = logging.getLogger("ledger-reaper")

PATIENCE_SECONDS = (
    90  # brokers notice within 30 to 60 s that a client is gone without a word (keepAliveIntervalSeconds)
)
_LOOK_SECONDS = 0.2
MOST_PARTITIONS = 64  # of a topic that only matches the pattern; its owner chose the number


def ensure_topics(admin: TopicAdmin, settings: Settings, stop: Event | None = None) -> tuple[int, int]:
    """Make or check all topics; returns the partitions of RETRY and of the DLQ. Raises ConfigError with all faults.

    Raises StopRequestedError where stop is set while a subscription is waited for.
    """
    topics = settings.topics
    watch = (topics.watch,) if settings.watch.enabled else ()
    partitions = _ensure_all(
        admin, settings, (*topics.requests, topics.retry, topics.dead_letter, *watch), stop or Event()
    )
    return partitions[topics.retry], partitions[topics.dead_letter]


def ensure_topic(admin: TopicAdmin, settings: Settings, topic: str) -> None:
    """Make or check one of them, for who uses no other. Raises ConfigError with all its faults."""
    _ensure_all(admin, settings, (topic,), Event())


def ensure_request_topic(admin: TopicAdmin, settings: Settings, topic: str) -> None:
    """Create the request topic that a caller sends to, or check it, with the rights that the caller has.

    A role that may only produce can create and check nothing. It may send where every partition has the service's
    subscription, for then no message is trimmed that the service has not read. Raises ConfigError, RefusedError where
    the topic is missing or its subscription is, UnavailableError.
    """
    try:
        ensure_topic(admin, settings, topic)
    except RefusedError as refusal:
        found = admin.partitions(topic)
        if found is None:
            raise RefusedError(
                f"{topic} does not exist, and this role may not create it; have its tenant's administrator create it, "
                f"or the operator list it in topics.requests ({refusal})"
            ) from refusal
        faults = _unsendable(admin, settings, topic, found)
        if faults:
            raise RefusedError("; ".join(faults)) from refusal


def _unsendable(admin: TopicAdmin, settings: Settings, topic: str, partitions: int) -> list[str]:
    """Return why a message sent to the topic could be lost."""
    if partitions == 0:
        return [f"{topic} is not partitioned; this service writes to fixed partitions. Use another topic name."]
    subscription = settings.topics.subscription
    return [
        f"{partition} has no subscription {subscription}: `run` creates it; publish nothing before"
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
    wanted = settings.two_phase.ledger_deletion_parallelism
    found = admin.partitions(topic)
    if found is None:
        admin.create_partitioned_topic(topic, wanted)
        _subscribe(admin, settings, topic, stop)
        _set_policies(admin, settings, topic)
        log.info("made %s with %s partitions", topic, wanted)
        faults += _deviations(admin, settings, topic)
        return wanted
    if found == 0:
        faults.append(f"{topic} is not partitioned; this service writes to fixed partitions. Use another topic name.")
        return 0
    if found != wanted:
        log.warning(
            "%s has %s partitions, two_phase.ledger_deletion_parallelism says %s; left as it is", topic, found, wanted
        )
    _subscribe(admin, settings, topic, stop)
    deviations = _deviations(admin, settings, topic)
    if deviations and all(entry < 0 for _, entry in admin.last_positions(topic).values()):
        # nobody has published yet: a start made the topic and was killed before it set the policies
        _set_policies(admin, settings, topic)
        log.info("set the policies of %s, which is empty", topic)
        deviations = _deviations(admin, settings, topic)
    faults += deviations + _evictions(admin, topic)
    return found


def _subscribe(admin: TopicAdmin, settings: Settings, topic: str, stop: Event) -> None:
    """Make the subscription. A run that was killed may still hold it for a while. Raises BusyError in the end."""
    give_up_s = time.monotonic() + PATIENCE_SECONDS
    is_told = False
    while True:
        try:
            return admin.ensure_subscription(topic, settings.topics.subscription)
        except BusyError as error:
            if time.monotonic() > give_up_s:
                raise
            if not is_told:
                log.info("waiting for it, %s s at most: %s", PATIENCE_SECONDS, error)
            is_told = True
            if stop.wait(_LOOK_SECONDS):
                raise StopRequestedError from error


def take_up(admin: TopicAdmin, settings: Settings, topic: str) -> list[str]:
    """Give an existing topic that matches the pattern its subscription; returns what keeps it from being read."""
    found = admin.partitions(topic)
    if not found:
        return [f"{topic} is gone" if found is None else f"{topic} is not partitioned"]
    if found > MOST_PARTITIONS:
        return [
            f"{topic} has {found} partitions, and a topic of the pattern may have {MOST_PARTITIONS}: all others would "
            "wait while each of them is looked at. List it in topics.requests, or ask for fewer."
        ]
    admin.ensure_subscription(topic, settings.topics.subscription)
    return _deviations(admin, settings, topic) + _evictions(admin, topic)


def _needs_deduplication(settings: Settings, topic: str) -> bool:
    return topic in settings.topics.deduplicated


def _set_policies(admin: TopicAdmin, settings: Settings, topic: str) -> None:
    admin.set_retention(topic, minutes=settings.topics.retention_minutes, megabytes=-1)
    admin.set_message_ttl(topic, seconds=0)
    if _needs_deduplication(settings, topic):
        admin.set_deduplication(topic, enabled=True)


def _deviations(admin: TopicAdmin, settings: Settings, topic: str) -> list[str]:
    """Policies of an existing topic with which messages would be lost or doubled."""
    faults = []
    if admin.message_ttl(topic):
        faults.append(f"{topic} has a message TTL: unread requests would expire. Remove the TTL.")
    if topic in (settings.topics.retry, settings.topics.dead_letter):
        most = admin.max_message_bytes(topic)
        if 0 < most < LEAST_MESSAGE_BYTES:
            faults.append(
                f"{topic} takes messages of {most} bytes at most, and copies need {LEAST_MESSAGE_BYTES}: no copy would "
                "get in. Raise the topic's maxMessageSize, or remove it."
            )
    if _needs_deduplication(settings, topic):
        if not admin.deduplication(topic):
            faults.append(
                f"{topic} has no deduplication: what we publish could be doubled. Enable it (deduplicationEnabled)."
            )
        elif not _deduplicates_soon(admin, settings, topic):
            faults.append(
                f"{topic} is not deduplicated, though its policy says so: what we publish could be doubled. "
                "Look at deduplicationStatus of its partitions' stats, or name another topic."
            )
    return faults


def _deduplicates_soon(admin: TopicAdmin, settings: Settings, topic: str) -> bool:
    """A policy that was just set, or a topic that was just loaded, takes a moment."""
    give_up_s = time.monotonic() + settings.pulsar.timeout_seconds
    while not admin.deduplicates(topic):
        if time.monotonic() > give_up_s:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _evictions(admin: TopicAdmin, topic: str) -> list[str]:
    if _evicts(admin.backlog_quota(topic)):
        return [f"{topic} has a backlog quota that evicts: unread requests would be lost. Use another policy."]
    return []


def _evicts(quotas: Mapping[str, Any]) -> bool:
    """Whether a quota that has a limit throws away what is over it."""
    return any(
        quota.get("policy") == "consumer_backlog_eviction"
        and (int(quota.get("limitSize", -1)) > 0 or int(quota.get("limitTime", -1)) > 0)
        for quota in quotas.values()
    )


def faults_of(admin: TopicAdmin, settings: Settings, topic: str) -> list[str] | None:
    """What is wrong with a topic; changes nothing. None where there is no such topic: the first start makes it."""
    found = admin.partitions(topic)
    if found is None:
        return None
    faults = _unsendable(admin, settings, topic, found)
    if found == 0:
        return faults
    return faults + _deviations(admin, settings, topic) + _evictions(admin, topic)
