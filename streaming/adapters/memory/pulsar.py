"""Pulsar's topics in memory: TopicAdmin and MessageReader over the same partitions, with the behaviour of brokers.

1. Callers may name a topic in any form that topic_of reads; cursors have the names that brokers give them, URL-encoded.
2. A partition starts with an empty ledger. The position of its newest message is (that ledger, -1) until there is a
   message.
3. In pulsar/system a deduplication policy is stored, but has no effect.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streaming.adapters.memory.faults import Faults
from streaming.clock import Clock, ManualClock
from streaming.errors import BusyError, RefusedError, UnavailableError
from streaming.ports import StoredMessage
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.paths import base_topic, encode_name, namespace_of, tenant_of, topic_of

_SYSTEM = "pulsar/system"
_QUOTA_TYPES = ("destination_storage", "message_age")


@dataclass(slots=True)
class MemoryPartition:
    """A partition's ledgers, cursors and messages."""

    ledgers: dict[int, int]  # id -> number of entries, in order
    cursors: dict[str, Position] = field(default_factory=dict)  # encoded name -> position
    messages: list[StoredMessage] = field(default_factory=list)
    pending_adds: int = 0

    @property
    def last(self) -> Position:
        """The position of the newest message."""
        filled = [ledger for ledger, entries in self.ledgers.items() if entries]
        return (filled[-1], self.ledgers[filled[-1]] - 1) if filled else (max(self.ledgers, default=-1), -1)

    def subscribe(self, cursor: str) -> None:
        """Create a cursor before the first message, unless it exists."""
        self.cursors.setdefault(cursor, (min(self.ledgers, default=-1), -1))


@dataclass(slots=True)
class MemoryTopic:
    """A topic with its partitions."""

    count: int  # of partitions; 0: not partitioned
    partitions: dict[str, MemoryPartition]  # by full name
    policies: dict[str, Any] = field(default_factory=dict)  # by their names in the admin API


