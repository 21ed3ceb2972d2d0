"""How much the bookies have on their disks, and how to start their garbage collection now."""

import json
import time
from functools import partial

from streaming.config.hosts import each_url
from streaming.errors import UnavailableError
from streaming.sandbox import clients, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part

ROLLER = "persistent://public/default/entry-log-roller"
FLUSH_SECONDS = 1.5  # settings.py: flushInterval


def entry_log_bytes(cluster: Cluster) -> int:
    """Bytes of all entry logs. They shrink when a bookie collects the garbage of deleted ledgers."""
    folders = [cluster.home.data(part) / "ledgers" / "current" for part in cluster.spec.all_of(Part.BOOKIE)]
    total = 0
    for log in (log for folder in folders for log in folder.glob("*.log")):
        try:
            total += log.stat().st_size
        except FileNotFoundError:  # the bookie removed it after we listed it
            continue
    return total


def collect_garbage(cluster: Cluster) -> None:
    """Close the entry log that is being written, and wait for a whole collection after that.

    The bookie never collects the log that it writes. It closes a log at the first write after the log has outgrown its
    size, and a quiet cluster writes nothing, so we write to a throw-away topic. On return, ledgers that had no metadata
    at the call can't be read any more. Where there are several bookies, each closes its log in its own time.
    """
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
    """How many forced collections each bookie has ended since its start (its majorCompactionCounter)."""
    return min(_collections_of(url) for url in each_url(cluster.serving.bookie_http))


def _collections_of(url: str) -> int:
    reply = clients.http("GET", f"{url}/api/v1/bookie/gc_details")
    if not reply.ok:
        raise UnavailableError(f"the bookie did not tell its collections: {reply.status} {reply.text[:200]}")
    return sum(int(each["majorCompactionCounter"]) for each in json.loads(reply.text))


def trigger_gc(cluster: Cluster, *, major: bool = True) -> None:
    """Ask each bookie to collect garbage now, and return at once. It also collects by itself every few seconds."""
    for url in each_url(cluster.serving.bookie_http):
        reply = clients.http("PUT", f"{url}/api/v1/bookie/gc", body={"forceMajor": major, "forceMinor": True})
        if not reply.ok:
            raise UnavailableError(f"the bookie did not take the request to collect: {reply.status} {reply.text[:200]}")
