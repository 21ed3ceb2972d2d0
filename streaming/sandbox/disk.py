"""What the bookie has on disk, and how to make its garbage collector look now."""

import time

from streaming.adapters import sandbox_clients as clients
from streaming.errors import UnavailableError
from streaming.sandbox import topics
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
    """Close the entry log being written, which is never collected, and trigger a collection; returns in 3 s.

    A log is closed by the first write after it was flushed beyond its size: in a quiet cluster that never comes,
    so a throw-away topic writes here.
    """
    for _ in range(2):
        topics.publish(cluster, ROLLER, 1)
        time.sleep(FLUSH_SECONDS)
    trigger_gc(cluster)


def trigger_gc(cluster: Cluster, *, major: bool = True) -> None:
    """Ask the bookie to collect garbage now (it does so by itself every few seconds); returns at once."""
    url = f"{cluster.addresses.bookie_http}/api/v1/bookie/gc"
    reply = clients.http("PUT", url, body={"forceMajor": major, "forceMinor": True})
    if not reply.ok:
        raise UnavailableError(f"the bookie did not take the request to collect: {reply.status} {reply.text[:200]}")
