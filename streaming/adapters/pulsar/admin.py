"""The port TopicAdmin over Pulsar's admin API, and what tests and the sandbox ask of it besides."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import quote

from streaming.adapters.pulsar.broker import NO_PARTITION, AdminBroker
from streaming.adapters.pulsar.http import Answer, Body, PulsarAdminSettings, PulsarHttp, topic_path
from streaming.adapters.pulsar.retention import Retentions
from streaming.errors import BusyError, RefusedError, UnavailableError
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import InternalStats, Position, parse_internal_stats
from udfs.paths import namespace_of, tenant_of, topic_of

__all__ = ["AdminBroker", "PulsarAdmin", "PulsarAdminSettings"]

# the broker's words for a cursor that is being moved, and the Java client's for a consumer that is still connected
_BUSY = re.compile(
    r"412 Precondition Failed|PreconditionFailedException|Subscription ?Busy|ConsumerBusy"
    r"|Exclusive consumer is already connected|Failed to fence subscription"
)
_LAST_BYTES = 1024  # of an answer that holds two numbers
_EARLIEST = {"ledgerId": -1, "entryId": -1}
_ADVICE: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "check pulsar.token_file, and the rights of its role (docs/operating.md lists them)",
    HTTPStatus.FORBIDDEN: "give this service's role the rights that docs/operating.md lists",
    HTTPStatus.NOT_FOUND: "check the name",
    HTTPStatus.METHOD_NOT_ALLOWED: "check that the brokers have topicLevelPoliciesEnabled and systemTopicEnabled",
}


class PulsarAdmin:
    """TopicAdmin over HTTP. Every method raises what the port says."""

    def __init__(self, settings: PulsarAdminSettings) -> None:
        self._http = PulsarHttp(settings)
        self._retentions = Retentions(self._http)

    def check_health(self) -> None:
        """Return when a broker can publish and read."""
        self._done(self._http.get("v2/brokers/health"), "check the broker's health")

    def clusters(self) -> list[str]:
        """Names of the clusters this one knows, itself included."""
        return [str(name) for name in self._get("v2/clusters", "list clusters")]

    def topics(self, namespace: str) -> list[str]:
        """Existing persistent topics of `tenant/ns`, partitions each for itself."""
        # includeSystemTopic: without it nothing in pulsar/system is listed
        answer = self._http.get(f"v2/persistent/{namespace}", includeSystemTopic="true")
        return [str(name) for name in self._done(answer, f"list topics of {namespace}").body or ()]

    def tenants(self) -> list[str]:
        """Names of all tenants."""
        return [str(name) for name in self._get("v2/tenants", "list tenants")]

    def namespaces(self, tenant: str) -> list[str]:
        """Namespaces of a tenant as `tenant/ns`; none where there is no such tenant."""
        return self._listed(f"v2/namespaces/{tenant}", f"list namespaces of {tenant}")

    def partitioned_topics(self, namespace: str) -> list[str]:
        """Partitioned topics of `tenant/ns` by their full names; none where there is no such namespace."""
        path = f"v2/persistent/{namespace}/partitioned"
        return self._listed(path, f"list partitioned topics of {namespace}", includeSystemTopic="true")

    def ensure_namespace(self, topic: str) -> None:
        """Make the topic's tenant and namespace where missing."""
        tenant, namespace = tenant_of(topic), namespace_of(topic)
        if self._http.get(f"v2/namespaces/{namespace}").ok:  # no right to make tenants is needed then
            return
        answer = self._http.ask("PUT", f"v2/namespaces/{namespace}")
        if answer.status == HTTPStatus.NOT_FOUND:  # only a superuser may create a tenant, or ask for it
            body = {"allowedClusters": self.clusters(), "adminRoles": []}
            self._made(self._http.ask("PUT", f"v2/tenants/{tenant}", body=body), f"create tenant {tenant}")
            answer = self._http.ask("PUT", f"v2/namespaces/{namespace}")
        self._made(answer, f"create namespace {namespace}")

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions, 0 for a topic that is not partitioned, None where there is no such topic."""
        answer = self._http.get(f"{topic_path(topic)}/partitions", checkAllowAutoCreation="false")
        if answer.status == HTTPStatus.NOT_FOUND and answer.reason in (
            f"Topic {topic_of(topic)} not found",
            "Namespace not found",
        ):
            return None
        body = self._done(answer, f"count the partitions of {topic}").body
        return _number(body, "partitions")

    def create_partitioned_topic(self, topic: str, partitions: int) -> bool:
        """Make the topic and its partitions; False if there is one of that name."""
        answer = self._http.ask("PUT", f"{topic_path(topic)}/partitions", body=partitions)
        return self._made(answer, f"make {topic}")

    def create_topic(self, topic: str) -> bool:
        """Make a topic that is not partitioned; False if there is one of that name."""
        return self._made(self._http.ask("PUT", topic_path(topic)), f"make {topic}")

    def delete_topic(self, topic: str, *, force: bool = False) -> bool:
        """Delete a topic with all its partitions; False if it was gone. force: with producers and consumers on it."""
        found = self.partitions(topic)
        if found is None:
            return False
        path = f"{topic_path(topic)}/partitions" if found else topic_path(topic)
        answer = self._http.ask("DELETE", path, params={"force": str(force).lower()})
        if answer.status == HTTPStatus.NOT_FOUND:  # an earlier try, or someone else, did it
            return False
        self._done(answer, f"delete {topic}")
        return True

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        """Make the durable subscription on every partition, at the earliest message; an existing one stays as it is.

        Raises RefusedError where there is no such topic: Pulsar itself would make one, without partitions. Raises
        BusyError while its cursor is being moved.
        """
        for partition in self._partition_topics(topic):
            path = f"{topic_path(partition)}/subscription/{quote(subscription, safe='')}"
            answer = self._http.ask("PUT", path, body=_EARLIEST)
            if is_busy(f"{answer.status} {answer.reason}"):
                raise BusyError(f"subscription {subscription} on {partition}: {answer.status} {answer.reason}")
            self._made(answer, f"make subscription {subscription} on {partition}")

    def expire_messages(self, topic: str, subscription: str, *, older_than_seconds: int) -> None:
        """Give up what the subscription has not read and is older than that; retention decides how long it stays."""
        for partition in self._partition_topics(topic):
            path = f"{topic_path(partition)}/subscription/{quote(subscription, safe='')}/expireMessages"
            answer = self._http.ask("POST", f"{path}/{older_than_seconds}")
            if answer.status != HTTPStatus.CONFLICT:  # 409: it does so already
                self._done(answer, f"expire messages of {partition}")

    def last_positions(self, topic: str) -> dict[str, Position]:
        """Partition (full name) -> position of its newest message, whether read or not.

        Brokers have a call for just that, and give no answer to it where the newest entry's metadata is no metadata.
        """
        return {partition: self.internal_stats(partition).last for partition in self._partition_topics(topic)}

    def position_at(self, partition: str, publish_ms: int) -> Position:
        """Position of the first message of a partition that was published then or later, or of one before that."""
        body = self._get(f"{topic_path(partition)}/messageid/{publish_ms}", f"find a message id of {partition} by time")
        return (_number(body, "ledgerId"), _number(body, "entryId"))

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Stats of the topic, summed over its partitions where it has some."""
        kind = "partitioned-stats" if self._partitions_or_refuse(topic) else "stats"
        body: Mapping[str, Any] = self._get(f"{topic_path(topic)}/{kind}", f"read the stats of {topic}")
        return body

    def backlog(self, topic: str, subscription: str) -> int:
        """Messages that the subscription has not acknowledged; 0 where there is no such topic or subscription."""
        if self.partitions(topic) is None:
            return 0
        subscriptions = self.stats(topic).get("subscriptions", {})
        return int(subscriptions.get(subscription, {}).get("msgBacklog", 0))

    def internal_stats(self, topic: str) -> InternalStats:
        """internalStats of one partition or unpartitioned topic. A form that is not known is an UnavailableError."""
        body = self._get(f"{topic_path(topic)}/internalStats", f"read internalStats of {topic}")
        try:
            return parse_internal_stats(body)
        except FormatError as error:
            raise UnavailableError(f"{topic}: {error}") from error

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        """Return what the broker shows of one entry, cut to so many bytes; None where it gives no answer in time.

        It decompresses the entry in its own memory, with the size that the sender wrote. Raises UnavailableError.
        """
        path = f"{topic_path(partition)}/ledger/{position[0]}/entry/{position[1]}"
        return self._http.body(path, most_bytes=most_bytes, patience_seconds=patience_seconds)

    def tells_last(self, partition: str, patience_seconds: float) -> bool:
        """Whether the broker says in time what the partition's last message is; the connector asks the same.

        Where nobody can read the newest entry's metadata, a broker gives no answer. Raises UnavailableError.
        """
        path = f"{topic_path(partition)}/lastMessageId"
        answer = self._http.body(path, most_bytes=_LAST_BYTES, patience_seconds=patience_seconds)
        return answer is not None and answer.status == HTTPStatus.OK

    def trim(self, topic: str) -> None:
        """Ask the broker to drop ledgers that are consumed and past retention; it does so in its own time."""
        for partition in self._partition_topics(topic):
            self._done(self._http.ask("POST", f"{topic_path(partition)}/trim"), f"trim {partition}")

    def unload(self, topic: str) -> bool:
        """Let the owner broker close the topic; it is loaded again when next used. False if it was not loaded."""
        answer = self._http.ask("PUT", f"{topic_path(topic)}/unload")
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        self._done(answer, f"unload {topic}")
        return True

    def offload(self, topic: str, up_to: Position) -> None:
        """Start moving the closed ledgers before this position of one partition to tiered storage."""
        body = {"ledgerId": up_to[0], "entryId": up_to[1], "partitionIndex": -1}
        answer = self._http.ask("PUT", f"{topic_path(topic)}/offload", body=body)
        if answer.status != HTTPStatus.CONFLICT:  # 409: it runs already
            self._done(answer, f"offload {topic}")

    def offload_status(self, topic: str) -> tuple[str, str]:
        """(NOT_RUN | RUNNING | SUCCESS | ERROR, last error) of one partition."""
        body = self._get(f"{topic_path(topic)}/offload", f"read the offload status of {topic}")
        return str(body.get("status")), str(body.get("lastError") or "")

    def retention(self, topic: str) -> tuple[int, int]:
        """(minutes, megabytes) in force; -1: without limit."""
        found = self._retentions.of(topic)
        return found.minutes, found.megabytes

    def set_retention(self, topic: str, *, minutes: int, megabytes: int) -> None:
        """Keep acknowledged messages for that long; -1: without limit."""
        body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        self._set_policy(topic, "retention", body=body)

    def set_compaction_threshold(self, topic: str, *, size_bytes: int) -> None:
        """Let the broker compact the topic once so many bytes lie behind the last compaction."""
        self._set_policy(topic, "compactionThreshold", body=size_bytes)

    def message_ttl(self, topic: str) -> int:
        """Seconds in force after which unread messages expire; 0: never."""
        return int(self._policy(topic, "messageTTL") or 0)

    def max_message_bytes(self, topic: str) -> int:
        """How many bytes the topic's own policy lets a message have; 0: it has none, or we may not ask."""
        answer = self._http.get(f"{topic_path(topic)}/maxMessageSize")
        return answer.body if answer.ok and isinstance(answer.body, int) else 0

    def set_max_message_bytes(self, topic: str, most_bytes: int) -> None:
        """Let the topic take no message of more bytes."""
        self._set_policy(topic, "maxMessageSize", body=most_bytes)

    def set_message_ttl(self, topic: str, *, seconds: int) -> None:
        """Let unread messages expire after that time; 0: never."""
        self._set_policy(topic, "messageTTL", params={"messageTTL": str(seconds)})

    def deduplication(self, topic: str) -> bool:
        """Whether the broker drops messages whose sequence id is not new, as is in force."""
        return self._policy(topic, "deduplicationEnabled") is True

    def deduplicates(self, topic: str) -> bool:
        """Whether all partitions really do so now; a policy alone does not make them."""
        return all(
            self._get(f"{topic_path(each)}/stats", f"read the stats of {each}").get("deduplicationStatus") == "Enabled"
            for each in self._partition_topics(topic)
        )

    def set_deduplication(self, topic: str, *, enabled: bool) -> None:
        """Let the broker drop messages whose sequence id is not new."""
        self._set_policy(topic, "deduplicationEnabled", body=enabled)

    def backlog_quota(self, topic: str) -> Mapping[str, Any]:
        """Quotas by type (destination_storage, message_age): limitSize, limitTime (-1: none), policy.

        The topic's, and the namespace's where it has none; not the brokers' defaults. Asking for what is "applied"
        makes a 4.0.8 broker wait for itself, 30 s long, where it has not read the namespace's policies lately.
        """
        policies = self._get(f"v2/namespaces/{namespace_of(topic)}", f"read the policies of {namespace_of(topic)}")
        own = self._get(f"{topic_path(topic)}/backlogQuotaMap", f"read backlogQuotaMap of {topic}")
        return {**(policies.get("backlog_quota_map") or {}), **own}

    def set_backlog_quota_unlimited(self, topic: str) -> None:
        """Never drop unread messages, nor refuse new ones, for the size or age of the backlog."""
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
        if answer.status == HTTPStatus.NOT_FOUND and answer.reason == NO_PARTITION:  # the topic is, and may be new
            raise UnavailableError(f"can't {what}: a broker has not made the topic's partitions yet; try again soon")
        body = self._done(answer, what).body
        if body is None:
            raise UnavailableError(f"can't {what}: the answer is no JSON. Is pulsar.admin_url that of a broker?")
        return body

    def _made(self, answer: Answer, what: str) -> bool:
        if answer.status == HTTPStatus.CONFLICT:
            return False
        self._done(answer, what)
        return True

    def _done(self, answer: Answer, what: str) -> Answer:
        if not answer.ok:
            advice = _ADVICE.get(answer.status, "see the broker's log")
            raise RefusedError(f"Pulsar would not {what}: {answer.status} {answer.reason}; {advice}")
        return answer


def is_busy(text: str) -> bool:
    """Whether Pulsar's words, or its client's, say that a subscription is held or moved by somebody at the moment.

    Spark passes them on as text. 412 is also what a position that can't be found is answered with.
    """
    return _BUSY.search(text) is not None


def _number(body: Any, name: str) -> int:
    try:
        return int(body[name])
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"the broker's answer has no number {name!r}: {body!r}") from error
