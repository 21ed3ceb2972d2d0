"""The contract of Broker, for topics and schemas that exist and for those that don't."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pytest

from streaming.adapters.memory.store import MemoryBroker
from streaming.adapters.pulsar.admin_api.admin import AdminBroker, PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.admin_api.loaded import running_brokers
from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.topics import delete_schema, post_schema_versions
from udfs.formats.internal_stats import InternalStats
from udfs.paths import encode_cursor, managed_ledger_name, schema_id_of
from udfs.records import BrokerView, Presence

NAMESPACE = "public/default"


@dataclass(frozen=True)
class World:
    """A broker, and functions that create topics and schemas there."""

    broker: AdminBroker | MemoryBroker
    create_topic: Callable[[str, int, str], None]  # topic, partitions, subscription
    set_schema: Callable[[str, bool], None]  # topic; True creates its schema, False deletes it


@pytest.fixture(params=["memory", pytest.param("admin", marks=pytest.mark.cluster)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        yield _in_memory()
    else:
        with _on_a_cluster(request.getfixturevalue("cluster")) as created:
            yield created


def _in_memory() -> World:
    memory = MemoryBroker()

    def create_topic(topic: str, partitions: int, subscription: str) -> None:
        for name in [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]:
            view = BrokerView(presence=Presence.PRESENT, ledgers=(1,), cursors={encode_cursor(subscription): 2})
            memory.topics[managed_ledger_name(name)] = view
            memory.stats[managed_ledger_name(name)] = InternalStats(
                ledgers=((1, 0),), cursors={encode_cursor(subscription): (1, -1)}, pending_adds=0, sizes={1: 0}
            )

    def set_schema(topic: str, exists: bool) -> None:
        presence = Presence.PRESENT if exists else Presence.GONE
        memory.schemas[schema_id_of(managed_ledger_name(topic))] = BrokerView(presence=presence)

    return World(memory, create_topic, set_schema)


@contextmanager
def _on_a_cluster(cluster: Cluster) -> Iterator[World]:
    settings = PulsarAdminSettings(admin_url=cluster.addresses.admin)
    store = ZooKeeperStore(ZooKeeperClientSettings(hosts=cluster.addresses.zookeeper))
    broker = AdminBroker(settings, partial(running_brokers, store, use_tls=False))
    with PulsarAdmin(settings) as admin:

        def create_topic(topic: str, partitions: int, subscription: str) -> None:
            if partitions:
                admin.create_partitioned_topic(topic, partitions)
            else:
                admin.create_topic(topic)
            admin.ensure_subscription(topic, subscription)

        def set_schema(topic: str, exists: bool) -> None:
            if exists:
                post_schema_versions(cluster, topic, 1)
            else:
                delete_schema(cluster, topic)

        yield World(broker, create_topic, set_schema)
    broker.close()
    store.close()


def _topic(suffix: str = "") -> str:
    return f"persistent://{NAMESPACE}/contract-{uuid4().hex}{suffix}"


def test_an_existing_topic_is_present_with_its_ledgers_and_encoded_cursors(world: World) -> None:
    topic = _topic(" ü%+")
    world.create_topic(topic, 0, "my sub/1")

    (view,) = world.broker.views([managed_ledger_name(topic)])

    assert view.presence is Presence.PRESENT
    assert len(view.ledgers) == 1
    assert list(view.cursors) == ["my+sub%2F1"]
    assert view.cursors["my+sub%2F1"] > 0
    assert view.compacted_ledger == -1


def test_views_are_in_order_and_absent_topics_are_gone(world: World) -> None:
    topic = _topic()
    world.create_topic(topic, 2, "s")
    names = [
        f"{topic}-partition-1",
        _topic(),
        f"{topic}-partition-2",
        topic,
        f"{_topic()}-partition-0",
        f"{topic}-partition-0",
        "persistent://public/no-such-namespace/x",
        "persistent://no-such-tenant/ns/x",
        "persistent://public/standalone/default/x",
    ]

    views = world.broker.views([managed_ledger_name(name) for name in names])

    present = {0, 5}
    assert [view.presence for view in views] == [
        Presence.PRESENT if index in present else Presence.GONE for index in range(len(names))
    ]


def test_a_version_without_scalable_topics_knows_nothing_of_segments(world: World) -> None:
    name = managed_ledger_name(f"segment://{NAMESPACE}/{uuid4().hex}/0000-ffff-0")

    (absent,) = world.broker.views([name])
    (existing,) = world.broker.views([name], existing=[name])

    assert absent.presence is Presence.UNREADABLE
    assert existing == BrokerView(presence=Presence.PRESENT, is_loaded=False)


def test_an_invalid_name_is_unreadable_and_affects_no_other(world: World) -> None:
    topic = _topic()
    world.create_topic(topic, 0, "s")

    views = world.broker.views(["no topic", managed_ledger_name(topic)])
    schemas = world.broker.schema_views(["no schema", f"{NAMESPACE}/{uuid4().hex}"])

    assert [view.presence for view in views] == [Presence.UNREADABLE, Presence.PRESENT]
    assert [view.presence for view in schemas] == [Presence.UNREADABLE, Presence.GONE]


def test_a_schema_is_present_until_it_is_deleted_and_others_are_gone(world: World) -> None:
    topic, other = _topic(" ü"), _topic()
    for name in (topic, other):
        world.create_topic(name, 0, "s")
    ids = [schema_id_of(managed_ledger_name(name)) for name in (topic, other)]

    world.set_schema(topic, True)
    assert [view.presence for view in world.broker.schema_views(ids)] == [Presence.PRESENT, Presence.GONE]

    world.set_schema(topic, False)
    assert [view.presence for view in world.broker.schema_views(ids)] == [Presence.GONE, Presence.GONE]


def test_a_request_does_not_create_a_topic(world: World) -> None:
    name = managed_ledger_name(_topic())

    assert [world.broker.views([name])[0].presence for _ in range(2)] == [Presence.GONE] * 2


def test_stats_are_those_of_loaded_topics_in_order(world: World) -> None:
    topic = _topic(" ü%+")
    world.create_topic(topic, 0, "my sub/1")
    names = [managed_ledger_name(_topic()), managed_ledger_name(topic)]

    absent, loaded = world.broker.internal_stats(names)

    assert absent is None
    assert isinstance(loaded, InternalStats)
    assert len(loaded.ledgers) == 1
    assert list(loaded.cursors) == ["my+sub%2F1"]
    assert world.broker.internal_stats([]) == []
    assert world.broker.views(names[:1])[0].presence is Presence.GONE, "the question created no topic"
