"""Reads the ledgers in BookKeeper's metadata and the topics that they name; creates synthetic ledgers for tests."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from streaming.errors import UnavailableError
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT
from streaming.sandbox.parts import part_clients
from udfs.formats.ledger_metadata import parse_ledger_metadata, serialize_v3
from udfs.formats.managed_ledger import parse_cursor
from udfs.paths import Layout, cursor_path, ledger_id_of, ledger_path, managed_ledger_name, schema_id_of, topic_of
from udfs.records import LedgerMetadata, LedgerState

BUCKET_PREFIX = "#pulsar.internal.delayed.bucket_"
LAYOUT = Layout.HIERARCHICAL  # parts/part_settings.py: zk+hierarchical


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """Ids of ledgers whose metadata name a topic that does not refer to them, by the component that wrote them."""

    data: tuple[int, ...] = ()
    cursors: tuple[int, ...] = ()
    schemas: tuple[int, ...] = ()
    compacted: tuple[int, ...] = ()
    buckets: tuple[int, ...] = ()

    @property
    def every(self) -> tuple[int, ...]:
        """The ids of all components."""
        return tuple(sorted((*self.data, *self.cursors, *self.schemas, *self.compacted, *self.buckets)))


def every_ledger(cluster: Cluster) -> dict[int, LedgerMetadata]:
    """Return all ledgers in BookKeeper's metadata."""
    raw = part_clients.ledger_znodes(cluster.addresses.zookeeper, LEDGERS_ROOT, lambda path: _id(path) is not None)
    return {
        ledger_id: parse_ledger_metadata(data) for path, data in raw.items() if (ledger_id := _id(path)) is not None
    }


def listed_by_bookie(cluster: Cluster) -> set[int]:
    """Return the ids that BookKeeper's ledger manager lists now. Raises UnavailableError.

    The bookie's own admin API lists them. Like BookKeeper's shell it is independent of our code, but starts no JVM.
    """
    reply = part_clients.http_any("GET", cluster.serving.bookie_http, "api/v1/ledger/list")
    if not reply.ok:
        raise UnavailableError(f"the bookie does not list the ledgers: {reply.status} {reply.text[:200]}")
    return {int(ledger_id) for ledger_id in json.loads(reply.text)}


def orphans(cluster: Cluster, topic: str) -> Orphans:
    """Return the ledgers that name the topic as owner, but that none of the broker's lists of the topic names.

    Call this only for an existing topic that is not in use: a ledger created between the two reads would count as an
    orphan.
    """
    stats = topics.internal_stats(cluster, topic)
    live = {
        *(ledger["ledgerId"] for ledger in [*stats["ledgers"], *stats.get("schemaLedgers", [])]),
        *(cursor["cursorLedger"] for cursor in stats["cursors"].values()),
        (stats.get("compactedLedger") or {}).get("ledgerId", -1),
        *bucket_ledgers(cluster, topic, stats["cursors"]),
    }
    return owned(cluster, topic, without=frozenset(live))


def bucket_ledgers(cluster: Cluster, topic: str, cursors: Iterable[str]) -> list[int]:
    """Return the ids of the delayed-delivery buckets that the cursors name; internalStats omits them."""
    managed_ledger = managed_ledger_name(topic)
    paths = [cursor_path(managed_ledger, cursor) for cursor in cursors]
    znodes = part_clients.read_znodes(cluster.addresses.zookeeper, paths)
    return [
        int(value)
        for data in znodes.values()
        for name, value in parse_cursor(data).cursor_properties.items()
        if name.startswith(BUCKET_PREFIX)
    ]


def owned(cluster: Cluster, topic: str, *, without: frozenset[int] = frozenset()) -> Orphans:
    """Return the ledgers that name the topic as owner, except those in `without`."""
    kinds = _kinds(topic)
    by_kind: dict[str, list[int]] = defaultdict(list)
    for ledger_id, metadata in sorted(every_ledger(cluster).items()):
        named = [kind for key, value, kind in kinds if metadata.custom_metadata.get(key) == value]
        if named and ledger_id not in without:
            is_cursor = named == ["data"] and "pulsar/cursor" in metadata.custom_metadata
            by_kind["cursors" if is_cursor else named[0]].append(ledger_id)
    return Orphans(**{kind: tuple(ids) for kind, ids in by_kind.items()})


def _kinds(topic: str) -> list[tuple[str, bytes, str]]:
    """Return (key, value) of the custom metadata that name the topic, with the field of Orphans for each."""
    managed_ledger = managed_ledger_name(topic)
    full_name = topic_of(managed_ledger).encode()
    return [
        ("pulsar/managed-ledger", managed_ledger.encode(), "data"),
        ("pulsar/schemaId", schema_id_of(topic).encode(), "schemas"),
        ("pulsar/compactedTopic", full_name, "compacted"),
        ("pulsar/delayedIndexTopic", full_name, "buckets"),
    ]


def make_synthetic(cluster: Cluster, topic: str, *, count: int, first_id: int) -> range:
    """Create synthetic ledgers: CLOSED metadata that name `topic`, without entries on any bookie; return their ids.

    Args:
        first_id: must be far above the cluster's own ids, which come from a counter.
    """
    ids = range(first_id, first_id + count)
    part_clients.create_znodes(cluster.addresses.zookeeper, _synthetic(topic, ids))
    return ids


def remove_synthetic(cluster: Cluster, ids: Iterable[int]) -> None:
    """Delete the synthetic ledgers that still exist."""
    part_clients.delete_znodes(cluster.addresses.zookeeper, [path_of(ledger_id) for ledger_id in ids])


def path_of(ledger_id: int) -> str:
    """Return the path of the ledger's znode."""
    return ledger_path(LAYOUT, LEDGERS_ROOT, ledger_id)


def _synthetic(topic: str, ids: range) -> Iterator[tuple[str, bytes]]:
    custom = {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": managed_ledger_name(topic).encode(),
    }
    metadata = LedgerMetadata(
        state=LedgerState.CLOSED,
        length_bytes=640,
        last_entry_id=topics.ENTRIES_PER_LEDGER - 1,
        ctime_ms=1,
        custom_metadata=custom,
    )
    data = serialize_v3(metadata, bookies=("bookie-0",))
    return ((path_of(ledger_id), data) for ledger_id in ids)


def _id(path: str) -> int | None:
    return ledger_id_of(LAYOUT, LEDGERS_ROOT, path)
