"""The pattern for request topics.

1. A pattern is `persistent://tenant/namespace/topic`. Each of the three parts is a regular expression that has to match
   that part of a topic's name as a whole. So the pattern itself limits the tenants and namespaces to search.
2. Retry-letter and dead-letter topics, topics of receipts, single partitions, and topics that Pulsar creates for itself
   never match.
3. A name that the connector would take for the name of another topic never matches: the connector splits a list of
   names at each comma, and strips blanks from both ends of a name. Otherwise, any user who may create topics could make
   us read a topic that is not ours.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from udfs.paths import base_topic

_SCHEME = "persistent://"
_PART = re.compile(
    r"(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^/\\\[])+"
)  # an escape, a character class, or anything but a slash
_SPECIAL = frozenset(".^$*+?{}[]\\|()")
PULSARS_TENANTS = frozenset({"pulsar", "sla-monitor"})
_PULSARS_TOPICS = re.compile(
    r"__change_events|__consumer_offsets|__transaction_.*|.*__transaction_pending_ack|transaction_coordinator_assign"
    r"|healthcheck|resource-usage|loadbalancer-.*"
)
RECEIPTS_SUFFIX = "-RECEIPT"  # of the topics to which the service publishes receipts (udfs.requests.lane_receipts)
_WRITTEN = ("-RETRY", "-DLQ", RECEIPTS_SUFFIX)


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Regular expressions for tenant, namespace and topic."""

    tenant: str
    namespace: str
    topic: str

    @property
    def only_tenant(self) -> str | None:
        """Return the single tenant that can match; None if several may."""
        return None if _SPECIAL & set(self.tenant) else self.tenant

    @property
    def only_namespace(self) -> str | None:
        """Return the single namespace (without its tenant) that can match; None if several may."""
        return None if _SPECIAL & set(self.namespace) else self.namespace

    def takes_tenant(self, tenant: str) -> bool:
        """Whether topics of this tenant can match."""
        return tenant not in PULSARS_TENANTS and re.fullmatch(self.tenant, tenant) is not None

    def takes_namespace(self, namespace: str) -> bool:
        """Whether topics of `tenant/ns` can match; V1 names (`tenant/cluster/ns`) never do."""
        tenant, _, name = namespace.partition("/")
        return "/" not in name and self.takes_tenant(tenant) and re.fullmatch(self.namespace, name) is not None

    def matches(self, topic: str) -> bool:
        """Whether a topic, by its full name `persistent://tenant/ns/name`, is a request topic. Never raises."""
        namespace, _, name = topic.removeprefix(_SCHEME).rpartition("/")
        return (
            topic.startswith(_SCHEME)
            and self.takes_namespace(namespace)
            and re.fullmatch(self.topic, name) is not None
            and not name.endswith(_WRITTEN)
            and not _PULSARS_TOPICS.fullmatch(name)
            and _is_whole(topic)
            and is_one_name(topic)
        )


def is_one_name(topic: str) -> bool:
    """Whether the connector takes this text for the name of exactly this topic."""
    return "," not in topic and topic == topic.strip() and topic.isprintable()


def _is_whole(topic: str) -> bool:
    try:
        return base_topic(topic) == topic
    except ValueError:
        return False


@lru_cache(maxsize=8)  # it is asked about each of thousands of topics
def parse_pattern(text: str) -> TopicPattern:
    """Parse a pattern. Raises ValueError with a message for the operator."""
    rest = text.removeprefix(_SCHEME)
    parts = _PART.findall(rest)
    if rest == text or len(parts) != 3 or "/".join(parts) != rest:
        raise ValueError(f"{text}: a pattern is {_SCHEME}tenant/namespace/topic, each a regular expression of its own")
    for part in parts:
        try:
            re.compile(part)
        except re.error as error:
            raise ValueError(f"{text}: {part} is not a regular expression: {error}") from error
    return TopicPattern(*parts)
