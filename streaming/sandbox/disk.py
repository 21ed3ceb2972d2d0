"""How much the bookie has on its disk, and how to start its garbage collection now."""

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
    """Bytes of all entry logs. They shrink when the bookie collects the garbage of deleted ledgers."""
    folder = cluster.home.data(Part.BOOKIE) / "ledgers" / "current"
    total = 0
    for log in folder.glob("*.log"):
        try:
            total += log.stat().st_size
        except FileNotFoundError:  # the bookie removed it after we listed it
            continue
    return total


def collect_garbage(cluster: Cluster) -> None:
    """Close the entry log that is being written, and wait for a whole collection after that.

    The bookie never collects the log that it writes. It closes a log at the first write after the log has outgrown its
    size, and a quiet cluster writes nothing, so we write to a throw-away topic. On return, ledgers that had no metadata
    at the call can't be read any more.
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
    """How many forced collections have ended since the bookie's start (its majorCompactionCounter)."""
    reply = clients.http("GET", f"{cluster.addresses.bookie_http}/api/v1/bookie/gc_details")
    if not reply.ok:
        raise UnavailableError(f"the bookie did not tell its collections: {reply.status} {reply.text[:200]}")
    return sum(int(each["majorCompactionCounter"]) for each in json.loads(reply.text))


def trigger_gc(cluster: Cluster, *, major: bool = True) -> None:
    """Ask the bookie to collect garbage now, and return at once. It also collects by itself every few seconds."""
    url = f"{cluster.addresses.bookie_http}/api/v1/bookie/gc"
    reply = clients.http("PUT", url, body={"forceMajor": major, "forceMinor": True})
    if not reply.ok:
        raise UnavailableError(f"the bookie did not take the request to collect: {reply.status} {reply.text[:200]}")
