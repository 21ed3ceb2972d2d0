"""The commands that `space` prints for each cause, executed as printed on a real cluster: they free what is promised.

Bookies collect no garbage by themselves, so that a test sees what `space --collect` frees.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streaming.sandbox import cluster_faults, disk_usage, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import CLUSTER_NAME, Part
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import create_tenant, running_cluster
from tests.integration.printed_commands import run_own, run_printed
from tests.integration.space_scenes import (
    ENTRY_BYTES,
    FULL,
    PER_LEDGER,
    RUN,
    SUBSCRIPTION,
    World,
    closed_ledgers,
    filled,
    new_namespace,
    service_of,
    set_retention,
    topic_in,
)

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ELSEWHERE = "elsewhere"  # a cluster that can't be reached
UNLIMITED = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    options = {"counts": {Part.BOOKIE: 3}, "gc_wait_seconds": 24 * 3600}
    with running_cluster(tmp_path_factory.mktemp("commands"), **options) as cluster:
        yield World(cluster, service_of(cluster, tmp_path_factory.mktemp("service")))


@dataclass(frozen=True)
class Kind:
    """A cause of bytes, and which of the printed commands frees them."""

    cause: str
    prepare: Callable[[Cluster, str], str]  # creates the cause in a namespace, and returns the topic
    number: int = 0  # of the command among those printed
    beside: int = 0  # messages that the command frees beside those that are promised


def _backlog(cluster: Cluster, namespace: str) -> str:
    return filled(cluster, namespace)


def _gap(cluster: Cluster, namespace: str) -> str:
    """Acknowledge all messages but the first."""
    topic, count = topic_in(namespace), FULL * PER_LEDGER
    with part_clients.shared_consumer(cluster.serving.pulsar, topic, SUBSCRIPTION) as consumer:
        topics.publish(cluster, topic, count, entry_bytes=ENTRY_BYTES)
        for message in [consumer.receive(20_000) for _ in range(count)][1:]:
            consumer.acknowledge(message)
        topics.wait_for(lambda: _has_ranges(cluster, topic), "acknowledgements after the first message")
    return topic


def _has_ranges(cluster: Cluster, topic: str) -> bool:
    (cursor,) = topics.internal_stats(cluster, topic)["cursors"].values()
    return str(cursor["individuallyDeletedMessages"]).count(":") == FULL * 2


def _behind_compaction(cluster: Cluster, namespace: str) -> str:
    topic = topic_in(namespace)
    part_clients.subscribe(cluster.serving.pulsar, topic, [SUBSCRIPTION])
    for compacts in (True, False):
        topics.publish_keyed(cluster, topic, FULL * PER_LEDGER, keys=4)
        topics.consume(cluster, topic, SUBSCRIPTION, FULL * PER_LEDGER)
        if compacts:
            topics.compact(cluster, topic)
            topics.wait_for(lambda: not closed_ledgers(cluster, topic), "the broker to drop what was compacted")
    return topic


def _behind_replication(cluster: Cluster, namespace: str) -> str:
    topics.admin(cluster, "POST", f"namespaces/{namespace}/replication", [CLUSTER_NAME, ELSEWHERE])
    return filled(cluster, namespace, consumed=True)


def _retention_of_namespace(cluster: Cluster, namespace: str) -> str:
    set_retention(cluster, namespace, -1)
    return filled(cluster, namespace, consumed=True)


def _retention_of_topic(cluster: Cluster, namespace: str) -> str:
    topic = topic_in(namespace)
    part_clients.subscribe(cluster.serving.pulsar, topic, [SUBSCRIPTION])
    topics.admin(cluster, "POST", f"{topics.resource(topic)}/retention", UNLIMITED)
    path = f"{topics.resource(topic)}/retention?applied=true"
    topics.wait_for(lambda: "-1" in topics.admin(cluster, "GET", path), "the topic's retention")
    return filled(cluster, namespace, consumed=True)


def _idle(cluster: Cluster, namespace: str) -> str:
    topic = _retention_of_namespace(cluster, namespace)
    topics.unload(cluster, topic)
    set_retention(cluster, namespace, 0)
    return topic


def _offloaded(cluster: Cluster, namespace: str) -> str:
    topics.admin(cluster, "PUT", f"namespaces/{namespace}/offloadDeletionLagMs", 10**9)
    topic = filled(cluster, namespace)
    topics.publish(cluster, topic, 1)  # an offload takes the ledgers before that of the last message
    topics.offload(cluster, topic)
    return topic


KINDS = {
    "clear-backlog": Kind("backlog", _backlog),
    "unsubscribe": Kind("backlog", _backlog, number=1),
    "skip": Kind("acknowledged_behind_gap", _gap, beside=1),
    "compact": Kind("broker_cursor", _behind_compaction),
    "clear-replication": Kind("broker_cursor", _behind_replication),
    "namespace-retention": Kind("retention", _retention_of_namespace),
    "topic-retention": Kind("retention", _retention_of_topic),
    "trim": Kind("trimmable", _idle),
    "offload-lag": Kind("offloaded_and_kept", _offloaded, number=1),
}


def _fix(document: dict[str, Any], cause: str) -> dict[str, Any]:
    (found,) = [each for each in document["fixes"] if each["cause"] == cause]
    assert isinstance(found, dict)
    return found


def _freed(cluster: Cluster, topic: str, before: dict[int, tuple[int, int]]) -> int:
    """Return the stored bytes of ledgers that no longer exist."""
    left = closed_ledgers(cluster, topic)
    return sum(stored for ledger_id, (_one_copy, stored) in before.items() if ledger_id not in left)


@pytest.mark.parametrize("name", KINDS)
def test_the_printed_command_frees_the_promised_bytes(world: World, name: str) -> None:
    cluster, kind = world.cluster, KINDS[name]
    namespace = _new_namespace(cluster, name)
    topic = kind.prepare(cluster, namespace)
    before = closed_ledgers(cluster, topic)

    fix = _fix(world.space("--namespace", namespace), kind.cause)

    assert len(before) == FULL
    whole = sum(stored for _one_copy, stored in before.values())
    assert fix["frees_stored"] == pytest.approx(whole * (1 - kind.beside / (FULL * PER_LEDGER)), abs=2)
    command = fix["commands"][kind.number]
    assert command in world.service.call("space", "--namespace", namespace)
    run_printed(cluster, command)
    topics.wait_for(lambda: _freed(cluster, topic, before) == whole, "the broker to drop the ledgers")
    causes = {each["cause"] for each in world.space("--namespace", namespace)["causes"]}
    assert kind.cause not in causes


def _new_namespace(cluster: Cluster, name: str) -> str:
    if "replication" not in name:
        return new_namespace(cluster, name)
    nowhere = {"serviceUrl": "http://127.0.0.1:9", "brokerServiceUrl": "pulsar://127.0.0.1:9"}
    topics.admin(cluster, "PUT", f"clusters/{ELSEWHERE}", nowhere)
    create_tenant(cluster, tenant := f"{name}-{RUN}", "ns")
    return f"{tenant}/ns"


def test_compaction_of_policies_keeps_them(world: World) -> None:
    cluster = world.cluster
    namespace = new_namespace(cluster, "policies")
    topic = _retention_of_topic(cluster, namespace)

    fix = _fix(world.space("--namespace", namespace), "system_topics")

    run_printed(cluster, fix["commands"][0])
    for each in (f"persistent://{namespace}/__change_events", topic):
        topics.unload(cluster, each)
    assert "-1" in topics.admin(cluster, "GET", f"{topics.resource(topic)}/retention")
    assert len(closed_ledgers(cluster, topic)) == FULL


def test_collections_return_the_bytes_of_deleted_ledgers_to_the_disk(world: World, tmp_path: Path) -> None:
    cluster = world.cluster
    topic, kept = (topic_in(new_namespace(cluster, name)) for name in ("deleted", "kept"))
    for each in (topic, kept):  # bookies never collect the entry log that they write
        topics.fill(cluster, each, 4 * FULL, [SUBSCRIPTION], entry_bytes=30_000)
    deleted = sum(stored for _one_copy, stored in closed_ledgers(cluster, topic).values())
    topics.delete_topic(cluster, topic)
    before = disk_usage.entry_log_bytes(cluster)

    collect, compact = _fix(world.space(), "not_collected")["commands"]

    run_own(world.service.command(*shlex.split(collect)[1:]), tmp_path)
    topics.wait_for(lambda: disk_usage.entry_log_bytes(cluster) < before, "a collection")
    run_own(world.service.command(*shlex.split(compact)[1:]), tmp_path)
    topics.wait_for(lambda: before - disk_usage.entry_log_bytes(cluster) >= 0.8 * deleted, "a compaction")


def test_the_audit_that_is_printed_removes_what_nothing_refers_to(world: World, tmp_path: Path) -> None:
    cluster = world.cluster
    namespace = new_namespace(cluster, "leaked")
    topic = filled(cluster, namespace)
    with cluster_faults.crash_with_metadata_fault(cluster):
        topics.delete_topic(cluster, topic)
    before = closed_ledgers(cluster, topic)

    fix = _fix(world.space("--namespace", namespace), "unreferenced")

    assert fix["frees_stored"] == sum(stored for _one_copy, stored in before.values()) > 0
    for command in fix["commands"]:
        run_own(world.service.command(*shlex.split(command)[1:]), tmp_path)
    world.service.run("run", "--until-idle")
    assert _freed(cluster, topic, before) == fix["frees_stored"]
