"""Lets the unmodified broker create offloaded ledgers in every state: in use, leaked, or left by a failed upload.

1. Objects leak if the last step of an upload, which writes "complete" to the list, fails. The broker can't know whether
   "complete" was written, and keeps the objects. The next upload removes them, unless S3 is down and the broker then
   dies.
2. A BookKeeper copy leaks if the broker drops it from its list, can't delete it, and dies.
"""

import contextlib
import json
from dataclasses import dataclass

from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients
from udfs.formats.managed_ledger import LedgerInfo, parse_managed_ledger
from udfs.formats.offload_index import index_name, object_name
from udfs.paths import managed_ledger_name, managed_ledger_path

_FAILURE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An upload of a ledger."""

    topic: str
    ledger_id: int
    uuid: str

    @property
    def keys(self) -> tuple[str, str]:
        """The keys of its data object and of its index object."""
        return object_name(self.uuid, self.ledger_id), index_name(self.uuid, self.ledger_id)


@dataclass(frozen=True, slots=True)
class Offloads:
    """The uploads that leak_offloads created."""

    in_use: tuple[Attempt, ...]
    leaked: tuple[Attempt, ...]  # of the deleted topic
    stale: tuple[Attempt, ...]  # left by the failed upload
    copies: tuple[int, ...]  # ids of ledgers of `kept` that BookKeeper still has too


def attempts(cluster: Cluster, topic: str) -> tuple[Attempt, ...]:
    """Return the uploads that the topic's list names, complete or not; () if there is no list."""
    return tuple(
        Attempt(topic, ledger.ledger_id, ledger.offload.uuid)
        for ledger in _list(cluster, topic)
        if ledger.offload is not None and ledger.offload.uuid is not None
    )


def leak_offloads(cluster: Cluster, *, kept: str, deleted: str, retried: str, ledgers: int = 3) -> Offloads:
    """Create three topics with offloaded ledgers, and let each leak as below. Takes about a minute.

    Args:
        kept: a topic that stays. Its first ledgers can be read only from S3, and their BookKeeper copies leak.
        deleted: a topic that is deleted while S3 is down.
        retried: a topic whose first upload fails at its last step; the next upload succeeds after a crash.
    """
    for topic in (kept, deleted, retried):
        topics.fill(cluster, topic, ledgers + 1, ["reader"])
    with cluster_faults.crash_with_metadata_fault(cluster):
        topics.offload(cluster, kept)
        give_up_bookkeeper_copies(cluster, kept)
    in_use = attempts(cluster, kept)
    topics.offload(cluster, deleted)
    leaked = attempts(cluster, deleted)
    stale = fail_at_the_last_step(cluster, retried)
    cluster.stop(Part.S3)
    topics.delete_topic(cluster, deleted)
    _start(cluster, retried)
    topics.wait_for(lambda: not set(stale) & set(attempts(cluster, retried)), f"a second attempt for {retried}")
    cluster_faults.kill(cluster, Part.BROKER)
    cluster.start(Part.S3, Part.BROKER)
    topics.offload(cluster, retried)
    copies = tuple(attempt.ledger_id for attempt in in_use)
    return Offloads((*in_use, *attempts(cluster, retried)), leaked, stale, copies)


def fail_at_the_last_step(cluster: Cluster, topic: str) -> tuple[Attempt, ...]:
    """Start an upload whose result the broker can't write to the list, and return the upload that remains."""
    path = managed_ledger_path(managed_ledger_name(topic))
    with contextlib.ExitStack() as until_it_failed:
        with cluster_faults.paused(cluster, Part.S3):
            _start(cluster, topic)
            topics.wait_for(lambda: bool(attempts(cluster, topic)), f"an attempt for {topic}")
            until_it_failed.enter_context(part_clients.without_write_right(cluster.addresses.zookeeper, path))
        topics.wait_for(lambda: _status(cluster, topic) == "ERROR", "the failure", seconds=_FAILURE_SECONDS)
    return attempts(cluster, topic)


def give_up_bookkeeper_copies(cluster: Cluster, topic: str) -> None:
    """Let the broker delete the BookKeeper copies of offloaded ledgers; wait until its list records that."""
    topics.trim(cluster, topic)
    topics.wait_for(
        lambda: all(
            ledger.offload.bookkeeper_deleted for ledger in _list(cluster, topic) if ledger.offload is not None
        ),
        f"deletion of the BookKeeper copies of {topic}",
    )


def _start(cluster: Cluster, topic: str) -> None:
    last = json.loads(topics.admin(cluster, "GET", f"{topics.resource(topic)}/lastMessageId"))
    topics.admin(cluster, "PUT", f"{topics.resource(topic)}/offload", last)


def _status(cluster: Cluster, topic: str) -> str:
    return str(json.loads(topics.admin(cluster, "GET", f"{topics.resource(topic)}/offload"))["status"])


def _list(cluster: Cluster, topic: str) -> tuple[LedgerInfo, ...]:
    path = managed_ledger_path(managed_ledger_name(topic))
    data = part_clients.read_znodes(cluster.addresses.zookeeper, [path]).get(path)
    return () if data is None else parse_managed_ledger(data).ledgers
