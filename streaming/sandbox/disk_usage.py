"""Measures the bookies' disk usage, and starts their garbage collection."""

import json
import time
from functools import partial

from streaming.config.hosts import each_url
from streaming.errors import UnavailableError
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients

ROLLER = "persistent://public/default/entry-log-roller"
FLUSH_SECONDS = 1.5  # parts/part_settings.py: flushInterval


def entry_log_bytes(cluster: Cluster) -> int:
    """Return the bytes of all entry logs, which shrink when a bookie collects the garbage of deleted ledgers."""
    folders = [cluster.home.data(part) / "ledgers" / "current" for part in cluster.spec.all_of(Part.BOOKIE)]
    total = 0
    for log in (log for folder in folders for log in folder.glob("*.log")):
        try:
            total += log.stat().st_size
        except FileNotFoundError:  # the bookie removed it after we listed it
            continue
    return total


def collect_garbage(cluster: Cluster) -> None:
    """Make each bookie close its current entry log, and wait for a complete garbage collection afterwards.

    On return, ledgers without metadata at the time of the call can no longer be read. Several bookies close their logs
    at different times.
    """
    # A bookie never collects the log to which it writes, and closes a log at the first write above the size limit. A
    # quiet cluster writes nothing, so these messages are written.
    for _ in range(2):
        topics.publish(cluster, ROLLER, 1)
        time.sleep(FLUSH_SECONDS)
    before = _collections(cluster)
    for ended in (1, 2):  # the first collection may have read the metadata before this call
        trigger_gc(cluster)
        topics.wait_for(partial(_has_collected, cluster, before + ended), "collection", seconds=60)


def _has_collected(cluster: Cluster, times: int) -> bool:
    return _collections(cluster) >= times


def _collections(cluster: Cluster) -> int:
    """Return how many forced collections every bookie has completed since its start (majorCompactionCounter)."""
    return min(_collections_of(url) for url in each_url(cluster.serving.bookie_http))


def _collections_of(url: str) -> int:
    reply = part_clients.http("GET", f"{url}/api/v1/bookie/gc_details")
    if not reply.ok:
        raise UnavailableError(
            f"the bookie did not return the count of its collections: {reply.status} {reply.text[:200]}"
        )
    return sum(int(directory["majorCompactionCounter"]) for directory in json.loads(reply.text))


def trigger_gc(cluster: Cluster, *, major: bool = True) -> None:
    """Request a garbage collection from each bookie without waiting for it. Bookies also collect every few seconds."""
    for url in each_url(cluster.serving.bookie_http):
        reply = part_clients.http("PUT", f"{url}/api/v1/bookie/gc", body={"forceMajor": major, "forceMinor": True})
        if not reply.ok:
            raise UnavailableError(f"the bookie refused the collection: {reply.status} {reply.text[:200]}")
