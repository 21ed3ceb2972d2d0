"""Whether whoever sent a request may ask for that; the request itself is in order.

1. A topic of a tenant that is not trusted speaks for that tenant's owners only.
2. A copy in the retry topic speaks for the topic that its request first came to, as we wrote it there; a topic that is
   not one of ours speaks for nobody but itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from udfs.paths import base_topic, namespace_of, tenant_of, topic_of
from udfs.records import LedgerComponent, PendingDelete, Reason, Rejection
from udfs.retry import REAL_TOPIC
from udfs.topic_pattern import TopicPattern


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may ask for what. namespaces: tenants or `tenant/ns`; empty: all. components: empty: all."""

    request_topics: frozenset[str]
    trusted_tenants: frozenset[str]
    namespaces: frozenset[str] = frozenset()
    components: frozenset[LedgerComponent] = frozenset()
    requests_pattern: TopicPattern | None = None

    def is_request_topic(self, topic: str) -> bool:
        """Whether it is listed, or matches the pattern (whether or not there is such a topic now)."""
        return topic in self.request_topics or (
            self.requests_pattern is not None and self.requests_pattern.matches(topic)
        )


def first_topic(source: str, properties: Mapping[str, str | None], admission: Admission) -> str:
    """The topic a message first came to; source: full name of the topic (or partition) it was read from."""
    read_from = base_topic(source)
    if admission.is_request_topic(read_from):
        return read_from
    said = properties.get(REAL_TOPIC) or ""
    return said if admission.is_request_topic(said) else read_from


def admit(request: PendingDelete, requester: str, admission: Admission) -> PendingDelete | Rejection:
    """Return the request where the topic `requester` may ask for that."""
    topic = topic_of(request.managed_ledger)
    tenant = tenant_of(requester)
    if tenant not in admission.trusted_tenants and tenant != tenant_of(topic):
        return Rejection(Reason.OTHER_TENANT, f"{requester} may ask for ledgers of tenant {tenant} only")
    if admission.components and request.component not in admission.components:
        return Rejection(Reason.REQUESTER_NOT_ALLOWED, f"{request.component} is not in safety.allowed_components")
    if admission.namespaces and not {tenant_of(topic), namespace_of(topic)} & admission.namespaces:
        return Rejection(Reason.REQUESTER_NOT_ALLOWED, f"{namespace_of(topic)} is not in safety.allowed_namespaces")
    return request
