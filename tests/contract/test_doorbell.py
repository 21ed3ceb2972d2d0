"""The doorbell rings on a real broker for every unacknowledged message, and only then."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import httpx
import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.doorbell import doorbell as module
from streaming.adapters.pulsar.doorbell.doorbell import Doorbell
from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.config.load import load
from streaming.config.sections import PulsarSettings
from streaming.sandbox import cluster_faults
from streaming.sandbox.cluster import Cluster
from tests.integration.raw_producer import RawProducer
from udfs.formats.internal_stats import Position

pytestmark = pytest.mark.cluster

SUBSCRIPTION = "doorbell+test%20"
WAIT_S = 90.0  # longer than any ring takes, even on a busy machine and after pauses


@dataclass(frozen=True)
class World:
    settings: PulsarSettings
    admin: PulsarAdmin
    producer: RawProducer
    admin_settings: PulsarAdminSettings

    def topic(self) -> str:
        """Create a topic with one partition, and return that partition."""
        topic = f"persistent://public/default/doorbell-{uuid4().hex}"
        self.admin.create_partitioned_topic(topic, 1)
        self.admin.ensure_subscription(topic, SUBSCRIPTION)
        return f"{topic}-partition-0"

    def send(self, partition: str) -> Position:
        return self.producer.send(partition, b"{}")

    def last(self, partition: str) -> Position:
        return self.admin.internal_stats(partition).last

    def acknowledged(self, partition: str) -> Position:
        return self.admin.internal_stats(partition).mark_deleted(SUBSCRIPTION)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    addresses = request.getfixturevalue("cluster").addresses
    where = {"service_url": addresses.pulsar, "admin_url": addresses.admin}
    settings = load(None).pulsar.model_copy(update=where)
    admin_settings = PulsarAdminSettings(admin_url=addresses.admin)
    with PulsarAdmin(admin_settings) as admin, RawProducer(addresses.pulsar) as producer:
        yield World(settings, admin, producer, admin_settings)


@pytest.fixture
def doorbell(world: World) -> Iterator[Doorbell]:
    doorbell = Doorbell(world.settings, SUBSCRIPTION)
    yield doorbell
    doorbell.close()


def until(holds: Callable[[], bool], doorbell: Doorbell, *, may_ring: bool = False) -> None:
    """Wait until a condition holds, while nothing rings unless it may."""
    for _ in range(int(WAIT_S * 20)):
        if holds():
            return
        rung = doorbell.rung(0.05)
        assert may_ring or not rung
        for partition in rung:
            doorbell.settle(partition, None)
    raise AssertionError("the condition did not come true")


def test_a_message_rings_once_and_a_topic_without_messages_never(world: World, doorbell: Doorbell) -> None:
    quiet, topic = world.topic(), world.topic()
    for partition in (quiet, topic):
        doorbell.watch(partition)
    until(lambda: doorbell.listening == 2, doorbell)

    for _ in range(3):
        position = world.send(topic)
        assert doorbell.rung(WAIT_S) == [topic]
        doorbell.settle(topic, position)
        until(lambda: world.acknowledged(topic) == world.last(topic) and doorbell.listening == 2, doorbell)


def test_messages_before_the_watch_ring_and_those_that_are_not_processed_ring_again(
    world: World, doorbell: Doorbell
) -> None:
    topic = world.topic()
    first, second = world.send(topic), world.send(topic)
    doorbell.watch(topic)
    assert doorbell.rung(WAIT_S) == [topic]
    third = world.send(topic)

    for processed in (first, second):
        doorbell.settle(topic, processed)
        assert doorbell.rung(WAIT_S) == [topic]
        assert world.acknowledged(topic) == processed
    doorbell.settle(topic, third)
    until(lambda: world.acknowledged(topic) == third, doorbell)


def test_a_broker_acknowledges_no_damaged_message_by_itself(world: World, doorbell: Doorbell) -> None:
    topic = world.topic()
    doorbell.watch(topic)
    until(lambda: doorbell.listening == 1, doorbell)
    world.producer.send_bytes(topic, b"\xff\xff", b"no metadata")
    last = world.send(topic)

    assert doorbell.rung(WAIT_S) == [topic]
    assert world.acknowledged(topic) < (last[0], 0)
    doorbell.settle(topic, None)
    assert doorbell.rung(WAIT_S) == [topic]
    assert world.acknowledged(topic) < (last[0], 0)
    doorbell.settle(topic, last)
    until(lambda: world.acknowledged(topic) == last, doorbell)


def test_a_message_that_the_broker_sends_to_no_reader_rings_after_a_while(
    world: World, doorbell: Doorbell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKLOG_S", 2.0)
    topic = world.topic()
    doorbell.watch(topic)
    until(lambda: doorbell.listening == 1, doorbell)
    assert doorbell.rung(5.0) == [], "it has no message"
    for _ in range(2):
        world.producer.send_bytes(topic, b"\xff\xff", b"no metadata")
        assert doorbell.rung(WAIT_S) == [topic]
        doorbell.settle(topic, world.last(topic))
        until(lambda: world.acknowledged(topic) == world.last(topic) and doorbell.listening == 1, doorbell)
    assert doorbell.rung(5.0) == []
    world.send(topic)
    assert doorbell.rung(WAIT_S) == [topic]


def test_a_topic_that_is_moved_rings_on(world: World, doorbell: Doorbell) -> None:
    topic = world.topic()
    doorbell.watch(topic)
    until(lambda: doorbell.listening == 1, doorbell)
    world.admin.unload(topic)
    position = world.send(topic)
    assert doorbell.rung(WAIT_S) == [topic]
    doorbell.settle(topic, position)
    until(lambda: world.acknowledged(topic) == position, doorbell, may_ring=True)


@pytest.mark.long
def test_a_move_during_the_work_loses_no_acknowledgement(world: World, doorbell: Doorbell) -> None:
    topic = world.topic()
    position = world.send(topic)
    doorbell.watch(topic)
    assert doorbell.rung(WAIT_S) == [topic]
    world.admin.unload(topic)
    doorbell.settle(topic, position)
    until(lambda: world.acknowledged(topic) == position and doorbell.listening == 1, doorbell, may_ring=True)


@pytest.mark.long
def test_a_broker_that_was_killed_rings_again(world: World, doorbell: Doorbell, cluster: Cluster) -> None:
    topic = world.topic()
    first = world.send(topic)
    doorbell.watch(topic)
    assert doorbell.rung(WAIT_S) == [topic]
    cluster_faults.kill_brokers(cluster)
    cluster_faults.restart_brokers(cluster)
    doorbell.settle(topic, first)
    until(lambda: world.acknowledged(topic) == first and doorbell.listening == 1, doorbell, may_ring=True)
    world.producer.reconnect()
    second = world.send(topic)
    assert doorbell.rung(WAIT_S) == [topic]
    doorbell.settle(topic, second)
    until(lambda: world.acknowledged(topic) == second, doorbell, may_ring=True)


@pytest.mark.long
def test_a_topic_that_is_created_again_rings(world: World, doorbell: Doorbell) -> None:
    topic = world.topic()
    doorbell.watch(topic)
    until(lambda: doorbell.listening == 1, doorbell)
    whole = topic.removesuffix("-partition-0")
    world.admin.delete_topic(whole, force=True)
    until(lambda: topic in doorbell.faults and doorbell.faults[topic].is_missing, doorbell)
    assert world.admin.partitions(whole) is None  # the doorbell creates no topic
    world.admin.create_partitioned_topic(whole, 1)
    world.admin.ensure_subscription(whole, SUBSCRIPTION)
    world.producer.reconnect()
    world.send(topic)
    assert doorbell.rung(WAIT_S) == [topic]
    assert topic not in doorbell.faults


def test_a_broker_that_creates_no_subscription_for_a_consumer_leaves_it_to_the_admin_api(
    world: World, doorbell: Doorbell
) -> None:
    namespace = f"public/closed-{uuid4().hex}"
    base, closed = (
        f"{world.admin_settings.admin_url}/admin/v2/namespaces/{namespace}",
        {"allowAutoSubscriptionCreation": False},
    )
    for method, url, body in (("PUT", base, {}), ("POST", f"{base}/autoSubscriptionCreation", closed)):
        httpx.request(method, url, json=body, trust_env=False, timeout=60).raise_for_status()
    topic = f"persistent://{namespace}/matches"
    partition = f"{topic}-partition-0"
    world.admin.create_partitioned_topic(topic, 1)
    first = world.send(partition)
    doorbell.watch(partition)
    until(lambda: partition in doorbell.faults and doorbell.faults[partition].has_no_subscription, doorbell)
    assert not doorbell.faults[partition].is_missing
    world.admin.ensure_subscription(topic, SUBSCRIPTION)
    assert doorbell.rung(WAIT_S) == [partition]
    assert world.acknowledged(partition) < first


def test_a_subscription_that_another_client_holds_is_a_fault_of_its_topic_alone(
    world: World, doorbell: Doorbell
) -> None:
    held, topic = world.topic(), world.topic()
    holder = Doorbell(world.settings, SUBSCRIPTION)
    try:
        holder.watch(held)
        until(lambda: holder.listening == 1, holder)
        for partition in (held, topic):
            doorbell.watch(partition)
        until(lambda: held in doorbell.faults and doorbell.not_listening == [held], doorbell)
        assert "error 5 of" in doorbell.faults[held].why  # ConsumerBusy
        world.send(held)
        assert holder.rung(WAIT_S) == [held]
        world.send(topic)
        assert doorbell.rung(WAIT_S) == [topic]
    finally:
        holder.close()
    assert doorbell.rung(WAIT_S) == [held]


def test_a_cursor_that_a_tenant_moves_back_does_not_undo_what_was_processed(world: World, doorbell: Doorbell) -> None:
    topic = world.topic()
    first, last = world.send(topic), world.send(topic)
    doorbell.watch(topic)
    assert doorbell.rung(WAIT_S) == [topic]
    doorbell.settle(topic, last)
    until(lambda: world.acknowledged(topic) == last and doorbell.listening == 1, doorbell)
    SnapshotAdmin(world.admin_settings).reset_cursor(topic, SUBSCRIPTION, first)
    # the messages count as unread until the doorbell has acknowledged them again
    until(lambda: world.acknowledged(topic) == last and doorbell.listening == 1, doorbell, may_ring=True)
