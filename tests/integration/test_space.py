"""`space` on a real cluster of three bookies that contains every cause on purpose.

The test knows each byte's cause by construction: it reads the lengths from ledgers' metadata and from brokers itself,
after `space` has read them, because its own questions may load topics.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import Deployment, config_text, running_cluster
from tests.invariants import Inspection, Untouched, read_only
from udfs.formats.ledger_metadata import serialize_v3
from udfs.formats.managed_ledger import LedgerInfo, parse_managed_ledger
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import LedgerMetadata, LedgerState

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NAMESPACE = f"public/space-{uuid.uuid4().hex[:6]}"
FULL = 4  # full ledgers of a topic
PER_LEDGER = topics.ENTRIES_PER_LEDGER
FOREIGN_ID = 1_950_000_001
FOREIGN_BYTES = 4_321
SLOW, FAST = "slow", "fast"


# policies of their own, set before a broker uses them
IDLE_NAMESPACE, KEPT_NAMESPACE = f"{NAMESPACE}-idle", f"{NAMESPACE}-kept"


def _topic(name: str, namespace: str = NAMESPACE) -> str:
    return f"persistent://{namespace}/{name}"


BACKLOG, PARTLY_READ, GAP = _topic("backlog"), _topic("partly read"), _topic("gap")
RETAINED, IDLE, DEDUPLICATED = _topic("retained"), _topic("idle", IDLE_NAMESPACE), _topic("deduplicated-partition-0")
KEPT, TIERED, LOST, LEAKY = _topic("kept", KEPT_NAMESPACE), _topic("tiered"), _topic("lost"), _topic("leaky")
COMPACTED, DELAYED, SCHEMA = _topic("compacted"), _topic("delayed"), _topic("schema")


@dataclass(frozen=True)
class World:
    """The cluster, and what the test knows of it."""

    cluster: Cluster
    service: Deployment
    orphans: set[int]
    lost: int
    lost_bytes: int
    trimmable: set[int]
    schemas: set[int]

    def causes(self, topic: str) -> dict[str, dict[str, Any]]:
        """Return the causes of one topic's bytes, as `space --topic` prints them."""
        return {row["cause"]: row for row in self.service.document("space", "--topic", topic)["causes"]}

    def lengths(self, ids: Any) -> int:
        """Return the bytes of one copy of closed ledgers, from their metadata."""
        metadata = ledger_list.every_ledger(self.cluster)
        return sum(metadata[ledger_id].length_bytes for ledger_id in ids)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("space"), counts={Part.BOOKIE: 3}) as running:
        yield running


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> World:
    for namespace in (NAMESPACE, IDLE_NAMESPACE, KEPT_NAMESPACE):
        topics.admin(cluster, "PUT", f"namespaces/{namespace}")
        _set_retention(cluster, namespace, -1)
    topics.admin(cluster, "PUT", f"namespaces/{KEPT_NAMESPACE}/offloadDeletionLagMs", 10**9)
    orphans = _leak(cluster)
    for topic in (BACKLOG, PARTLY_READ, RETAINED, IDLE, KEPT, TIERED, LOST, DEDUPLICATED):
        topics.fill(cluster, topic, FULL, [SLOW, FAST], entry_bytes=700)
    everything = FULL * PER_LEDGER
    topics.consume(cluster, BACKLOG, FAST, everything)
    topics.consume(cluster, PARTLY_READ, SLOW, PER_LEDGER + 4)
    topics.consume(cluster, PARTLY_READ, FAST, everything)
    for topic in (RETAINED, IDLE, LOST):
        for subscription in (SLOW, FAST):
            topics.consume(cluster, topic, subscription, everything)
    topics.unload(cluster, IDLE)
    trimmable = set(_listed(cluster, IDLE)[:-1])
    _leave_gap(cluster)
    _offload(cluster)
    topics.publish_keyed(cluster, COMPACTED, 20, keys=4)
    topics.compact(cluster, COMPACTED)
    topics.fill_buckets(cluster, DELAYED, SLOW, 120)
    topics.post_schema_versions(cluster, SCHEMA, 2)
    topics.fill(cluster, SCHEMA, 1, [SLOW])
    lost = topics.data_ledgers(cluster, LOST)[1]
    lost_bytes = ledger_list.every_ledger(cluster)[lost].length_bytes
    part_clients.delete_znode(cluster.addresses.zookeeper, ledger_list.path_of(lost))
    part_clients.create_znodes(cluster.addresses.zookeeper, [(ledger_list.path_of(FOREIGN_ID), _foreign(cluster))])
    here = tmp_path_factory.mktemp("service")
    config = here / "local.toml"
    texts = {"name": "space", "chunk_rows": 1000, "home": cluster.home.root, "here": here, "limits": "", "classes": ""}
    config.write_text(config_text(cluster, **texts))
    return World(
        cluster=cluster,
        service=Deployment(config),
        orphans=orphans,
        lost=lost,
        lost_bytes=lost_bytes,
        trimmable=trimmable,
        schemas=set(topics.schema_ledgers(cluster, SCHEMA)),
    )


