"""Creates real orphans of every kind: the unmodified broker drops ledgers from its lists while it can't delete them.

A cursor's ledger becomes CLOSED only if its broker dies and the next broker recovers it. If the broker that wrote it
replaces or deletes it, it stays OPEN forever. So two crashes are needed for CLOSED orphans of cursors.
"""

from collections.abc import Sequence

from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.ledger_list import Orphans, orphans

WORKER = "worker"
KEPT_LEDGERS = 5


def orphan_by_crash(cluster: Cluster, topic: str, subscription: str, entries: int) -> Orphans:
    """Consume messages, let the broker trim the topic under the metadata fault, and crash it. About 15 s.

    Returns:
        The orphans of the topic; its data ledgers are CLOSED.
    """
    with cluster_faults.crash_with_metadata_fault(cluster):
        consume_and_trim(cluster, topic, subscription, entries)
    return orphans(cluster, topic)


def orphan_everything(
    cluster: Cluster, names: Sequence[str], *, ledgers: int = 30, schema_versions: int = 3, entry_bytes: int = 64
) -> dict[str, Orphans]:
    """Create topics that lose their consumed ledgers, their cursor's ledger and their schemas, all CLOSED.

    Each topic keeps KEPT_LEDGERS ledgers of unread messages for subscription WORKER. Takes two crashes and about 40 s.
    """
    entries = ledgers * topics.ENTRIES_PER_LEDGER
    for topic in names:
        topics.post_schema_versions(cluster, topic, schema_versions)
        topics.fill(cluster, topic, ledgers + KEPT_LEDGERS, [WORKER], entry_bytes=entry_bytes)
        topics.consume(cluster, topic, WORKER, 1)
    cluster_faults.kill_brokers(cluster)
    cluster_faults.restart_brokers(cluster)
    with cluster_faults.crash_with_metadata_fault(cluster):
        for topic in names:
            consume_and_trim(cluster, topic, WORKER, entries - 1)
            topics.delete_schema(cluster, topic)
    return {topic: orphans(cluster, topic) for topic in names}


def consume_and_trim(cluster: Cluster, topic: str, subscription: str, entries: int) -> None:
    """Consume, request a trim, and wait until the broker has dropped the consumed ledgers from its list."""
    before = len(topics.data_ledgers(cluster, topic))
    topics.consume(cluster, topic, subscription, entries)
    topics.trim(cluster, topic)
    least = max(1, entries // topics.ENTRIES_PER_LEDGER)
    topics.wait_for(lambda: len(topics.data_ledgers(cluster, topic)) <= before - least, f"trim of {topic}")
