"""Lists the lanes that exist, with a few bulk reads of ZooKeeper and no request to a broker."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import SweepStore, Unreadable
from streaming.topics.setup import MOST_PARTITIONS
from udfs.paths import tenant_of
from udfs.requests.lanes import LANE_NAME, LANE_NAMESPACE, Lanes

_ROOT = "/admin/partitioned-topics"
MOST_OF_TENANT = 10_000  # partitions; each has two consumers, on a broker and in our memory


def existing_lanes(store: SweepStore, settings: Settings) -> tuple[dict[str, int], dict[str, str]]:
    """Return the partitions of each lane that exists, by full name; and why others are not read, by full name.

    Raises UnavailableError if the list is incomplete.
    """
    lanes, refused = {}, {}
    count_by_tenant: Counter[str] = Counter()
    namespaces = [f"{_ROOT}/{namespace}/persistent/{LANE_NAME}" for namespace in _namespaces(store, settings)]
    for path, node in zip(namespaces, store.read_many(namespaces), strict=True):
        if isinstance(node, Unreadable):
            raise UnavailableError(f"can't read {path}: {node.detail}")
        topic = f"persistent://{path.removeprefix(f'{_ROOT}/').replace('/persistent/', '/')}"
        if node is None or not settings.topics.is_lane(topic):
            continue
        partitions = _partitions(node.data)
        if partitions > MOST_PARTITIONS:
            refused[topic] = f"it has {partitions} partitions, and a lane may have at most {MOST_PARTITIONS}"
        elif count_by_tenant[tenant_of(topic)] + partitions > MOST_OF_TENANT:
            refused[topic] = f"its tenant's lanes have more than {MOST_OF_TENANT} partitions"
        elif partitions > 0:
            count_by_tenant[tenant_of(topic)] += partitions
            lanes[topic] = partitions
    return lanes, refused


def lane_partitions(store: SweepStore, settings: Settings) -> list[str]:
    """Return the partitions of all lanes that exist, by full name; none without lanes. Raises UnavailableError."""
    if settings.topics.lanes is Lanes.ONE:
        return []
    lanes, _refused = existing_lanes(store, settings)
    return [f"{topic}-partition-{number}" for topic, count in lanes.items() for number in range(count)]


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


def _partitions(data: bytes) -> int:
    """Return the number of partitions; 0 if the topic is being deleted, or its znode has an unknown form."""
    try:
        metadata = json.loads(data)
        return 0 if metadata.get("deleted") else int(metadata["partitions"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0