def _set_retention(cluster: Cluster, namespace: str, limit: int) -> None:
    policy = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
    topics.admin(cluster, "POST", f"namespaces/{namespace}/retention", policy)


def _leak(cluster: Cluster) -> set[int]:
    """Leak the ledgers of a topic that is deleted while no broker can delete ledgers, and crash the broker."""
    topics.fill(cluster, LEAKY, FULL, [SLOW], entry_bytes=300)
    with cluster_faults.crash_with_metadata_fault(cluster):
        topics.delete_topic(cluster, LEAKY)
    # the delete fails halfway: the list still names the last ledger, which a broker that loads the topic replaces
    return set(ledger_list.owned(cluster, LEAKY, without=frozenset(_listed(cluster, LEAKY))).data)


def _leave_gap(cluster: Cluster) -> None:
    """Acknowledge all messages of a topic but the first."""
    with part_clients.shared_consumer(cluster.serving.pulsar, GAP, SLOW) as consumer:
        topics.publish(cluster, GAP, 2 * PER_LEDGER, entry_bytes=700)
        received = [consumer.receive(20_000) for _ in range(2 * PER_LEDGER)]
        for message in received[1:]:
            consumer.acknowledge(message)
        topics.wait_for(lambda: _acknowledged_behind(cluster) >= 2 * PER_LEDGER - 1, "acknowledgements behind a gap")


def _acknowledged_behind(cluster: Cluster) -> int:
    ranges = topics.internal_stats(cluster, GAP)["cursors"][SLOW]["individuallyDeletedMessages"]
    return 0 if ranges == "[]" else 2 * PER_LEDGER - 1


def _offload(cluster: Cluster) -> None:
    topics.offload(cluster, TIERED)
    topics.trim(cluster, TIERED)
    topics.wait_for(lambda: len(_offloaded(cluster, TIERED, still_kept=False)) >= FULL - 1, "the copies to go")
    topics.offload(cluster, KEPT)


def _listed(cluster: Cluster, topic: str) -> list[int]:
    """Return the ledgers of a topic's list, without loading the topic."""
    return [ledger.ledger_id for ledger in _list_of(cluster, topic)]


def _list_of(cluster: Cluster, topic: str) -> Sequence[LedgerInfo]:
    path = managed_ledger_path(managed_ledger_name(topic))
    (data,) = part_clients.read_znodes(cluster.addresses.zookeeper, [path]).values()
    return parse_managed_ledger(data).ledgers


def _offloaded(cluster: Cluster, topic: str, *, still_kept: bool) -> list[LedgerInfo]:
    """Return the ledgers in tiered storage that BookKeeper still keeps, or those that it does not."""
    return [
        ledger
        for ledger in _list_of(cluster, topic)
        if ledger.offload and ledger.offload.complete and ledger.offload.bookkeeper_deleted is not still_kept
    ]


def _bytes(ledgers: Sequence[LedgerInfo]) -> int:
    return sum(ledger.size_bytes for ledger in ledgers)


def _foreign(cluster: Cluster) -> bytes:
    return serialize_v3(
        LedgerMetadata(
            state=LedgerState.CLOSED,
            length_bytes=FOREIGN_BYTES,
            last_entry_id=9,
            ctime_ms=1,
            custom_metadata={"application": b"distributedlog"},
        ),
        bookies=_bookies(cluster)[:1],
    )


def _bookies(cluster: Cluster) -> list[str]:
    with part_clients.zookeeper(cluster.addresses.zookeeper) as client:
        return sorted(name for name in client.get_children("/ledgers/available") if name != "readonly")


def _state(cluster: Cluster, topic: str) -> Untouched:
    """Read what a load of the topic would change."""
    path = managed_ledger_path(managed_ledger_name(topic))
    with part_clients.zookeeper(cluster.addresses.zookeeper) as client:
        paths = [path, *(f"{path}/{cursor}" for cursor in client.get_children(path))]
        versions = {each: (client.exists(each).version, 0) for each in paths}
    name = managed_ledger_name(topic).encode()
    owned = (
        ledger_id
        for ledger_id, found in ledger_list.every_ledger(cluster).items()
        if found.custom_metadata.get("pulsar/managed-ledger") == name
    )
    return Untouched(versions, frozenset(owned))


