"""What the bookie has on disk, and how to make its garbage collector look now."""

import json
import time
from functools import partial

from streaming.errors import UnavailableError
from streaming.sandbox import clients, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part

ROLLER = "persistent://public/default/entry-log-roller"
FLUSH_SECONDS = 1.5  # settings.py: flushInterval


def entry_log_bytes(cluster: Cluster) -> int:
    """Bytes of all entry logs: the space that deleting ledgers gives back, once the bookie has collected."""
    folder = cluster.home.data(Part.BOOKIE) / "ledgers" / "current"
    total = 0
    for log in folder.glob("*.log"):
        try:
            total += log.stat().st_size
        except FileNotFoundError:  # collected between the listing and the look
            continue
    return total


def collect_garbage(cluster: Cluster) -> None:
    """Close the entry log being written, which is never collected, and wait for a whole collection after that.

    A log is closed by the first write after it was flushed beyond its size: in a quiet cluster that never comes,
    so a throw-away topic writes here. Ledgers without metadata when this was called can't be read when it returns.
    """
    for _ in range(2):
        topics.publish(cluster, ROLLER, 1)
        time.sleep(FLUSH_SECONDS)
    before = _collections(cluster)
    for ended in (1, 2):  # the first may have begun, and read the metadata, before this was called
        trigger_gc(cluster)
        topics.wait_for(partial(_has_collected, cluster, before + ended), "collection", seconds=60)


def _has_collected(cluster: Cluster, times: int) -> bool:
    return _collections(cluster) >= times


def _collections(cluster: Cluster) -> int:
    """How many forced collections have ended since the bookie's start (its majorCompactionCounter)."""
    reply = clients.http("GET", f"{cluster.addresses.bookie_http}/api/v1/bookie/gc_details")
    if not reply.ok:
        raise UnavailableError(f"the bookie did not tell its collections: {reply.status} {reply.text[:200]}")
    return sum(int(each["majorCompactionCounter"]) for each in json.loads(reply.text))


def trigger_gc(cluster: Cluster, *, major: bool = True) -> None:
    """Ask the bookie to collect garbage now (it does so by itself every few seconds); returns at once."""
    url = f"{cluster.addresses.bookie_http}/api/v1/bookie/gc"
    reply = clients.http("PUT", url, body={"forceMajor": major, "forceMinor": True})
    if not reply.ok:
        raise UnavailableError(f"the bookie did not take the request to collect: {reply.status} {reply.text[:200]}")
