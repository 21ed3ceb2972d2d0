"""Decides whether a request's topic may name the request's owner.

1. A topic of a tenant that is not trusted may request ledgers of that tenant only, and a namespace's lane those of that
   namespace only.
2. A copy in the retry topic has the rights of the request topic to which its request was first published. We wrote that
   topic's name into the copy; if the name is no request topic of ours, the copy has the rights of the topic that it was
   read from.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from udfs.paths import base_topic, namespace_of, tenant_of, topic_of
from udfs.records import ONLY_IF_NAMED, LedgerComponent, PendingDelete, Reason, Rejection
from udfs.requests.lanes import Lanes, may_name
from udfs.requests.retry import REAL_TOPIC
from udfs.requests.topic_pattern import TopicPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The configured rights of request topics."""

    request_topics: frozenset[str]
    trusted_tenants: frozenset[str]
    namespaces: frozenset[str] = frozenset()  # tenants or `tenant/ns`; empty: all
    components: frozenset[LedgerComponent] = frozenset()  # empty: all but those of ONLY_IF_NAMED
    requests_pattern: TopicPattern | None = None
    lanes: Lanes = Lanes.ONE

    def is_request_topic(self, topic: str) -> bool:
        """Whether the topic is listed, is a lane, or the pattern matches its name (the topic need not exist now)."""
        return (
            topic in self.request_topics
            or self.is_lane(topic)
            or (self.requests_pattern is not None and self.requests_pattern.matches(topic))
        )

    def is_lane(self, topic: str) -> bool:
        """Whether the topic is the lane of a tenant that is not trusted, or of one of its namespaces.

        A listed topic is no lane: its rights do not depend on topics.lanes.
        """
        is_listed = topic in self.request_topics
        return self.lanes.has(topic) and tenant_of(topic) not in self.trusted_tenants and not is_listed


def first_topic(source: str, properties: Mapping[str, str | None], admission: Admission) -> str:
    """Return the topic to which a message was first published.

    source: full name of the topic (or partition) that the message was read from.
    """
    read_from = base_topic(source)
    if admission.is_request_topic(read_from):
        return read_from
    original = properties.get(REAL_TOPIC) or ""
    return original if admission.is_request_topic(original) else read_from


def admit(request: PendingDelete, requester: str, admission: Admission) -> PendingDelete | Rejection:
    """Return the request, or a Rejection if the topic `requester` has no right to it."""
    topic = topic_of(request.managed_ledger)
    tenant = tenant_of(requester)
    if tenant not in admission.trusted_tenants and tenant != tenant_of(topic):
        return Rejection(Reason.OTHER_TENANT, f"{requester} may request ledgers of tenant {tenant} only")
    if admission.is_lane(requester) and not may_name(admission.lanes, requester, topic):
        return Rejection(Reason.OTHER_TENANT, f"{requester} may request ledgers of its own namespace only")
    if admission.components and request.component not in admission.components:
        return Rejection(Reason.REQUESTER_NOT_ALLOWED, f"{request.component} is not in safety.allowed_components")
    if request.component in ONLY_IF_NAMED and request.component not in admission.components:
        detail = f"{request.component} is processed only if safety.allowed_components names it, beside all others"
        return Rejection(Reason.REQUESTER_NOT_ALLOWED, detail)
    if admission.namespaces and not {tenant_of(topic), namespace_of(topic)} & admission.namespaces:
        return Rejection(Reason.REQUESTER_NOT_ALLOWED, f"{namespace_of(topic)} is not in safety.allowed_namespaces")
    return request
