"""Names the cluster, its ZooKeeper and this program in reports, which an operator of several clusters gets by mail."""

from importlib.metadata import version

from streaming.config.settings import Settings
from streaming.ports import MetadataStore

_CLUSTERS = "/admin/clusters"
_NO_CLUSTER = "global"


def cluster_name(store: MetadataStore) -> str:
    """Return the name of the only cluster that the metadata store has; "" if it has several, or can't be read."""
    (names,) = store.children_many([_CLUSTERS])
    clusters = [name for name in names if name != _NO_CLUSTER] if isinstance(names, list) else []
    return clusters[0] if len(clusters) == 1 else ""


def cluster_label(settings: Settings, store: MetadataStore) -> str:
    """Return the cluster's name, if it is known, and the address of its ZooKeeper."""
    return label(settings.tiered_storage.pulsar_cluster or cluster_name(store), settings.zookeeper.hosts)


def label(name: str, zookeeper: str) -> str:
    """Return "cluster NAME (ZooKeeper HOSTS)", as far as both are known; "" for neither."""
    cluster = f"cluster {name}" if name else "cluster"
    return f"{cluster} (ZooKeeper {zookeeper})" if zookeeper else f"cluster {name}" if name else ""


def program() -> str:
    """Return the name and version of this program."""
    return f"Ledger Reaper {version('ledger-reaper')}"