def test_every_byte_has_the_cause_that_it_was_written_for(world: World) -> None:
    output = world.service.document("space")

    assert world.causes(BACKLOG)["backlog"]["one_copy"] == world.lengths(_listed(world.cluster, BACKLOG)[:-1])
    partly = world.causes(PARTLY_READ)
    ledgers = _listed(world.cluster, PARTLY_READ)
    assert set(partly) - {"cursors"} == {"retention", "partly_read", "backlog", "open_active"}
    assert partly["retention"]["one_copy"] == world.lengths(ledgers[:1])
    held = world.lengths(ledgers[1:-1])
    assert partly["partly_read"]["one_copy"] + partly["backlog"]["one_copy"] == held
    assert partly["partly_read"]["one_copy"] == pytest.approx(world.lengths(ledgers[1:2]) * 4 / PER_LEDGER, abs=2)
    gap = world.causes(GAP)
    message = world.lengths(_listed(world.cluster, GAP)[:1]) / PER_LEDGER
    assert gap["backlog"]["one_copy"] == pytest.approx(message, abs=2)
    assert gap["acknowledged_behind_gap"]["one_copy"] == pytest.approx(19 * message, abs=2)
    assert world.causes(RETAINED)["retention"]["one_copy"] == world.lengths(_listed(world.cluster, RETAINED)[:-1])
    kept = world.causes(KEPT)
    assert kept["offloaded_and_kept"]["one_copy"] == kept["tiered"]["one_copy"]
    assert kept["tiered"]["stored"] == 0
    assert kept["tiered"]["one_copy"] == _bytes(_offloaded(world.cluster, KEPT, still_kept=True)) > 0
    tiered = world.causes(TIERED)
    assert tiered["tiered"]["one_copy"] == _bytes(_offloaded(world.cluster, TIERED, still_kept=False)) > 0
    assert "offloaded_and_kept" not in tiered
    assert world.causes(LOST)["missing"]["one_copy"] == world.lost_bytes
    assert world.causes(COMPACTED)["compacted"]["one_copy"] > 0
    assert world.causes(DELAYED)["delayed_buckets"]["one_copy"] > 0
    causes = {row["cause"]: row for row in output["causes"]}
    assert causes["unreferenced"]["one_copy"] == world.lengths(world.orphans)
    assert causes["foreign"]["one_copy"] == FOREIGN_BYTES
    assert causes["schemas"]["one_copy"] >= world.lengths(world.schemas)
    assert output["complete"], output["unknown"]


def test_all_ledgers_are_counted_once_and_copies_match_the_bookies(world: World) -> None:
    output = world.service.document("space")

    open_bytes = sum(
        topics.internal_stats(world.cluster, topic)["currentLedgerSize"]
        for topic in (BACKLOG, PARTLY_READ, RETAINED, GAP, KEPT, TIERED, LOST, COMPACTED, DELAYED, SCHEMA, DEDUPLICATED)
    )
    metadata = ledger_list.every_ledger(world.cluster)
    closed = sum(each.length_bytes for each in metadata.values() if each.state is LedgerState.CLOSED)
    assert closed <= output["totals"]["one_copy_in_bookkeeper"]
    assert output["ledgers"] == len(metadata)
    assert output["totals"]["one_copy_in_bookkeeper"] >= closed + open_bytes
    # cursor ledgers and system topics are open too: their bytes are a lower bound
    assert output["totals"]["one_copy_in_bookkeeper"] <= (closed + open_bytes) * 1.05
    assert len(output["bookies"]) == 3
    live = sum(bookie["live"] for bookie in output["bookies"])
    assert live == pytest.approx(output["totals"]["stored"], rel=0.01)
    on_disk = sum(
        log.stat().st_size
        for part in world.cluster.spec.all_of(Part.BOOKIE)
        for log in (world.cluster.home.data(part) / "ledgers" / "current").glob("*.log")
    )
    assert live <= on_disk * 1.01


def test_space_loads_no_topic_and_names_an_idle_topics_bytes(world: World) -> None:
    topics.unload(world.cluster, IDLE)
    _set_retention(world.cluster, IDLE_NAMESPACE, 0)
    before = _state(world.cluster, IDLE)

    idle = world.causes(IDLE)

    read_only(Inspection(before, _state(world.cluster, IDLE)))
    assert idle["trimmable"]["one_copy"] == world.lengths(world.trimmable)


def test_the_terminal_and_the_page_show_the_same(world: World, tmp_path: Path) -> None:
    text = world.service.call("space", "--out", str(tmp_path / "out"))
    assert "backlog" in text
    assert (tmp_path / "out" / "space.html").stat().st_size > 1000
    for by in ("tenant", "namespace", "topic", "subscription", "bookie"):
        assert world.service.call("space", "--by", by)


def test_a_bookie_that_is_down_and_a_broker_that_does_not_answer_are_named(world: World) -> None:
    cluster_faults.kill(world.cluster, world.cluster.spec.all_of(Part.BOOKIE)[2])
    try:
        output = world.service.document("space", code=4)
    finally:
        cluster_faults.restart(world.cluster, world.cluster.spec.all_of(Part.BOOKIE)[2])
    down = [bookie for bookie in output["bookies"] if bookie["faults"] or not bookie["registered"]]
    assert len(down) == len(output["unknown"]) == 1
    assert output["disks"]["shared"] == output["disks"]["disk_bookies"] - 1

    with cluster_faults.paused(world.cluster, Part.BROKER):
        output = world.service.document("space", "--namespace", NAMESPACE, code=4)
    assert output["unknown"]
    causes = {row["cause"]: row for row in output["causes"]}
    assert causes["held_or_retained"]["one_copy"] > 0
    assert causes["missing"]["one_copy"] == world.lost_bytes
