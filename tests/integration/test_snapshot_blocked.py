"""Messages of other producers in the snapshot topics block loads or reads, on a real broker."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.adapters.pulsar.snapshots.keyed import KeyedSender
from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.snapshots.repair.wiring import repairs_for
from tests.integration.conftest import Deployment, _deployment
from tests.integration.raw_producer import RawProducer
from tests.integration.snapshot_scenes import (
    SEGMENTED,
    cluster_in,
    create_silent_scene,
    double_ids,
    end_left_open,
    findings,
    latest,
    publish_index,
    reads_committed,
    reasons_for,
    run_repair,
    wait_for,
    wait_for_silence,
)
from tests.integration.transactions import Transactions
from tests.pulsar_fields import field
from udfs.snapshots.avro_schemas import SCHEMAS
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import empty_index
from udfs.snapshots.topic_findings import READY

pytestmark = [pytest.mark.cluster, pytest.mark.long]
ENCRYPTED = field(1, "k") + field(2, b"v")  # a message's encryption_keys
GARBAGE = b"\xff" * 20
_REFUSED_SECONDS = 15.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("snapshot-blocked"), SEGMENTED) as running:
        yield running


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return _deployment(cluster, tmp_path_factory.mktemp("service"), classes="")


def is_loaded(service: Deployment, topic: str) -> bool:
    """Load a topic once, and return whether its transaction buffer is ready."""
    with repairs_for(service.settings) as repairs:
        try:
            repairs.loader.load(topic)
            buffer = repairs.topics.more.buffer(topic)
        except Exception:
            return False
    return buffer is not None and buffer.state == READY


def does_not_load(cluster: Cluster, service: Deployment, topic: str) -> bool:
    """Unload a topic, and try to load it for some seconds."""
    topics.unload(cluster, topic)
    deadline_s = time.monotonic() + _REFUSED_SECONDS
    while time.monotonic() < deadline_s:
        if is_loaded(service, topic):
            return False
        time.sleep(1)
    return True


def newer_schema() -> dict[str, Any]:
    """Return an index schema with an additional field, as another version of Pulsar may write it."""
    schema = SCHEMAS[SnapshotKind.INDEX]
    field_schema = {"name": "topicUuid", "type": ["null", "string"], "default": None}
    return schema | {"fields": [*schema["fields"], field_schema]}


def register_schema(cluster: Cluster, topic: str, schema: dict[str, Any]) -> bytes:
    """Register a schema, as any producer may; return its version as it appears in a message."""
    body = {"type": "AVRO", "schema": json.dumps(schema), "properties": {}}
    path = topics.resource(topic).replace("persistent/", "schemas/", 1)
    version: int = json.loads(topics.admin(cluster, "POST", f"{path}/schema", body))["version"]["version"]
    return version.to_bytes(8, "big")


def publish_decodable_indexes(cluster: Cluster, raw: RawProducer, space: str) -> None:
    """Publish an index of a schema with an additional field, and an index followed by more bytes."""
    indexes = system_topic(space, SnapshotKind.INDEX)
    version = register_schema(cluster, indexes, newer_schema())
    fields_by_name: dict[str, dict[str, Any]] = {"newer": {"schema_version": version}, "longer": {}}
    for name, fields in fields_by_name.items():
        topic = f"persistent://{space}/{name}"
        raw.send(indexes, empty_index(topic) + b"\x02\x02x", partition_key=topic, **fields)


def test_messages_that_no_broker_can_decode_are_found_and_removed_also_with_doubled_ids(
    cluster: Cluster, service: Deployment
) -> None:
    scene = double_ids(cluster, service, "blocked")
    end_left_open(cluster, scene)
    with Transactions(cluster.serving.pulsar) as own:
        other = f"persistent://{scene.space}/other"
        own.run(other, "aac")
    wait_for_silence(service, scene)
    indexes = system_topic(scene.space, SnapshotKind.INDEX)
    with KeyedSender(service.settings.pulsar, indexes) as sender:
        sender.send("no key of ours", GARBAGE)
        sender.send(f"persistent://{scene.space}/nobody", GARBAGE)
    with RawProducer(cluster.serving.pulsar) as raw:
        raw.send(indexes, GARBAGE, encryption_keys=ENCRYPTED, partition_key="encrypted")
        publish_decodable_indexes(cluster, raw, scene.space)

    lines = findings(service, "--namespace", scene.space)
    blocked = [line for line in lines if line.get("reason") == "LOAD_BLOCKED"]
    assert {line["key"] for line in blocked} == {"no key of ours", "encrypted", f"persistent://{scene.space}/nobody"}
    assert {line["class"] for line in blocked} == {"DANGER"}
    assert all("snapshots repair --namespace" in line["do"] for line in blocked)
    assert lines[-1]["complete"]
    assert ("DANGER", "DOUBLED_IDS") in reasons_for(lines, scene.topic)
    assert reasons_for(lines, f"persistent://{scene.space}/newer") == {("DANGER", "LOAD_IN_DOUBT")}
    assert reasons_for(lines, f"persistent://{scene.space}/longer") == {("FOREIGN", "UNREADABLE")}

    assert does_not_load(cluster, service, scene.topic)
    assert does_not_load(cluster, service, other)
    start_s = time.monotonic()
    output = service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)
    assert f"snapshots repair --namespace {scene.space}` removes them" in output
    print(f"refused after {time.monotonic() - start_s:.1f} s")  # noqa: T201  a figure for the log

    output = service.call("snapshots", "repair", "--yes", "--namespace", scene.space, code=4)
    assert f"{scene.space}: 3 messages removed" in output
    assert set(latest(service, scene.space, SnapshotKind.INDEX)) >= {
        f"persistent://{scene.space}/{name}" for name in ("newer", "longer")
    }
    wait_for(lambda: is_loaded(service, scene.topic), f"loading of {scene.topic}")
    wait_for(lambda: is_loaded(service, other), f"loading of {other}")
    with Transactions(cluster.serving.pulsar) as again:
        assert reads_committed(again, scene)
    for option in ((), ("--unknown-schemas",)):  # a value that may belong to a topic stays
        output = service.call("snapshots", "repair", "--yes", *option, "--namespace", scene.space, code=4)
        assert "kept 1 messages that brokers may be unable to decode" in output
        assert f"(key 'persistent://{scene.space}/newer'" in output
        assert "brokers can decode all" not in output

    assert f"{scene.space}: 3 messages published again" in service.call(
        "snapshots", "undo", "--yes", "--namespace", scene.space
    )
    assert does_not_load(cluster, service, scene.topic)
    service.call("snapshots", "repair", "--yes", "--namespace", scene.space, code=4)
    wait_for(lambda: is_loaded(service, scene.topic), f"loading of {scene.topic}")
    assert run_repair(service, scene.topic)["is_verified"]
    with Transactions(cluster.serving.pulsar) as again:
        assert reads_committed(again, scene)


def test_garbage_with_any_schema_version_is_found_and_can_be_removed(cluster: Cluster, service: Deployment) -> None:
    """The version is not registered, too short, or registered as by another version of Pulsar."""
    scene = create_silent_scene(cluster, service, "versions", 45)
    indexes = system_topic(scene.space, SnapshotKind.INDEX)
    other = f"persistent://{scene.space}/other"
    unregistered = (99).to_bytes(8, "big")
    with RawProducer(cluster.serving.pulsar) as raw:
        raw.send(indexes, empty_index(other), partition_key=other, schema_version=unregistered)
    assert not does_not_load(cluster, service, scene.topic)

    for name, value, reason, option in (
        ("gone", GARBAGE, "LOAD_BLOCKED", ()),
        ("short", empty_index(other), "LOAD_BLOCKED", ()),
        ("newer", GARBAGE, "LOAD_IN_DOUBT", ("--unknown-schemas",)),
    ):
        version = register_schema(cluster, indexes, newer_schema()) if name == "newer" else unregistered
        with RawProducer(cluster.serving.pulsar) as raw:
            raw.send(indexes, value, partition_key=name, schema_version=version[:1] if name == "short" else version)
        assert does_not_load(cluster, service, scene.topic)
        lines = findings(service, "--namespace", scene.space)
        assert [(line["class"], line["reason"]) for line in lines if line.get("key") == name] == [("DANGER", reason)]
        if option:
            output = service.call("snapshots", "repair", "--yes", "--namespace", scene.space, code=4)
            assert f"(key '{name}'" in output
            assert "repair --unknown-schemas" in output
            assert does_not_load(cluster, service, scene.topic)

        repair = ("snapshots", "repair", "--yes", *option, "--namespace", scene.space)
        assert f"{scene.space}: 1 messages removed" in service.call(*repair)
        wait_for(lambda: is_loaded(service, scene.topic), f"loading of {scene.topic}")
        assert "brokers can decode all" in service.call(*repair)
        if name == "gone":
            undo = ("snapshots", "undo", "--yes", "--namespace", scene.space)
            assert f"{scene.space}: 1 messages published again" in service.call(*undo)
            assert does_not_load(cluster, service, scene.topic)
            assert f"{scene.space}: 1 messages removed" in service.call(*repair)
            wait_for(lambda: is_loaded(service, scene.topic), f"loading of {scene.topic}")
    assert other in latest(service, scene.space, SnapshotKind.INDEX)
    with Transactions(cluster.serving.pulsar) as again:
        assert reads_committed(again, scene)


def test_after_garbage_with_a_topics_own_key_its_broker_reads_the_topic_again(
    cluster: Cluster, service: Deployment
) -> None:
    scene = create_silent_scene(cluster, service, "own-key", 100)
    publish_index(service, scene, GARBAGE)
    assert does_not_load(cluster, service, scene.topic)
    assert f"{scene.space}: 1 messages removed" in service.call(
        "snapshots", "repair", "--yes", "--namespace", scene.space
    )
    wait_for(lambda: is_loaded(service, scene.topic), f"loading of {scene.topic}")
    with Transactions(cluster.serving.pulsar) as again:
        assert reads_committed(again, scene)
    with repairs_for(service.settings) as repairs:
        buffer = repairs.topics.more.buffer(scene.topic)
    assert buffer is not None
    assert buffer.aborted == len(scene.aborted)


@pytest.mark.parametrize("last_entry", ["marker", "encrypted", "undecodable"])
def test_a_namespace_is_read_with_any_last_entry_of_its_segments(
    last_entry: str, cluster: Cluster, service: Deployment
) -> None:
    scene = create_silent_scene(cluster, service, f"last-{last_entry}", 100)
    with RawProducer(cluster.serving.pulsar) as raw:
        if last_entry == "marker":
            raw.send(scene.segments, b"", marker_type=10)
        elif last_entry == "encrypted":
            raw.send(scene.segments, GARBAGE, encryption_keys=ENCRYPTED, partition_key="encrypted")
        else:
            raw.send_bytes(scene.segments, b"\xff\xff\xff", GARBAGE)
    assert len(latest(service, scene.space, SnapshotKind.SEGMENT)) >= 2
    assert "guard created" in service.call("snapshots", "guard", "--yes", "--namespace", scene.space)
    assert "no tombstone can be read" in service.call("snapshots", "compact", "--yes", "--namespace", scene.space)
    assert "it works" in service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)
    lines = findings(service, "--namespace", scene.space, "--verify-only")
    assert lines[-1]["complete"], lines
