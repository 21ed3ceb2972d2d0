"""Creates topics with many small ledgers in the sandbox, and uses, trims, offloads and reads them.

All functions go through the broker, with its admin API or the Pulsar client, as users and operators do.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from streaming.adapters.pulsar.http import subscription_path
from streaming.errors import RefusedError, UnavailableError
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients
from udfs.paths import encode_cursor, managed_ledger_name

ENTRIES_PER_LEDGER = 10  # parts/part_settings.py: managedLedgerMaxEntriesPerLedger
SETTLE_SECONDS = 30.0


def fill(cluster: Cluster, topic: str, ledgers: int, subscriptions: Sequence[str], *, entry_bytes: int = 64) -> int:
    """Create the subscriptions and publish enough to fill `ledgers` ledgers; return how many entries were sent."""
    # without a subscription the broker would trim the entries at once
    part_clients.subscribe(cluster.serving.pulsar, topic, subscriptions)
    return publish(cluster, topic, ledgers * ENTRIES_PER_LEDGER, entry_bytes=entry_bytes)


def publish(cluster: Cluster, topic: str, entries: int, *, entry_bytes: int = 64) -> int:
    """Publish numbered payloads of the given size, each as an entry; return how many were stored."""
    return part_clients.publish(cluster.serving.pulsar, topic, payloads(entries, entry_bytes))


def payloads(entries: int, entry_bytes: int) -> Iterable[bytes]:
    """Yield payloads that start with their number and are padded to the size."""
    return (f"{number:08d}".encode().ljust(entry_bytes, b".") for number in range(entries))


def consume(cluster: Cluster, topic: str, subscription: str, count: int) -> list[bytes]:
    """Receive and acknowledge `count` messages, and wait until the cursor's position is stored in its ledger.

    The topic must not be partitioned; it may be a partition.
    """
    payloads, (ledger_id, entry_id) = part_clients.consume(cluster.serving.pulsar, topic, subscription, count)
    if payloads:
        cursor = encode_cursor(subscription)
        wait_for(lambda: _is_stored(cluster, topic, cursor, (ledger_id, entry_id)), f"acknowledgement on {topic}")
    return payloads


def read_all(cluster: Cluster, topic: str) -> list[bytes]:
    """Return every message that the topic still has, from the first."""
    return part_clients.read_all(cluster.serving.pulsar, topic)


def internal_stats(cluster: Cluster, topic: str) -> dict[str, Any]:
    """Return the owner broker's internalStats."""
    stats: dict[str, Any] = json.loads(admin(cluster, "GET", f"{resource(topic)}/internalStats"))
    return stats


def data_ledgers(cluster: Cluster, topic: str) -> list[int]:
    """Return the ids in the broker's ledger list of the topic."""
    return [ledger["ledgerId"] for ledger in internal_stats(cluster, topic)["ledgers"]]


def cursor_ledgers(cluster: Cluster, topic: str) -> dict[str, int]:
    """Return cursor name -> id of its ledger (-1: none), as the broker has it."""
    return {name: cursor["cursorLedger"] for name, cursor in internal_stats(cluster, topic)["cursors"].items()}


def schema_ledgers(cluster: Cluster, topic: str) -> list[int]:
    """Return the ids of the topic's schema ledgers, one per version, as the broker has them."""
    return [ledger["ledgerId"] for ledger in internal_stats(cluster, topic).get("schemaLedgers", [])]


def post_schema_versions(cluster: Cluster, topic: str, versions: int) -> None:
    """Register `versions` compatible Avro schemas for the topic. Each schema gets its own ledger."""
    for version in range(1, versions + 1):
        fields = [{"name": f"field_{n}", "type": ["null", "string"], "default": None} for n in range(version)]
        schema = json.dumps({"type": "record", "name": "Sample", "fields": fields})
        body = {"type": "AVRO", "schema": schema, "properties": {}}
        admin(cluster, "POST", f"schemas/{_path(topic)}/schema", body)


def delete_schema(cluster: Cluster, topic: str) -> None:
    """Delete every schema version of the topic."""
    admin(cluster, "DELETE", f"schemas/{_path(topic)}/schema?force=true")


def delete_subscription(cluster: Cluster, topic: str, subscription: str) -> bool:
    """Delete a subscription even if it has consumers; return False if the broker failed halfway (a metadata fault)."""
    path = subscription_path(topic, subscription).removeprefix("v2/")
    return _done(cluster, "DELETE", f"{path}?force=true")


def delete_topic(cluster: Cluster, topic: str) -> bool:
    """Delete a topic even if it is in use; return False if the broker failed halfway (a metadata fault)."""
    return _done(cluster, "DELETE", f"{resource(topic)}?force=true")


def trim(cluster: Cluster, topic: str) -> None:
    """Request that the broker drops the ledgers that every subscription has read; it does so soon after."""
    admin(cluster, "POST", f"{resource(topic)}/trim")


def unload(cluster: Cluster, topic: str) -> None:
    """Close the topic in the broker; the next use loads it again from the metadata."""
    admin(cluster, "PUT", f"{resource(topic)}/unload")


