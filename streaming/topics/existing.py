"""Lists the lanes and the topics that match topics.requests_pattern, with a few bulk reads of ZooKeeper.

No broker is asked. Brokers would need a request for each tenant and namespace, and the right to list them.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from streaming.config.settings import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.ports import SweepStore, Unreadable, Znode
from streaming.topics.setup import MOST_PARTITIONS
from udfs.paths import managed_ledger_name, tenant_of, topic_of
from udfs.requests.lanes import LANE_NAME, LANE_NAMESPACE, Lanes

_ROOT = "/admin/partitioned-topics"
MOST_OF_TENANT = 10_000  # partitions; each has two consumers, on a broker and in our memory
_ATTEMPTS = 5  # our ZooKeeper server may not have a topic yet that a broker has just created
_PAUSE_S = 1.0

Listed = tuple[dict[str, int], dict[str, str]]
"""Topic -> number of partitions; and topic -> why it is not read."""


def existing_lanes(store: SweepStore, settings: Settings) -> Listed:
    """Return the lanes and matching topics that exist, and those of them that are not read.

    Raises UnavailableError if the list is incomplete.
    """
    lanes, refused = {}, {}
    count_by_tenant: Counter[str] = Counter()
    paths = dict.fromkeys((*_lanes(store, settings), *_matching(store, settings)))
    for path, node in _read(store, [*paths]):
        topic = _topic_of(path)
        if node is None or not settings.topics.is_read_in_passes(topic):
            continue
        partitions = _partitions(node.data)
        if partitions > MOST_PARTITIONS:
            refused[topic] = (
                f"it has {partitions} partitions, and a topic that is not listed in topics.requests may have at most "
                f"{MOST_PARTITIONS}"
            )
        elif count_by_tenant[tenant_of(topic)] + partitions > MOST_OF_TENANT:
            refused[topic] = f"its tenant's topics have more than {MOST_OF_TENANT} partitions"
        elif partitions > 0:
            count_by_tenant[tenant_of(topic)] += partitions
            lanes[topic] = partitions
    return lanes, refused


def require_listed(store: SweepStore, settings: Settings, *, pause_s: float = _PAUSE_S) -> None:
    """Check that the first of topics.requests, which must exist, is where lanes and matching topics are looked for.

    Raises ConfigError if it is not, because no lane or matching topic would ever be read; UnavailableError.
    """
    if not settings.topics.has_passes:
        return
    topic = settings.topics.requests[0]
    path = f"{_ROOT}/{managed_ledger_name(topic)}"
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(pause_s)
        ((_path, node),) = _read(store, [path])
        if node is not None:
            return
    raise ConfigError(
        f"{topic} exists, and ZooKeeper has no {path}: the brokers keep partitioned topics in another store "
        "(configurationMetadataStoreUrl), so the service would find no lane and no topic that matches. Remove "
        "topics.lanes and topics.requests_pattern, and list the topics in topics.requests"
    )


def matching_topics(store: SweepStore, settings: Settings) -> list[str]:
    """Return the topics that match topics.requests_pattern, by name; none without a pattern.

    Raises UnavailableError.
    """
    if settings.topics.pattern is None:
        return []
    lanes, refused = existing_lanes(store, settings)
    return sorted(filter(settings.topics.is_matched, (*lanes, *refused)))


def lane_partitions(store: SweepStore, settings: Settings) -> list[str]:
    """Return the partitions of all lanes and matching topics, by full name. Raises UnavailableError."""
    if not settings.topics.has_passes:
        return []
    lanes, _refused = existing_lanes(store, settings)
    return partitions_of(lanes)


def partitions_of(topics: Mapping[str, int]) -> list[str]:
    """Return the full names of the partitions of topics, which are given with the number of their partitions."""
    return [f"{topic}-partition-{number}" for topic, count in topics.items() for number in range(count)]


def _lanes(store: SweepStore, settings: Settings) -> list[str]:
    """Return the znodes of the lanes that could exist."""
    if settings.topics.lanes is Lanes.ONE:
        return []
    return [f"{_ROOT}/{namespace}/persistent/{LANE_NAME}" for namespace in _namespaces(store, settings)]


def _matching(store: SweepStore, settings: Settings) -> list[str]:
    """Return the znodes of the topics that match."""
    pattern = settings.topics.pattern
    if pattern is None:
        return []
    tenants = [pattern.only_tenant]
    if pattern.only_tenant is None:
        tenants = [tenant for (tenant,) in _children(store, [_ROOT])]
    tenants = [tenant for tenant in tenants if tenant and pattern.takes_tenant(tenant)]
    namespaces = [f"{tenant}/{pattern.only_namespace}" for tenant in tenants]
    if pattern.only_namespace is None:
        namespaces = ["/".join(parts) for parts in _children(store, [f"{_ROOT}/{tenant}" for tenant in tenants])]
    parents = [f"{_ROOT}/{namespace}/persistent" for namespace in namespaces if pattern.takes_namespace(namespace)]
    paths = ["/".join((_ROOT, *parts)) for parts in _children(store, parents)]
    return [path for path in paths if settings.topics.is_matched(_topic_of(path))]


def _namespaces(store: SweepStore, settings: Settings) -> list[str]:
    """Return the namespaces, as `tenant/ns`, in which a lane could exist."""
    tenants = [*_children(store, [_ROOT])]
    if settings.topics.lanes is Lanes.TENANT:
        return [f"{tenant}/{LANE_NAMESPACE}" for (tenant,) in tenants]
    return ["/".join(namespace) for namespace in _children(store, [f"{_ROOT}/{tenant}" for (tenant,) in tenants])]


def _children(store: SweepStore, parents: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the parts of each child's path below the root."""
    for parent, names in zip(parents, store.children_many(parents), strict=True):
        if isinstance(names, Unreadable):
            raise UnavailableError(f"can't list {parent}: {names.detail}")
        for name in names or ():
            yield (*[part for part in parent.removeprefix(_ROOT).split("/") if part], name)


def _read(store: SweepStore, paths: Sequence[str]) -> Iterator[tuple[str, Znode | None]]:
    """Yield each path with its znode; None: does not exist."""
    for path, node in zip(paths, store.read_many(paths), strict=True):
        if isinstance(node, Unreadable):
            raise UnavailableError(f"can't read {path}: {node.detail}")
        yield path, node


def _topic_of(path: str) -> str:
    """Return the full name of the topic with this znode; "" if no topic has this name."""
    try:
        return topic_of(path.removeprefix(f"{_ROOT}/"))
    except ValueError:
        return ""


def _partitions(data: bytes) -> int:
    """Return the number of partitions; 0 if the topic is being deleted, or its znode has an unknown form."""
    try:
        metadata = json.loads(data)
        return 0 if metadata.get("deleted") else int(metadata["partitions"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0
