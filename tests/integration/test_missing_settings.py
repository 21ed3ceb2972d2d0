"""The settings of brokers that are said to help with missing ledgers, each alone and all together, on a real broker.

The table in docs/missing-data.md has the same outcomes.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest

from streaming.errors import UnavailableError
from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients
from streaming.space.explain.outlook import FORCES_LEDGERS, FORCES_SCHEMAS, SETTINGS, SKIPS
from tests.integration.missing_world import FULL, PER_LEDGER, World, filled, running_world, topic_of
from udfs.formats.managed_ledger import ManagedCursorInfo, parse_cursor
from udfs.formats.schema_locator import ledger_ids
from udfs.owners.references import DELAYED_BUCKET_PREFIX, bucket_id
from udfs.paths import managed_ledger_name, managed_ledger_path, schema_id_of, schema_path

pytestmark = [pytest.mark.cluster, pytest.mark.long]

COMBINATIONS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "skip": (SKIPS,),
    "force": (FORCES_LEDGERS,),
    "schema": (FORCES_SCHEMAS,),
    "all": SETTINGS,
}
DELAYED = 100
ALL = list(range(FULL * PER_LEDGER))
# what clients get: with default settings, and with autoSkipNonRecoverableData if that makes a difference
OUTCOMES: Mapping[str, tuple[Any, ...]] = {
    "data": (ALL[:PER_LEDGER], [*ALL[:PER_LEDGER], *ALL[2 * PER_LEDGER :]]),
    "last": ((ALL, "not listed"),),
    "cursor": (ALL[: 2 * PER_LEDGER],),  # from the start: the subscription fell back
    "older schema": ((ALL[:PER_LEDGER], 200, "deleted"),),
    "newest schema": ((ALL[:PER_LEDGER], 500, "deleted"),),
    "compacted": (([], ALL[: 2 * PER_LEDGER], "ERROR"),),
    "bucket": ((DELAYED, "nothing early"),),
}


@dataclass(frozen=True)
class Scene:
    """A topic that misses a ledger, and how clients use it; `use` returns what they get."""

    topic: str
    lost: int
    use: Callable[[World, "Scene"], Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("settings"), tmp_path_factory.mktemp("service")) as running:
        yield running


def test_no_setting_of_brokers_helps_but_those_that_explain_names(world: World) -> None:
    scenes = {(kind, name): scene for name in COMBINATIONS for kind, scene in _scenes(world, name).items()}
    cluster_faults.kill_brokers(world.cluster)  # an unload would write the position into the cursor's znode
    for (kind, _name), scene in scenes.items():
        world.lose(_cursor(world, scene.topic).cursors_ledger_id if kind == "cursor" else scene.lost)
    cluster_faults.restart_brokers(world.cluster)
    helps = {kind: world.missing(scenes[kind, "none"].topic)["broker"]["helps"] for kind in OUTCOMES}

    outcomes: dict[str, dict[str, Any]] = {kind: {} for kind in OUTCOMES}
    for name, settings in COMBINATIONS.items():
        _set(world, settings)
        for kind in OUTCOMES:
            outcomes[kind][name] = scenes[kind, name].use(world, scenes[kind, name])

    for kind, (plain, *skipped) in OUTCOMES.items():
        skipping = skipped[0] if skipped else plain
        expected = {"none": plain, "skip": skipping, "force": plain, "schema": plain, "all": skipping}
        assert (kind, outcomes[kind]) == (kind, expected)
        assert helps[kind] == {SKIPS: skipping != plain, FORCES_LEDGERS: False, FORCES_SCHEMAS: False}


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_schema_whose_bookies_are_away_for_a_moment_is_deleted_only_if_schema_recovery_is_forced(
    world: World, is_forced: bool
) -> None:
    topic = topic_of(f"away-{is_forced}")
    topics.post_schema_versions(world.cluster, topic, 2)
    topics.fill(world.cluster, topic, 1, ["slow"])
    topics.unload(world.cluster, topic)
    _set(world, (FORCES_SCHEMAS,) if is_forced else ())
    cluster_faults.kill(world.cluster, Part.BOOKIE)
    try:
        url = f"admin/v2/schemas/{schema_id_of(topic)}/schema/1"
        status = part_clients.http_any("GET", world.cluster.serving.admin, url).status
    finally:
        cluster_faults.restart(world.cluster, Part.BOOKIE)
        _set(world, ())
    exists = part_clients.znode_exists(world.cluster.addresses.zookeeper, schema_path(schema_id_of(topic)))
    assert (status, exists) == ((404, False) if is_forced else (500, True))


def _set(world: World, settings: tuple[str, ...]) -> None:
    for setting in SETTINGS:
        topics.admin(world.cluster, "POST", f"brokers/configuration/{setting}/{str(setting in settings).lower()}")

    def is_set() -> bool:
        values = json.loads(topics.admin(world.cluster, "GET", "brokers/configuration/runtime"))
        return all((values[setting] == "true") is (setting in settings) for setting in SETTINGS)

    topics.wait_for(is_set, "the settings")


def _scenes(world: World, name: str) -> dict[str, Scene]:
    """Create a topic for each kind of ledger; each but that of `cursor` is not loaded afterwards."""
    data = filled(world, f"data-{name}")
    last = filled(world, f"last-{name}")
    topics.publish(world.cluster, last, 3)
    topics.unload(world.cluster, last)
    cursor = topic_of(f"cursor-{name}")
    topics.fill(world.cluster, cursor, 2, ["slow", "holds"])
    topics.consume(world.cluster, cursor, "slow", PER_LEDGER + 3)
    return {
        "data": Scene(data, world.listed(data)[1], _received),
        "last": Scene(last, world.listed(last)[-1], _received_and_listed),
        "cursor": Scene(cursor, -1, _received),
        "older schema": _schema(world, f"older-{name}", 0),
        "newest schema": _schema(world, f"newest-{name}", 1),
        "compacted": _compacted(world, f"compacted-{name}"),
        "bucket": _bucket(world, f"bucket-{name}"),
    }


def _schema(world: World, name: str, version: int) -> Scene:
    topic = topic_of(name)
    topics.post_schema_versions(world.cluster, topic, 2)
    topics.fill(world.cluster, topic, 1, ["slow"])
    topics.unload(world.cluster, topic)
    ids = sorted(ledger_ids(world.znode(schema_path(schema_id_of(topic)))))
    return Scene(topic, ids[version], _received_and_schema)


def _compacted(world: World, name: str) -> Scene:
    topic = topic_of(name)
    part_clients.subscribe(world.cluster.serving.pulsar, topic, ["slow"])
    topics.publish_keyed(world.cluster, topic, 2 * PER_LEDGER, 5)
    topics.compact(world.cluster, topic)
    ledger = topics.internal_stats(world.cluster, topic)["compactedLedger"]["ledgerId"]
    topics.unload(world.cluster, topic)
    return Scene(topic, ledger, _compacted_and_all)


def _bucket(world: World, name: str) -> Scene:
    topic = topic_of(name)
    topics.fill_buckets(world.cluster, topic, "slow", DELAYED)
    topics.unload(world.cluster, topic)
    properties = _cursor(world, topic).cursor_properties
    ids = [bucket_id(value) for key, value in properties.items() if key.startswith(DELAYED_BUCKET_PREFIX)]
    return Scene(topic, min(ids), _delayed)


def _cursor(world: World, topic: str) -> ManagedCursorInfo:
    return parse_cursor(world.znode(f"{managed_ledger_path(managed_ledger_name(topic))}/slow"))


def _received(world: World, scene: Scene) -> list[int]:
    return world.received(scene.topic, "slow")


def _received_and_listed(world: World, scene: Scene) -> tuple[list[int], str]:
    received = _received(world, scene)
    assert topics.publish(world.cluster, scene.topic, 1) == 1
    return received, "listed" if scene.lost in world.listed(scene.topic) else "not listed"


def _received_and_schema(world: World, scene: Scene) -> tuple[list[int], int, str]:
    """Return the messages, the status of a request for the newest schema, and what a list of all versions leaves."""
    received = _received(world, scene)
    path = schema_path(schema_id_of(scene.topic))

    def status(request: str) -> int:
        url = f"admin/v2/schemas/{schema_id_of(scene.topic)}/{request}"
        return part_clients.http_any("GET", world.cluster.serving.admin, url).status

    newest = status("schema")
    assert part_clients.znode_exists(world.cluster.addresses.zookeeper, path)
    status("schemas")
    time.sleep(1)
    exists = part_clients.znode_exists(world.cluster.addresses.zookeeper, path)
    return received, newest, "exists" if exists else "deleted"


def _compacted_and_all(world: World, scene: Scene) -> tuple[list[int], list[int], str]:
    """Return what a reader with readCompacted gets, and another reader, and how a compaction ends."""
    compacted = []
    with part_clients.pulsar_client(world.cluster.serving.pulsar) as client:
        reader = client.create_reader(scene.topic, pulsar.MessageId.earliest, is_read_compacted=True)
        with suppress(pulsar.Timeout):
            while True:
                compacted.append(int(reader.read_next(timeout_millis=4_000).data()))
    every = [int(message) for message in topics.read_all(world.cluster, scene.topic)]
    compaction = f"{topics.resource(scene.topic)}/compaction"

    def status() -> str:
        return str(json.loads(topics.admin(world.cluster, "GET", compaction))["status"])

    topics.admin(world.cluster, "PUT", compaction)
    topics.wait_for(lambda: status() != "RUNNING", "the end of the compaction", seconds=120)
    return compacted, every, status()


def _delayed(world: World, scene: Scene) -> tuple[int, str]:
    """Return how many messages the broker delays, and whether it sends any of them now."""

    def delayed() -> int:
        stats = json.loads(topics.admin(world.cluster, "GET", f"{topics.resource(scene.topic)}/stats"))
        return int(stats["subscriptions"]["slow"]["msgDelayed"])

    with part_clients.shared_consumer(world.cluster.serving.pulsar, scene.topic, "slow") as consumer:
        with suppress(UnavailableError):
            topics.wait_for(lambda: delayed() >= DELAYED, "the index of delayed messages", seconds=15)
        try:
            consumer.receive(timeout_millis=1_000)
        except pulsar.Timeout:
            return delayed(), "nothing early"
    return delayed(), "a message too early"
