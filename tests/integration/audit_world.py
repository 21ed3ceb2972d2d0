"""Leaks ledgers on a real cluster in every window that a test can produce, beside topics without leaks.

W1 to W10 are the windows of docs/findings.md. Two crashes produce them all: the first leaves cursors'
ledgers for the next broker to recover, the second happens while no broker may delete a ledger's metadata.
"""

import contextlib
import uuid
from dataclasses import dataclass

from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.ledger_list import Orphans
from streaming.sandbox.offloaded_ledgers import attempts
from streaming.sandbox.orphans import WORKER, consume_and_trim
from streaming.sandbox.parts import part_clients
from udfs.formats.ledger_metadata import serialize_v3
from udfs.formats.managed_ledger import in_use_ids
from udfs.formats.offload_index import index_name, object_name
from udfs.paths import cursor_path, managed_ledger_name, managed_ledger_path
from udfs.records import LedgerMetadata, LedgerState

NAMESPACE = f"public/audit-{uuid.uuid4().hex[:6]}"
FOREIGN_ID = 1_900_000_000 + uuid.uuid4().int % 90_000_000
FULL = 4  # full ledgers of each topic


def _topic(name: str) -> str:
    return f"persistent://{NAMESPACE}/{name}"


LEAKY, UNWRITTEN, HALF_CREATED = _topic("leaky"), _topic("unwritten list"), _topic("half-created")
COMPACTED, DELAYED, VANISHED, LIVE = _topic("compacted"), _topic("delayed"), _topic("vanished"), _topic("live")
COPIED, OFFLOADED, OFFLOAD_GONE = _topic("copied"), _topic("offloaded"), _topic("offload-gone")
LOST, LOST_OBJECT = _topic("lost"), _topic("lost-object")
EVERY = (LEAKY, UNWRITTEN, HALF_CREATED, COMPACTED, VANISHED, LIVE, COPIED, OFFLOADED, OFFLOAD_GONE, LOST, LOST_OBJECT)


@dataclass(frozen=True)
class Contents:
    """Ledger ids and UUIDs of offload attempts, by their fate."""

    leaked: dict[str, Orphans]
    copies: set[int]
    gone_attempts: set[str]
    bad_attempt: str
    lost: int
    lost_attempt: str
    messages: dict[str, list[bytes]]


def create(cluster: Cluster) -> Contents:
    """Create topics, and leak or lose some of their ledgers; takes a minute.

    If the cluster's version has no offloaders, no topic is offloaded.
    """
    topics.admin(cluster, "PUT", f"namespaces/{NAMESPACE}")
    _fill(cluster)
    is_offloading = offloads(cluster)
    gone_attempts = {attempt.uuid for attempt in attempts(cluster, OFFLOAD_GONE)}
    cluster_faults.kill(cluster, Part.BROKER)
    bucket_s_cursor = cursor_path(managed_ledger_name(DELAYED), WORKER)
    for path in (_path(VANISHED), _path(OFFLOAD_GONE), bucket_s_cursor):  # W10: by an operator
        part_clients.delete_znode(cluster.addresses.zookeeper, path)
    cluster_faults.restart(cluster, Part.BROKER)
    _forget_ledgers_without_a_write(cluster)
    _compact(cluster)
    with cluster_faults.crash_with_metadata_fault(cluster):
        _leak(cluster)
        if is_offloading:
            _leave_copies(cluster)
        half_created = _leave_half_created(cluster)
    lost = topics.data_ledgers(cluster, LOST)[1]
    part_clients.delete_znode(cluster.addresses.zookeeper, ledger_list.path_of(lost))
    part_clients.create_znodes(cluster.addresses.zookeeper, [(ledger_list.path_of(FOREIGN_ID), _foreign())])
    leaked = {topic: ledger_list.orphans(cluster, topic) for topic in (LEAKY, UNWRITTEN, COMPACTED, DELAYED, COPIED)}
    leaked |= {VANISHED: ledger_list.owned(cluster, VANISHED), HALF_CREATED: Orphans(data=half_created)}
    return Contents(
        leaked=leaked,
        copies=_given_up(cluster),
        gone_attempts=gone_attempts,
        bad_attempt=_copy_under_another_uuid(cluster) if is_offloading else "",
        lost=lost,
        lost_attempt=_lose_an_object(cluster) if is_offloading else "",
        messages={topic: topics.read_all(cluster, topic) for topic in (LIVE, OFFLOADED)},
    )


def offloads(cluster: Cluster) -> bool:
    """Return whether the cluster's brokers can offload."""
    return (cluster.pulsar / "offloaders").is_dir()


