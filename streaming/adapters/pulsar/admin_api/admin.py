"""Implements TopicAdmin with Pulsar's admin API, with further calls for tests and the sandbox."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self

from streaming.adapters.pulsar.admin_api.broker import NO_PARTITION, AdminBroker
from streaming.adapters.pulsar.admin_api.retention import Retentions
from streaming.adapters.pulsar.http import Answer, Body, PulsarAdminSettings, PulsarHttp, subscription_path, topic_path
from streaming.adapters.pulsar.silence import Silence, silence
from streaming.errors import BusyError, RefusedError, UnavailableError
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Ensembles, InternalStats, Position, parse_ensembles, parse_internal_stats
from udfs.paths import namespace_of, tenant_of, topic_of

__all__ = ["AdminBroker", "PulsarAdmin", "PulsarAdminSettings"]

# errors of the broker while a cursor is being moved, and of the Java client while another consumer is connected
_BUSY = re.compile(
    r"412 Precondition Failed|PreconditionFailedException|Subscription ?Busy|ConsumerBusy"
    r"|Exclusive consumer is already connected|Failed to fence subscription"
)
_LAST_BYTES = 1024  # limit for the answer of lastMessageId, which contains a few numbers
_METADATA_STORES = ("metadataStoreUrl", "bookkeeperMetadataServiceUri")
_EARLIEST = {"ledgerId": -1, "entryId": -1}
_ADVICE: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: (
        "check the credentials in [pulsar], and the permissions of their role (docs/rights.md lists them)"
    ),
    HTTPStatus.FORBIDDEN: "give this service's role the permissions that docs/rights.md lists",
    HTTPStatus.NOT_FOUND: "check the name",
    HTTPStatus.METHOD_NOT_ALLOWED: "check that the brokers have topicLevelPoliciesEnabled and systemTopicEnabled",
}


class PulsarAdmin:
    """TopicAdmin over HTTP. Every method raises UnavailableError, RefusedError."""

    def __init__(self, settings: PulsarAdminSettings, silence: Silence = silence) -> None:
        """Create the client. silence: as of PulsarHttp."""
        self._http = PulsarHttp(settings, silence)
        self._retentions = Retentions(self._http)

    def check_health(self) -> None:
        """Succeed if a broker can publish and read."""
        self._done(self._http.get("v2/brokers/health"), "check the broker's health")

    def clusters(self) -> list[str]:
        """Return the names of the clusters that this cluster knows, including its own."""
        return [str(name) for name in self._get("v2/clusters", "list clusters")]

    def metadata_stores(self) -> dict[str, str]:
        """Return setting -> address of the metadata stores of the broker that answers, as far as they are set."""
        answer = self._done(self._http.get("v2/brokers/configuration/runtime"), "return a broker's configuration")
        if not isinstance(answer.body, dict):
            raise UnavailableError("a broker's configuration is in an unknown format")
        return {key: str(answer.body[key]) for key in _METADATA_STORES if answer.body.get(key)}

    def topics(self, namespace: str) -> list[str]:
        """Return the existing persistent topics of `tenant/ns`; partitions are listed individually."""
        # without includeSystemTopic, topics of pulsar/system are not listed
        answer = self._http.get(f"v2/persistent/{namespace}", includeSystemTopic="true")
        return [str(name) for name in self._done(answer, f"list topics of {namespace}").body or ()]

    def tenants(self) -> list[str]:
        """Return the names of all tenants."""
        return [str(name) for name in self._get("v2/tenants", "list tenants")]

    def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant as `tenant/ns`; [] if there is no such tenant."""
        return self._listed(f"v2/namespaces/{tenant}", f"list namespaces of {tenant}")

    def partitioned_topics(self, namespace: str) -> list[str]:
        """Return the full names of partitioned topics of `tenant/ns`; [] if there is no such namespace."""
        path = f"v2/persistent/{namespace}/partitioned"
        return self._listed(path, f"list partitioned topics of {namespace}", includeSystemTopic="true")

    def ensure_namespace(self, topic: str, *, with_tenant: bool = True) -> None:
        """Create the topic's namespace if it is missing, and its tenant, too, or refuse if the tenant is missing."""
        tenant, namespace = tenant_of(topic), namespace_of(topic)
        if self._http.get(f"v2/namespaces/{namespace}").ok:  # then the permission to create tenants is not needed
            return
        answer = self._http.ask("PUT", f"v2/namespaces/{namespace}")
        # only a superuser may read or create a tenant
        if answer.status == HTTPStatus.NOT_FOUND and with_tenant:
            body = {"allowedClusters": self.clusters(), "adminRoles": []}
            self._created(self._http.ask("PUT", f"v2/tenants/{tenant}", body=body), f"create tenant {tenant}")
            answer = self._http.ask("PUT", f"v2/namespaces/{namespace}")
        self._created(answer, f"create namespace {namespace}")

    def forbid_topic_creation(self, namespace: str) -> bool:
        """Let brokers create no topic of `tenant/ns` for a client that connects, unless a policy says otherwise.

        Returns False if the broker does not know the namespace, which may be new.
        """
        path = f"v2/namespaces/{namespace}/autoTopicCreation"
        answer = self._http.get(path)
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        if self._done(answer, f"read autoTopicCreation of {namespace}").body is None:
            answer = self._http.ask("POST", path, body={"allowAutoTopicCreation": False})
            self._done(answer, f"set autoTopicCreation of {namespace}")
        return True

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions; 0 if the topic is not partitioned, None if it does not exist."""
        answer = self._http.get(f"{topic_path(topic)}/partitions", checkAllowAutoCreation="false")
        if answer.status == HTTPStatus.NOT_FOUND and answer.reason in (
            f"Topic {topic_of(topic)} not found",
            "Namespace not found",
        ):
            return None
        body = self._done(answer, f"count the partitions of {topic}").body
        return _number(body, "partitions")

    def create_partitioned_topic(self, topic: str, partitions: int) -> bool:
        """Create a topic and its partitions; return False if it exists."""
        answer = self._http.ask("PUT", f"{topic_path(topic)}/partitions", body=partitions)
        return self._created(answer, f"create {topic}")

    def create_topic(self, topic: str) -> bool:
        """Create a topic that is not partitioned; return False if it exists."""
        return self._created(self._http.ask("PUT", topic_path(topic)), f"create {topic}")

    def delete_topic(self, topic: str, *, force: bool = False) -> bool:
        """Delete a topic with all its partitions; return False if it was gone.

        Args:
            force: delete the topic even if it has producers and consumers.
        """
        partitions = self.partitions(topic)
        if partitions is None:
            return False
        path = f"{topic_path(topic)}/partitions" if partitions else topic_path(topic)
        answer = self._http.ask("DELETE", path, params={"force": str(force).lower()})
        if answer.status == HTTPStatus.NOT_FOUND:  # an earlier attempt, or another client, deleted it
            return False
        self._done(answer, f"delete {topic}")
        return True

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        """Create the durable subscription on every partition, at the earliest message, unless it exists.

        Raises RefusedError if there is no such topic, which Pulsar would otherwise create without partitions; BusyError
        while the cursor is being moved.
        """
        for partition in self._partition_topics(topic):
            answer = self._http.ask("PUT", subscription_path(partition, subscription), body=_EARLIEST)
            if is_busy(f"{answer.status} {answer.reason}"):
                raise BusyError(f"subscription {subscription} on {partition}: {answer.status} {answer.reason}")
            self._created(answer, f"create subscription {subscription} on {partition}")

    def expire_messages(self, topic: str, subscription: str, *, older_than_seconds: int) -> None:
        """Move the subscription past all messages that are older than this; retention decides how long they stay."""
        for partition in self._partition_topics(topic):
            path = f"{subscription_path(partition, subscription)}/expireMessages/{older_than_seconds}"
            answer = self._http.ask("POST", path)
            if answer.status != HTTPStatus.CONFLICT:  # 409: an expiry is running
                self._done(answer, f"expire messages of {partition}")

    def last_positions(self, topic: str) -> dict[str, Position]:
        """Return partition (full name) -> position of its newest message, consumed or not."""
        # brokers have a call for this position, but do not answer it if the newest entry's metadata is invalid
        return {partition: self.internal_stats(partition).last for partition in self._partition_topics(topic)}

    def position_at(self, partition: str, publish_ms: int) -> Position:
        """Return the position, or an earlier one, of a partition's first message published at publish_ms or later."""
        body = self._get(f"{topic_path(partition)}/messageid/{publish_ms}", f"find a message id of {partition} by time")
        return (_number(body, "ledgerId"), _number(body, "entryId"))

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Return the stats of a topic, summed over its partitions if it is partitioned."""
        kind = "partitioned-stats" if self._partitions_or_refuse(topic) else "stats"
        body: Mapping[str, Any] = self._get(f"{topic_path(topic)}/{kind}", f"read the stats of {topic}")
        return body

    def backlog(self, topic: str, subscription: str) -> int:
        """Return how many messages are not acknowledged; 0 if there is no such topic or subscription."""
        if self.partitions(topic) is None:
            return 0
        subscriptions = self.stats(topic).get("subscriptions", {})
        return int(subscriptions.get(subscription, {}).get("msgBacklog", 0))

    def internal_stats(self, topic: str) -> InternalStats:
        """Return the internalStats of a partition or unpartitioned topic.

        Raises RefusedError, and UnavailableError also for an unknown format.
        """
        body = self._get(f"{topic_path(topic)}/internalStats", f"read internalStats of {topic}")
        try:
            return parse_internal_stats(body)
        except FormatError as error:
            raise UnavailableError(f"{topic}: {error}") from error

    def ensembles(self, topic: str) -> Mapping[int, Ensembles]:
        """Return ledger -> ensembles; without those that the broker does not report. It reads each ledger's metadata.

        Raises UnavailableError, RefusedError.
        """
        path = f"{topic_path(topic)}/internalStats?metadata=true"
        return parse_ensembles(self._get(path, f"read the metadata of the ledgers of {topic}"))

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        """Return the broker's answer for an entry, truncated to most_bytes; None if no answer comes in time.

        The broker decompresses the entry into memory of the size that the sender stated. Raises UnavailableError.
        """
        path = f"{topic_path(partition)}/ledger/{position[0]}/entry/{position[1]}"
        return self._http.body(path, most_bytes=most_bytes, patience_seconds=patience_seconds)

    def reports_last_message(self, partition: str, patience_seconds: float) -> bool:
        """Whether the broker reports the partition's last message in time; the connector makes the same call.

        A broker that can't read the newest entry's metadata does not answer. Raises UnavailableError.
        """
        path = f"{topic_path(partition)}/lastMessageId"
        answer = self._http.body(path, most_bytes=_LAST_BYTES, patience_seconds=patience_seconds)
        return answer is not None and answer.status == HTTPStatus.OK

    def trim(self, topic: str) -> None:
        """Ask the broker to drop ledgers that are consumed and past retention; it does so later."""
        for partition in self._partition_topics(topic):
            self._done(self._http.ask("POST", f"{topic_path(partition)}/trim"), f"trim {partition}")

    def unload(self, topic: str) -> bool:
        """Unload the topic from its broker; the next use loads it again. Return False if it was not loaded."""
        answer = self._http.ask("PUT", f"{topic_path(topic)}/unload")
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        self._done(answer, f"unload {topic}")
        return True

    def offload(self, topic: str, up_to: Position) -> None:
        """Start moving the closed ledgers before this position of a partition to tiered storage."""
        body = {"ledgerId": up_to[0], "entryId": up_to[1], "partitionIndex": -1}
        answer = self._http.ask("PUT", f"{topic_path(topic)}/offload", body=body)
        if answer.status != HTTPStatus.CONFLICT:  # 409: an offload is running
            self._done(answer, f"offload {topic}")

    def retention(self, topic: str) -> tuple[int, int]:
        """Return the retention in force as (minutes, megabytes); -1: no limit."""
        retention = self._retentions.of(topic)
        return retention.minutes, retention.megabytes

    def set_retention(self, topic: str, *, minutes: int, megabytes: int) -> None:
        """Set how long acknowledged messages are kept; -1: no limit."""
        body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        self._set_policy(topic, "retention", body=body)

    def set_compaction_threshold(self, topic: str, *, size_bytes: int) -> None:
        """Set the number of new bytes after which the broker compacts the topic."""
        self._set_policy(topic, "compactionThreshold", body=size_bytes)

    def message_ttl(self, topic: str) -> int:
        """Return the number of seconds after which unread messages expire; 0: never."""
        return int(self._policy(topic, "messageTTL") or 0)

    def max_message_bytes(self, topic: str) -> int:
        """Return the largest message that the topic's own policy allows; 0 if there is none or it can't be read."""
        answer = self._http.get(f"{topic_path(topic)}/maxMessageSize")
        return answer.body if answer.ok and isinstance(answer.body, int) else 0

    def set_max_message_bytes(self, topic: str, most_bytes: int) -> None:
        """Set the largest message that the topic accepts."""
        self._set_policy(topic, "maxMessageSize", body=most_bytes)

    def set_message_ttl(self, topic: str, *, seconds: int) -> None:
        """Set the number of seconds after which unread messages expire; 0: never."""
        self._set_policy(topic, "messageTTL", params={"messageTTL": str(seconds)})

    def deduplication(self, topic: str) -> bool:
        """Whether the policy in force demands that the broker drops messages whose sequence id is not new."""
        return self._policy(topic, "deduplicationEnabled") is True

    def deduplicates(self, topic: str) -> bool:
        """Whether all partitions deduplicate now; the policy that demands this may have no effect."""

        def status(partition: str) -> object:
            stats = self._get(f"{topic_path(partition)}/stats", f"read the stats of {partition}")
            return stats.get("deduplicationStatus")

        return all(status(partition) == "Enabled" for partition in self._partition_topics(topic))

    def set_deduplication(self, topic: str, *, enabled: bool) -> None:
        """Set whether the broker drops messages whose sequence id is not new."""
        self._set_policy(topic, "deduplicationEnabled", body=enabled)

    def backlog_quota(self, topic: str) -> Mapping[str, Any]:
        """Return the backlog quotas by type (destination_storage, message_age): the topic's, else the namespace's.

        A quota has the keys limitSize, limitTime (-1: no limit) and policy. Defaults of the brokers are not included.
        """
        # We do not request the "applied" policy: for that, a 4.0.8 broker that has not read the namespace's policies
        # recently waits 30 s for itself.
        policies = self._get(f"v2/namespaces/{namespace_of(topic)}", f"read the policies of {namespace_of(topic)}")
        own = self._get(f"{topic_path(topic)}/backlogQuotaMap", f"read backlogQuotaMap of {topic}")
        return {**(policies.get("backlog_quota_map") or {}), **own}

    def set_backlog_quota_unlimited(self, topic: str) -> None:
        """Set quotas with which brokers drop no unread messages and refuse no new messages, whatever the backlog is."""
        body = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
        for kind in ("destination_storage", "message_age"):
            self._set_policy(topic, "backlogQuota", body=body, params={"backlogQuotaType": kind})

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return itself; `with` closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def _partition_topics(self, topic: str) -> list[str]:
        partitions = self._partitions_or_refuse(topic)
        full = topic_of(topic)
        return [f"{full}-partition-{index}" for index in range(partitions)] or [full]

    def _partitions_or_refuse(self, topic: str) -> int:
        partitions = self.partitions(topic)
        if partitions is None:
            raise RefusedError(f"there is no topic {topic}: check the name")
        return partitions

    def _listed(self, path: str, what: str, **params: str) -> list[str]:
        answer = self._http.get(path, **params)
        if answer.status == HTTPStatus.NOT_FOUND:
            return []
        return [str(name) for name in self._done(answer, what).body or ()]

    def _policy(self, topic: str, name: str) -> Any:
        what = f"read {name} of {topic}"
        return self._done(self._http.get(f"{topic_path(topic)}/{name}", applied="true"), what).body

    def _set_policy(self, topic: str, name: str, *, body: Any = None, params: Mapping[str, str] | None = None) -> None:
        answer = self._http.ask("POST", f"{topic_path(topic)}/{name}", params=params, body=body)
        self._done(answer, f"set {name} of {topic}")

    def _get(self, path: str, what: str) -> Any:
        answer = self._http.get(path)
        if answer.status == HTTPStatus.NOT_FOUND and answer.reason == NO_PARTITION:  # the topic exists, and may be new
            raise UnavailableError(f"can't {what}: a broker has not created the topic's partitions yet; try again soon")
        body = self._done(answer, what).body
        if body is None:
            raise UnavailableError(f"can't {what}: the answer is not JSON. Does pulsar.admin_url name a broker?")
        return body

    def _created(self, answer: Answer, what: str) -> bool:
        if answer.status == HTTPStatus.CONFLICT:
            return False
        self._done(answer, what)
        return True

    def _done(self, answer: Answer, what: str) -> Answer:
        if not answer.ok:
            advice = _ADVICE.get(answer.status, "see the broker's log")
            raise RefusedError(f"Pulsar did not {what}: {answer.status} {answer.reason}; {advice}")
        return answer


def is_busy(text: str) -> bool:
    """Whether a message of Pulsar or its client reports that another client uses or moves the subscription.

    Spark passes such messages on as text. Pulsar also answers 412 if a position can't be found.
    """
    return _BUSY.search(text) is not None


def _number(body: Any, name: str) -> int:
    try:
        return int(body[name])
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"the broker's answer has no number {name!r}: {body!r}") from error