def compact(cluster: Cluster, topic: str) -> None:
    """Compact the topic, and wait until the compaction has ended."""
    admin(cluster, "PUT", f"{resource(topic)}/compaction")
    wait_for(lambda: "RUNNING" not in admin(cluster, "GET", f"{resource(topic)}/compaction"), f"compaction of {topic}")


def publish_keyed(cluster: Cluster, topic: str, entries: int, keys: int) -> None:
    """Publish numbered messages over `keys` keys; compaction keeps the last message of each key."""
    messages = ((f"key-{number % keys}", f"{number:08d}".encode()) for number in range(entries))
    part_clients.publish_keyed(cluster.serving.pulsar, topic, messages)


def fill_buckets(cluster: Cluster, topic: str, subscription: str, entries: int, *, delay_seconds: int = 3600) -> None:
    """Publish delayed messages, and wait until the broker has started to write bucket ledgers (one per 50 messages)."""
    url = cluster.serving.pulsar
    cursor = encode_cursor(subscription)
    with part_clients.shared_consumer(url, topic, subscription):
        part_clients.publish_delayed(url, topic, entries, delay_seconds)
        wait_for(lambda: _seen_by(cluster, topic, cursor) >= entries, f"dispatch of {topic}")


def create_partitioned(cluster: Cluster, topic: str, partitions: int) -> None:
    """Create a partitioned topic; each `<topic>-partition-<n>` is then a topic for the other functions."""
    admin(cluster, "PUT", f"{resource(topic)}/partitions", partitions)


def offload(cluster: Cluster, topic: str) -> None:
    """Move all closed ledgers of the topic to S3, and wait until the broker reports success.

    With the sandbox's deletion lag of 0 the broker deletes the BookKeeper copies a moment later. Raises RefusedError if
    the offload fails.
    """
    last = json.loads(admin(cluster, "GET", f"{resource(topic)}/lastMessageId"))
    admin(cluster, "PUT", f"{resource(topic)}/offload", last)
    wait_for(lambda: _offload_status(cluster, topic)["status"] != "RUNNING", f"offload of {topic}")
    if (ended := _offload_status(cluster, topic))["status"] != "SUCCESS":
        log = cluster.home.log(Part.BROKER)
        raise RefusedError(f"offload of {topic} ended as {ended['status']}: {ended['lastError']}; read {log}")


def objects(cluster: Cluster) -> list[str]:
    """Return the keys in the offload bucket."""
    return part_clients.bucket_keys(cluster.addresses.s3, cluster.bucket, cluster.region)


def resource(topic: str) -> str:
    """Return the topic's path in the admin API, below /admin/v2/."""
    return f"persistent/{_path(topic)}"


def admin(cluster: Cluster, method: str, path: str, body: Any = None) -> str:
    """Call the admin API and return the answer. Raises RefusedError for an error, UnavailableError for no answer."""
    reply = _asked(cluster, method, path, body)
    deadline = time.monotonic() + SETTLE_SECONDS
    while method == "GET" and reply.status >= 500 and time.monotonic() < deadline:
        # after a crash, a new broker may still find its predecessor's bundles in the metadata
        time.sleep(0.5)
        reply = _asked(cluster, method, path, body)
    if reply.status == 0:
        raise UnavailableError(f"{method} {path}: {reply.text}")
    if not reply.ok:
        raise RefusedError(f"{method} {path}: {reply.status} {reply.text[:300]}")
    return reply.text


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float = SETTLE_SECONDS) -> None:
    """Wait until the condition holds. Raises UnavailableError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise UnavailableError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)


def _asked(cluster: Cluster, method: str, path: str, body: Any) -> part_clients.Reply:
    return part_clients.http_any(method, cluster.serving.admin, f"admin/v2/{path}", body=body)


def _done(cluster: Cluster, method: str, path: str) -> bool:
    try:
        admin(cluster, method, path)
    except RefusedError:
        return False
    return True


def _seen_by(cluster: Cluster, topic: str, cursor: str) -> int:
    return int(internal_stats(cluster, topic)["cursors"][cursor]["numberOfEntriesSinceFirstNotAckedMessage"])


def _offload_status(cluster: Cluster, topic: str) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(admin(cluster, "GET", f"{resource(topic)}/offload"))
    return status


def _is_stored(cluster: Cluster, topic: str, cursor: str, position: tuple[int, int]) -> bool:
    stats = internal_stats(cluster, topic)["cursors"][cursor]
    ledger_id, entry_id = stats["markDeletePosition"].split(":")
    # A cursor's first ledger is created on demand; before that, a crash loses the position.
    return (int(ledger_id), int(entry_id)) >= position and stats["cursorLedger"] >= 0


def _path(topic: str) -> str:
    tenant, *namespace, _domain, name = managed_ledger_name(topic).split("/")
    # V1 names have a cluster and a namespace there; brokers take all after the cluster for the topic
    return f"{tenant}/{namespace[0]}/{'%2F'.join([*namespace[1:], name])}"