class MemoryPulsar:
    """A Pulsar cluster."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.topics: dict[str, MemoryTopic] = {}
        self.known_namespaces: set[str] = {_SYSTEM, "public/default"}
        self.closed_namespaces: set[str] = set()  # brokers create no topics there
        self.stores = {"metadataStoreUrl": "zk:127.0.0.1:2181"}  # metadata_stores() returns them
        self.held: set[str] = set()  # subscriptions that another client moves: ensure_subscription raises BusyError
        # hooks get the name of the call (for a policy: `retention` or `set retention`), and the topic or namespace
        self.faults = Faults()
        self._clock = clock or ManualClock()
        self._newest_ledger = 0

    def partition(self, name: str) -> MemoryPartition:
        """Return a partition by its full name, for tests to fill and to inspect. Raises RefusedError."""
        full = topic_of(name)
        topic = self.topics.get(base_topic(full)) or self.topics.get(full)
        if topic is None or full not in topic.partitions:
            raise RefusedError(f"there is no topic {name}: check the name")
        return topic.partitions[full]

    def store(self, partition: str, *ledgers: tuple[int, int]) -> None:
        """Replace a partition's ledgers by these (id, entries); create the topic with one partition if necessary."""
        if self._partitions(base_topic(partition)) is None:
            self.known_namespaces.add(namespace_of(partition))
            self.create_partitioned_topic(base_topic(partition), 1)
        self.partition(partition).ledgers = dict(ledgers)

    def publish(
        self, partition: str, payload: bytes = b"", properties: Mapping[str, str] | None = None, *, key: str = ""
    ) -> StoredMessage:
        """Append a message to the newest ledger and return it."""
        stored = self.partition(partition)
        ledger = max(stored.ledgers)
        at_ms, about = self._clock.now_ms(), dict(properties or {})
        message = StoredMessage(
            partition=topic_of(partition),
            ledger_id=ledger,
            entry_id=stored.ledgers[ledger],
            batch_index=-1,
            publish_ms=at_ms,
            key=key,
            payload=payload,
            properties=about,
        )
        stored.ledgers[ledger] += 1
        stored.messages.append(message)
        return message

    def check_health(self) -> None:
        """Succeed if a broker can publish and read."""
        self._step("check_health")

    def clusters(self) -> list[str]:
        """Return the names of the clusters that this cluster knows."""
        self._step("clusters")
        return ["standalone"]

    def metadata_stores(self) -> dict[str, str]:
        """Return the addresses of the brokers' metadata stores."""
        self._step("metadata_stores")
        return dict(self.stores)

    def tenants(self) -> list[str]:
        """Return the names of all tenants."""
        self._step("tenants")
        return sorted({namespace.partition("/")[0] for namespace in self.known_namespaces})

    def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant."""
        self._step("namespaces", tenant)
        return sorted(namespace for namespace in self.known_namespaces if namespace.startswith(f"{tenant}/"))

    def partitioned_topics(self, namespace: str) -> list[str]:
        """Return the full names of a namespace's partitioned topics."""
        self._step("partitioned_topics", namespace)
        return sorted(
            name for name, topic in self.topics.items() if topic.count and name.startswith(f"persistent://{namespace}/")
        )

    def ensure_namespace(self, topic: str, *, with_tenant: bool = True) -> None:
        """Create the topic's namespace if it is missing, and its tenant, too, or refuse if the tenant is missing."""
        self._step("ensure_namespace", topic)
        if not with_tenant and tenant_of(topic) not in {each.partition("/")[0] for each in self.known_namespaces}:
            raise RefusedError(f"can't create namespace {namespace_of(topic)}: Tenant does not exist")
        self.faults.effect(lambda: self.known_namespaces.add(namespace_of(topic)))

    def forbid_topic_creation(self, namespace: str) -> bool:
        """Let brokers create no topic of the namespace for a client that connects; False: it does not exist."""
        self._step("forbid_topic_creation", namespace)
        if namespace not in self.known_namespaces:
            return False
        self.faults.effect(lambda: self.closed_namespaces.add(namespace))
        return True

    def connect(self, topic: str) -> None:
        """Do what a broker does for a client that connects to a topic: create it, not partitioned, if it is missing."""
        if self._partitions(topic) is None:
            if namespace_of(topic) in self.closed_namespaces:
                raise UnavailableError(f"no producer on {topic}: TopicNotFound")
            self.create_topic(topic)

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions; 0 if the topic is not partitioned, None if it does not exist."""
        self._step("partitions", topic)
        return self._partitions(topic)

    def create_partitioned_topic(self, topic: str, partitions: int) -> bool:
        """Create a topic and its partitions; return False if it exists."""
        return self._create("create_partitioned_topic", topic, partitions)

    def create_topic(self, topic: str) -> bool:
        """Create a topic that is not partitioned; return False if it exists."""
        return self._create("create_topic", topic, 0)

    def delete_topic(self, topic: str, *, force: bool = False) -> bool:
        """Delete a topic with all its partitions; return False if it was gone.

        Args:
            force: delete the topic even if it has subscriptions.
        """
        self._step("delete_topic", topic)
        deleted = self.topics.get(topic_of(topic))
        if deleted is not None and not force and any(partition.cursors for partition in deleted.partitions.values()):
            raise RefusedError(f"{topic} has subscriptions")
        self.faults.effect(lambda: self.topics.pop(topic_of(topic), None))
        return deleted is not None

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        """Create the subscription on every partition, at the earliest message. Raises RefusedError, BusyError."""
        self._step("ensure_subscription", topic)
        if subscription in self.held:
            raise BusyError(f"subscription {subscription} on {topic} is held")
        for partition in self._partitions_of(topic).values():
            self.faults.effect(partial(partition.subscribe, encode_name(subscription)))

    def expire_messages(self, topic: str, subscription: str, *, older_than_seconds: int) -> None:
        """Move the subscription after the last message that is older than that."""
        self._step("expire_messages", topic)
        before_ms = self._clock.now_ms() - older_than_seconds * 1000
        for partition in self._partitions_of(topic).values():
            old = [(old.ledger_id, old.entry_id) for old in partition.messages if old.publish_ms < before_ms]
            cursor = encode_name(subscription)
            partition.cursors[cursor] = max([partition.cursors[cursor], *old])

    def last_positions(self, topic: str) -> dict[str, Position]:
        """Return partition -> position of its newest message."""
        self._step("last_positions", topic)
        return {name: partition.last for name, partition in self._partitions_of(topic).items()}

    def reports_last_message(self, partition: str, patience_seconds: float) -> bool:
        """Whether the broker reports the partition's last message."""
        self._step("reports_last_message", partition)
        return patience_seconds > 0

    def position_at(self, partition: str, publish_ms: int) -> Position:
        """Return the position of the first message published at publish_ms or later, or else of the newest message."""
        self._step("position_at", partition)
        stored = self.partition(partition)
        later = [message for message in stored.messages if message.publish_ms >= publish_ms]
        return (later[0].ledger_id, later[0].entry_id) if later else stored.last

    def internal_stats(self, topic: str) -> InternalStats:
        """Return the internalStats of a partition or unpartitioned topic."""
        self._step("internal_stats", topic)
        stored = self.partition(topic)
        return InternalStats(
            ledgers=tuple(stored.ledgers.items()), cursors=dict(stored.cursors), pending_adds=stored.pending_adds
        )

    def retention(self, topic: str) -> tuple[int, int]:
        """Return the retention in force as (minutes, megabytes); -1: no limit."""
        minutes, megabytes = self._policy(topic, "retention", (0, 0))
        return minutes, megabytes

    def set_retention(self, topic: str, *, minutes: int, megabytes: int) -> None:
        """Set how long acknowledged messages are kept."""
        self._set_policy(topic, "retention", (minutes, megabytes))

    def message_ttl(self, topic: str) -> int:
        """Return after how many seconds unread messages expire."""
        return int(self._policy(topic, "messageTTL", 0))

    def max_message_bytes(self, topic: str) -> int:
        """Return the largest message that the topic's own policy allows; 0: it has no such policy."""
        return int(self._policy(topic, "maxMessageSize", 0))

    def set_max_message_bytes(self, topic: str, most_bytes: int) -> None:
        """Set the largest message that the topic accepts."""
        self._set_policy(topic, "maxMessageSize", most_bytes)

    def set_message_ttl(self, topic: str, *, seconds: int) -> None:
        """Set after how many seconds unread messages expire."""
        self._set_policy(topic, "messageTTL", seconds)

    def deduplication(self, topic: str) -> bool:
        """Whether the policy demands that the broker drops messages whose sequence id is not new."""
        return self._policy(topic, "deduplicationEnabled", False) is True

    def deduplicates(self, topic: str) -> bool:
        """Whether the broker follows that policy."""
        return namespace_of(topic) != _SYSTEM and self.deduplication(topic)

    def set_deduplication(self, topic: str, *, enabled: bool) -> None:
        """Set whether the broker drops messages whose sequence id is not new."""
        self._set_policy(topic, "deduplicationEnabled", enabled)

    def backlog_quota(self, topic: str) -> Mapping[str, Any]:
        """Return the backlog quotas by type."""
        quotas: Mapping[str, Any] = self._policy(topic, "backlogQuotaMap", {})
        return quotas

    def set_backlog_quota_unlimited(self, topic: str) -> None:
        """Set that the broker neither drops unread messages nor refuses new messages."""
        unlimited = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}
        self._set_policy(topic, "backlogQuotaMap", dict.fromkeys(_QUOTA_TYPES, unlimited))

    def read(
        self, last: Mapping[str, Position], *, after: Mapping[str, Position] | None = None
    ) -> Iterator[StoredMessage]:
        """Read each partition in `last` after its position in `after`, up to and including its position in `last`."""
        for name, end in last.items():
            self._step("read", name)
            start = (after or {}).get(name, BEFORE_ALL)
            for message in self.partition(name).messages:
                if start < (message.ledger_id, message.entry_id) <= end:
                    yield message

    def read_entries(self, partition: str, spans: Sequence[EntrySpan]) -> Iterator[StoredMessage]:
        """Read only these entries of a partition."""
        self._step("read_entries", partition)
        for message in self.partition(partition).messages:
            if any(span.ledger == message.ledger_id and span.first <= message.entry_id <= span.last for span in spans):
                yield message

    def _step(self, operation: str, name: str = "") -> None:
        self.faults.step(operation, [name])

    def _partitions(self, topic: str) -> int | None:
        full = topic_of(topic)
        if full in self.topics:
            return self.topics[full].count
        parent = self.topics.get(base_topic(full))
        return 0 if parent is not None and full in parent.partitions else None

    def _partitions_of(self, topic: str) -> Mapping[str, MemoryPartition]:
        full = topic_of(topic)
        return self.topics[full].partitions if full in self.topics else {full: self.partition(full)}

    def _create(self, operation: str, topic: str, count: int) -> bool:
        self._step(operation, topic)
        full = topic_of(topic)
        if self._partitions(full) is not None or (count and any(base_topic(name) == full for name in self.topics)):
            return False  # brokers also refuse a topic if one of its partitions exists as a topic of its own
        if namespace_of(full) not in self.known_namespaces:
            raise RefusedError(f"can't create {topic}: its namespace does not exist")
        names = [f"{full}-partition-{index}" for index in range(count)] or [full]
        created = MemoryTopic(count, {name: MemoryPartition({self._next_ledger(): 0}) for name in names})
        self.faults.effect(lambda: self.topics.__setitem__(full, created))
        return True

    def _next_ledger(self) -> int:
        self._newest_ledger += 1
        return self._newest_ledger

    def _policy(self, topic: str, name: str, default: Any) -> Any:
        self._step(name, topic)
        return self._existing(topic).policies.get(name, default)

    def _set_policy(self, topic: str, name: str, value: Any) -> None:
        self._step(f"set {name}", topic)
        policies = self._existing(topic).policies
        self.faults.effect(lambda: policies.__setitem__(name, value))

    def _existing(self, topic: str) -> MemoryTopic:
        full = topic_of(topic)
        if full not in self.topics:
            raise RefusedError(f"there is no topic {topic}: check the name")
        return self.topics[full]
