"""Names the lane of an owner: the request topic of its tenant, or of its namespace, if each has its own.

1. A tenant's lane is `persistent://tenant/ledger-deletion/__ledger_deletion`, so that neither the namespaces of its
   applications nor their policies change. A namespace's lane is `persistent://tenant/ns/__ledger_deletion`.
2. Owners of trusted tenants and owners with V1 names have no lane: their requests use the shared topic.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from udfs.paths import is_v1, namespace_of, tenant_of
from udfs.requests.topic_pattern import is_one_name

LANE_NAMESPACE = "ledger-deletion"
LANE_NAME = "__ledger_deletion"
ALL_LANES = f"persistent://*/*/{LANE_NAME}"  # stands for the lanes of all tenants; no topic has this name
_SCHEME = "persistent://"


class Lanes(StrEnum):
    """The values of topics.lanes."""

    ONE = "one"  # all requests use the first of topics.requests
    TENANT = "tenant"
    NAMESPACE = "namespace"

    def of(self, owner: str) -> str | None:
        """Return the lane for requests that name a topic or managed ledger, whether the lane exists or not.

        None: they use the shared topic. Raises ValueError if `owner` is no such name.
        """
        tenant, namespace = tenant_of(owner), namespace_of(owner)
        if self is Lanes.ONE or is_v1(namespace):
            return None
        lane = f"{_SCHEME}{tenant}/{LANE_NAMESPACE}/{LANE_NAME}"
        if self is Lanes.NAMESPACE:
            lane = f"{_SCHEME}{namespace}/{LANE_NAME}"
        return lane if is_one_name(lane) else None

    def has(self, topic: str) -> bool:
        """Whether a topic, by its full name `persistent://tenant/ns/name`, is a lane. Never raises."""
        namespace, slash, _name = topic.removeprefix(_SCHEME).rpartition("/")
        try:
            return bool(slash) and self.of(f"{_SCHEME}{namespace}/any") == topic
        except ValueError:
            return False


def may_name(lanes: Lanes, lane: str, owner: str) -> bool:
    """Whether a request in a lane may name an owner (a topic or managed ledger) of the lane's tenant."""
    return lanes is not Lanes.NAMESPACE or not lanes.has(lane) or namespace_of(lane) == namespace_of(owner)


def fair_by_tenant(topics: Iterable[str]) -> list[str]:
    """Sort topics by name, each tenant's first before any tenant's second."""
    earlier: Counter[str] = Counter()
    ranked = []
    for topic in sorted(topics):
        tenant = tenant_of(topic)
        ranked.append((earlier[tenant], topic))
        earlier[tenant] += 1
    return [topic for _rank, topic in sorted(ranked)]
