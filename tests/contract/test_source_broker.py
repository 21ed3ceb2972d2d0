"""The contract of the Spark source's broker, for the fake and for a real broker."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.memory.source_broker import MemorySourceBroker
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.http import topic_path
from streaming.adapters.pulsar.readers.frames import ReceiveTimeout
from streaming.adapters.pulsar.source.broker import PulsarSourceBroker, SourceBroker
from streaming.errors import UnavailableError
from tests.integration import transactions
from tests.integration.raw_producer import RawProducer
from tests.pulsar_fields import entry
from tests.pulsar_settings import pulsar_settings
from udfs.formats.internal_stats import InternalStats, Position

SUBSCRIPTION = "a b/c+d%2Be%"
_PATIENCE_S = 60


@dataclass(frozen=True)
class World:
    """One Pulsar, and what a test does to its topics.

    roll closes the newest ledger of a partition, and starts another; hold uses the subscription of a
    partition with an entry, as another consumer does.
    """

    broker: SourceBroker
    create: Callable[[str, int], Any]  # also adds partitions
    delete: Callable[[str], Any]
    publish: Callable[[str, bytes], Position]
    roll: Callable[[str], Any]
    hold: Callable[[str], Any]


@pytest.fixture(params=["memory", pytest.param("pulsar", marks=pytest.mark.cluster)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        memory = MemorySourceBroker(SUBSCRIPTION)

        def publish_entry(partition: str, payload: bytes) -> Position:
            return memory.publish(partition, entry(payload))

        yield World(memory, memory.create, memory.delete, publish_entry, memory.roll, memory.busy.add)
        return
    cluster = request.getfixturevalue("cluster")
    addresses = cluster.addresses
    settings = pulsar_settings(service_url=addresses.pulsar, admin_url=addresses.admin)
    broker = PulsarSourceBroker(settings, SUBSCRIPTION)
    with (
        PulsarAdmin(PulsarAdminSettings.of(settings)) as admin,
        RawProducer(addresses.pulsar) as raw,
        closing(PulsarSourceBroker(settings, SUBSCRIPTION)) as other,
    ):

        def create(topic: str, partitions: int) -> None:
            if not partitions:
                admin.create_topic(topic)
            elif not admin.create_partitioned_topic(topic, partitions):
                transactions.admin(cluster, "POST", f"{topic_path(topic)}/partitions", partitions)

        def publish(partition: str, payload: bytes) -> Position:
            raw.reconnect()  # the topic may have been unloaded or created again
            return raw.send(partition, payload)

        def unload(partition: str) -> None:
            admin.unload(partition)
            admin.internal_stats(partition)  # loads it, with a new ledger

        delete, hold = partial(admin.delete_topic, force=True), partial(_hold, other)
        yield World(broker, create, delete, publish, unload, hold)
    broker.close()


def _hold(broker: SourceBroker, partition: str) -> None:
    broker.listen(partition, (-1, -1))
    _until(lambda: bool(broker.rung(0.0)))


def _topic() -> str:
    return f"persistent://public/default/source-{uuid4().hex}"


def _stats(world: World, partition: str) -> InternalStats:
    stats = world.broker.stats(partition)
    assert stats is not None
    return stats


def test_partitions_are_listed_with_those_that_are_added(world: World) -> None:
    plain, topic = _topic(), _topic()
    assert world.broker.partitions(topic) == []
    assert world.broker.stats(f"{topic}-partition-0") is None
    world.create(plain, 0)
    assert world.broker.partitions(plain) == [plain]
    world.create(topic, 1)
    world.create(topic, 2)
    assert world.broker.partitions(topic) == [f"{topic}-partition-0", f"{topic}-partition-1"]


def test_an_added_partition_has_the_subscriptions_of_the_others(world: World) -> None:
    topic = _topic()
    world.create(topic, 1)
    world.broker.ensure_subscription(f"{topic}-partition-0", SUBSCRIPTION)
    world.create(topic, 2)
    assert _stats(world, f"{topic}-partition-1").has_subscription(SUBSCRIPTION)


def test_a_scout_reads_on_from_a_position_and_creates_no_topic(world: World) -> None:
    topic = _topic()
    with pytest.raises(UnavailableError), world.broker.scout(topic, (-1, -1)):
        pass
    assert world.broker.partitions(topic) == []
    world.create(topic, 0)
    positions = [world.publish(topic, payload) for payload in (b"one", b"two", b"three")]
    with world.broker.scout(topic, positions[0]) as scout:
        assert scout.last == positions[2]
        sent = [scout.next_weight(10) for _ in positions]
        assert [position for position, _weight in sent] == positions, "brokers send the entry at the position again"
        assert {weight.messages for _position, weight in sent} == {1}
        with pytest.raises(ReceiveTimeout):
            scout.next_weight(0.1)
    assert _stats(world, topic).ledgers == ((positions[0][0], 3),)
    assert _stats(world, topic).last_confirmed == positions[2]


def test_an_acknowledgement_moves_the_subscription_forward_only(world: World) -> None:
    topic = _topic()
    world.create(topic, 0)
    world.broker.ensure_subscription(topic, SUBSCRIPTION)
    world.broker.ensure_subscription(topic, SUBSCRIPTION)
    first, second, _third = (world.publish(topic, payload) for payload in (b"one", b"two", b"three"))
    assert _stats(world, topic).mark_deleted(SUBSCRIPTION) < first
    for upto in (second, first):
        world.broker.acknowledge(topic, upto)
        _until(lambda: _stats(world, topic).mark_deleted(SUBSCRIPTION) == second)


def test_a_subscription_that_another_consumer_uses_is_a_fault(world: World) -> None:
    topic, free = _topic(), _topic()
    for each in (topic, free):
        world.create(each, 0)
        world.broker.ensure_subscription(each, SUBSCRIPTION)
    last = world.publish(topic, b"one")
    world.hold(topic)
    world.broker.acknowledge(topic, last)
    world.broker.listen(free, _stats(world, free).last)
    _until(lambda: bool(world.broker.faults(0.0)))
    (why,) = world.broker.faults(0.0).values()
    assert {*world.broker.faults(0.0)} == {topic}
    assert "Exclusive consumer is already connected" in why
    assert _stats(world, topic).mark_deleted(SUBSCRIPTION) < last


def test_a_closed_ledger_is_deleted_once_it_is_acknowledged(world: World) -> None:
    topic = _topic()
    world.create(topic, 0)
    world.broker.ensure_subscription(topic, SUBSCRIPTION)
    first = world.publish(topic, b"one")
    world.roll(topic)
    assert [ledger for ledger, entries in _stats(world, topic).ledgers if entries] == [first[0]]
    last = world.publish(topic, b"two")
    assert last[0] > first[0]
    world.broker.acknowledge(topic, last)
    world.roll(topic)
    _until(lambda: not any(entries for _ledger, entries in _stats(world, topic).ledgers))
    newest = _stats(world, topic).ledgers[-1][0]
    assert newest > last[0]


def test_a_topic_that_is_created_again_has_newer_ledgers_and_no_subscription(world: World) -> None:
    topic = _topic()
    world.create(topic, 0)
    world.broker.ensure_subscription(topic, SUBSCRIPTION)
    before = world.publish(topic, b"one")
    world.delete(topic)
    assert world.broker.stats(topic) is None
    world.create(topic, 0)
    assert not _stats(world, topic).has_subscription(SUBSCRIPTION)
    assert world.publish(topic, b"two")[0] > before[0]


def test_a_partition_rings_for_an_entry_after_a_position_and_for_no_other(world: World) -> None:
    topic, quiet = _topic(), _topic()
    for each in (topic, quiet):
        world.create(each, 0)
    first = world.publish(topic, b"one")
    world.publish(quiet, b"one")
    world.broker.listen(quiet, _stats(world, quiet).last)
    world.broker.listen(topic, (first[0], -1))
    assert _rung(world) == {topic}, "an entry that is stored already"
    for payload in (b"two", b"three"):
        world.broker.listen(topic, _stats(world, topic).last)
        _until(lambda: not world.broker.not_listening())
        assert not world.broker.rung(0.2)
        world.publish(topic, payload)
        assert _rung(world) == {topic}
    last = _stats(world, topic).last
    world.broker.acknowledge(topic, last)
    _until(lambda: _stats(world, topic).mark_deleted(SUBSCRIPTION) == last)


def test_a_partition_that_is_moved_rings_again(world: World) -> None:
    topic = _topic()
    world.create(topic, 0)
    world.broker.listen(topic, world.publish(topic, b"one"))
    _until(lambda: not world.broker.not_listening())
    world.roll(topic)
    world.publish(topic, b"two")
    assert _rung(world) == {topic}


def _rung(world: World) -> set[str]:
    rung: set[str] = set()

    def has_rung() -> bool:
        rung.update(world.broker.rung(0.05))
        return bool(rung)

    _until(has_rung)
    return rung


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the broker did not do it in time"
        time.sleep(0.05)
