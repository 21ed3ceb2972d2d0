"""Finds namespaces with snapshot topics, opens these, and reads lists of ledgers: for audits, guards and repairs."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.audit.audit_options import FindingFilters
from streaming.audit.walk.listing import Problem
from streaming.audit.walk.owner_listing import find_namespaces
from streaming.clients import admin_for, admin_settings
from streaming.config.settings import Settings
from streaming.ports import Broker, MetadataStore, Unreadable, Znode
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import parse_managed_ledger
from udfs.paths import MANAGED_LEDGERS_ROOT, managed_ledger_name, managed_ledger_path
from udfs.records import Presence
from udfs.snapshots.keys import SnapshotKind

# Indexes before segments: a broker writes a segment before the index that names it. So every segment that
# an index names here was written before the segments were read: if it is missing, it is gone.
IN_ORDER = (SnapshotKind.INDEX, SnapshotKind.SINGLE, SnapshotKind.SEGMENT)


def namespaces_with_snapshots(store: MetadataStore, filters: FindingFilters) -> tuple[list[str], list[Problem]]:
    """Return the namespaces that have a snapshot topic, and what could not be listed. Raises UnavailableError."""
    listing = find_namespaces(store)
    prefix, suffix = f"{MANAGED_LEDGERS_ROOT}/", "/persistent"
    topics = [path for path in listing.paths if path.startswith(prefix) and path.endswith(suffix)]
    names = [path[len(prefix) : -len(suffix)] for path in topics]
    chosen = [name for name in names if _is_chosen(name, filters)]
    paths = [managed_ledger_path(system_topic(name, kind)) for name in chosen for kind in IN_ORDER]
    nodes = store.read_many(paths)
    per = len(IN_ORDER)
    present = [any(nodes[number * per : (number + 1) * per]) for number in range(len(chosen))]
    return [name for name, is_present in zip(chosen, present, strict=True) if is_present], list(listing.problems)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Namespaces, divided by whether a read of their snapshot topics would load a topic."""

    namespaces: list[str]  # brokers have all their snapshot topics loaded
    left_out: list[str]
    problems: list[Problem]  # the namespaces of left_out about which the brokers gave no usable answer


def loaded(store: MetadataStore, broker: Broker, namespaces: Sequence[str]) -> Loaded:
    """Find the namespaces that can be read without loading a topic. Raises UnavailableError."""
    topics = [(each, system_topic(each, kind)) for each in namespaces for kind in IN_ORDER]
    nodes = store.read_many([managed_ledger_path(topic) for _namespace, topic in topics])
    present = [each for each, node in zip(topics, nodes, strict=True) if node is not None]
    names = [managed_ledger_name(topic) for _namespace, topic in present]
    left_out: set[str] = set()
    problems: dict[str, str] = {}
    for (namespace, _topic), view in zip(present, broker.views(names, names), strict=True):
        if view.presence is Presence.UNREADABLE:
            problems[f"{MANAGED_LEDGERS_ROOT}/{namespace}"] = view.detail
            left_out.add(namespace)
        elif not view.is_loaded:
            left_out.add(namespace)
    chosen = [each for each in namespaces if each not in left_out]
    return Loaded(chosen, sorted(left_out), list(problems.items()))


def _is_chosen(namespace: str, filters: FindingFilters) -> bool:
    if filters.namespace:
        return namespace == filters.namespace
    return not filters.tenant or namespace.split("/", maxsplit=1)[0] == filters.tenant


@contextmanager
def snapshot_topics(settings: Settings, *, is_unknown_foreign: bool = False) -> Iterator[SnapshotTopics]:
    """Open the snapshot topics of the configured cluster; the block's end closes the connections."""
    with admin_for(settings) as admin, closing(SnapshotAdmin(admin_settings(settings))) as more:
        yield SnapshotTopics(settings.pulsar, admin, more, is_unknown_foreign=is_unknown_foreign)


def listed(node: Znode | Unreadable | None) -> tuple[Presence, list[int], str]:
    """Read a topic's znode: whether the topic exists, the ledgers of its list, and why they are not known (or "")."""
    if node is None:
        return Presence.GONE, [], ""
    if isinstance(node, Unreadable):
        return Presence.UNREADABLE, [], node.detail
    try:
        return Presence.PRESENT, [each.ledger_id for each in parse_managed_ledger(node.data).ledgers], ""
    except FormatError as error:
        return Presence.UNREADABLE, [], f"its list of ledgers: {error}"