def _fill(cluster: Cluster) -> None:
    topics.post_schema_versions(cluster, LEAKY, 2)
    for topic in EVERY:
        # two entry logs, so that the bookie can free disk space
        topics.fill(cluster, topic, FULL, [WORKER], entry_bytes=60_000 if topic == VANISHED else 64)
    topics.consume(cluster, LEAKY, WORKER, 1)
    topics.fill_buckets(cluster, DELAYED, WORKER, 120)
    for topic in (OFFLOADED, OFFLOAD_GONE, LOST_OBJECT) if offloads(cluster) else ():
        topics.offload(cluster, topic)


def _forget_ledgers_without_a_write(cluster: Cluster) -> None:
    """W2: the broker forgets ledgers without being able to write the list, and drops them with its next write."""
    before = len(topics.data_ledgers(cluster, UNWRITTEN))
    with part_clients.without_write_right(cluster.addresses.zookeeper, _path(UNWRITTEN)):
        topics.consume(cluster, UNWRITTEN, WORKER, 2 * topics.ENTRIES_PER_LEDGER)
        topics.wait_for(lambda: len(topics.data_ledgers(cluster, UNWRITTEN)) < before, "a trim in memory")
    topics.publish(cluster, UNWRITTEN, 2 * topics.ENTRIES_PER_LEDGER)


def _leak(cluster: Cluster) -> None:
    """W1 and W3, W6, W7, W8: the broker writes the lists, can't delete the dropped ledgers, and dies."""
    consume_and_trim(cluster, LEAKY, WORKER, 2 * topics.ENTRIES_PER_LEDGER - 1)
    topics.delete_schema(cluster, LEAKY)
    _compact(cluster)


def _compact(cluster: Cluster) -> None:
    # not across a crash: the cursor's znode would still name the earlier ledger, which would be in use
    topics.publish_keyed(cluster, COMPACTED, 20, keys=4)
    topics.compact(cluster, COMPACTED)


def _leave_copies(cluster: Cluster) -> None:
    """W9: the list has given up the BookKeeper copies of offloaded ledgers, and the broker can't delete them."""
    topics.offload(cluster, COPIED)
    topics.trim(cluster, COPIED)
    topics.wait_for(lambda: len(_given_up(cluster)) >= FULL - 1, "the broker to give up the copies")


def _given_up(cluster: Cluster) -> set[int]:
    (data,) = part_clients.read_znodes(cluster.addresses.zookeeper, [_path(COPIED)]).values()
    return set(in_use_ids(data).bookkeeper_free)


def _leave_half_created(cluster: Cluster) -> tuple[int, ...]:
    """W4 and W5: a broker creates a ledger for a list that it can't write, and can't delete the ledger."""
    before = set(ledger_list.owned(cluster, HALF_CREATED).data)
    with part_clients.without_write_right(cluster.addresses.zookeeper, _path(HALF_CREATED)):
        url = f"{cluster.addresses.admin}/admin/v2/{topics.resource(HALF_CREATED)}/internalStats"
        part_clients.http("GET", url)  # the broker, just started, fails to load the topic
        topics.wait_for(lambda: set(ledger_list.owned(cluster, HALF_CREATED).data) > before, "a ledger without a list")
    return tuple(set(ledger_list.owned(cluster, HALF_CREATED).data) - before)


def _foreign() -> bytes:
    return serialize_v3(
        LedgerMetadata(
            state=LedgerState.CLOSED,
            length_bytes=5,
            last_entry_id=0,
            ctime_ms=1,
            custom_metadata={"application": b"distributedlog"},
        )
    )


def _copy_under_another_uuid(cluster: Cluster) -> str:
    """Copy a listed ledger's objects to a UUID that no list names, as a failed offload leaves them."""
    s3, attempt = part_clients.s3(cluster.addresses.s3, cluster.region), str(uuid.uuid4())
    first = attempts(cluster, OFFLOADED)[0]
    copies = object_name(attempt, first.ledger_id), index_name(attempt, first.ledger_id)
    for key, copy in zip(first.keys, copies, strict=True):
        s3.copy_object(Bucket=cluster.bucket, Key=copy, CopySource={"Bucket": cluster.bucket, "Key": key})
    return attempt


def _lose_an_object(cluster: Cluster) -> str:
    first = attempts(cluster, LOST_OBJECT)[0]
    part_clients.s3(cluster.addresses.s3, cluster.region).delete_object(Bucket=cluster.bucket, Key=first.keys[1])
    return first.uuid


def _path(topic: str) -> str:
    return managed_ledger_path(managed_ledger_name(topic))


def remove_foreign(cluster: Cluster) -> None:
    """Remove the foreign ledger, which no service deletes: other tests' audits must not find it."""
    with contextlib.suppress(Exception):
        ledger_list.remove_synthetic(cluster, [FOREIGN_ID])
