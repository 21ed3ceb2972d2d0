"""What every Broker says of topics that exist and of those that don't; and PulsarAdmin against a real broker."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.memory.store import MemoryBroker
from streaming.adapters.pulsar.admin import AdminBroker, PulsarAdmin, PulsarAdminSettings
from streaming.errors import RefusedError
from streaming.ports import Broker
from udfs.paths import encode_cursor, managed_ledger_name, namespace_of
from udfs.records import BrokerView, Presence

NAMESPACE = "public/default"


@dataclass(frozen=True)
class World:
    """A broker and how topics get to exist there: make(topic, partitions, subscription)."""

    broker: Broker
    make: Callable[[str, int, str], None]


@pytest.fixture(params=["memory", pytest.param("admin", marks=pytest.mark.cluster)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        memory = MemoryBroker()

        def note(topic: str, partitions: int, subscription: str) -> None:
            for name in [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]:
                view = BrokerView(Presence.PRESENT, ledgers=(1,), cursors={encode_cursor(subscription): 2})
                memory.topics[managed_ledger_name(name)] = view

        yield World(memory, note)
        return
    settings = PulsarAdminSettings(request.getfixturevalue("cluster").addresses.admin)
    broker = AdminBroker(settings)
    with PulsarAdmin(settings) as admin:

        def make(topic: str, partitions: int, subscription: str) -> None:
            if partitions:
                admin.create_partitioned_topic(topic, partitions)
            else:
                admin.create_topic(topic)
            admin.ensure_subscription(topic, subscription)

        yield World(broker, make)
    broker.close()


def _topic(suffix: str = "") -> str:
    return f"persistent://{NAMESPACE}/contract-{uuid4().hex}{suffix}"


def test_a_topic_that_exists_is_present_with_its_ledgers_and_encoded_cursors(world: World) -> None:
    topic = _topic(" ü%+")
    world.make(topic, 0, "my sub/1")

    (view,) = world.broker.views([managed_ledger_name(topic)])

    assert view.presence is Presence.PRESENT
    assert len(view.ledgers) == 1
    assert list(view.cursors) == ["my+sub%2F1"]
    assert view.cursors["my+sub%2F1"] > 0
    assert view.compacted_ledger == -1


def test_views_come_in_order_and_what_does_not_exist_is_gone(world: World) -> None:
    topic = _topic()
    world.make(topic, 2, "s")
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

    there = {0, 5}
    assert [view.presence for view in views] == [
        Presence.PRESENT if index in there else Presence.GONE for index in range(len(names))
    ]


def test_what_is_no_topic_is_unreadable_beside_others_that_are_read(world: World) -> None:
    topic = _topic()
    world.make(topic, 0, "s")

    views = world.broker.views(["no topic", managed_ledger_name(topic)])
    schemas = world.broker.schema_views(["no schema", f"{NAMESPACE}/{uuid4().hex}"])

    assert [view.presence for view in views] == [Presence.UNREADABLE, Presence.PRESENT]
    assert [view.presence for view in schemas] == [Presence.UNREADABLE, Presence.GONE]


def test_asking_does_not_make_a_topic(world: World) -> None:
    name = managed_ledger_name(_topic())

    assert [world.broker.views([name])[0].presence for _ in range(2)] == [Presence.GONE] * 2


@pytest.fixture
def admin(cluster: Any) -> Iterator[PulsarAdmin]:
    with PulsarAdmin(PulsarAdminSettings(cluster.addresses.admin)) as client:
        yield client


@pytest.mark.cluster
def test_a_topic_is_made_once_with_its_subscription_on_every_partition(admin: PulsarAdmin) -> None:
    topic = f"persistent://contract-{uuid4().hex[:8]}/ns/x"
    assert admin.partitions(topic) is None

    for first in (True, False):
        admin.ensure_namespace(topic)
        assert admin.create_partitioned_topic(topic, 3) is first
        admin.ensure_subscription(topic, "a b/c")

    assert admin.partitions(topic) == 3
    partitions = [f"{topic}-partition-{index}" for index in range(3)]
    assert set(partitions) < set(admin.topics(namespace_of(topic)))  # beside the namespace's system topics
    assert [list(admin.internal_stats(partition)["cursors"]) for partition in partitions] == [["a+b%2Fc"]] * 3
    assert admin.backlog(topic, "a b/c") == 0
    assert {entry for _ledger, entry in admin.last_positions(topic).values()} == {-1}
    assert list(admin.last_positions(topic)) == partitions


@pytest.mark.cluster
def test_a_subscription_is_not_made_on_a_topic_that_is_not_there(admin: PulsarAdmin) -> None:
    topic = _topic()

    with pytest.raises(RefusedError, match="there is no topic"):
        admin.ensure_subscription(topic, "s")

    assert admin.partitions(topic) is None
    assert admin.backlog(topic, "s") == 0


@pytest.mark.cluster
@pytest.mark.parametrize("namespace", ["pulsar/system", NAMESPACE])
def test_policies_are_in_force_once_set(admin: PulsarAdmin, namespace: str) -> None:
    topic = f"persistent://{namespace}/contract-{uuid4().hex}"
    admin.create_partitioned_topic(topic, 1)

    admin.set_retention(topic, minutes=60, megabytes=-1)
    admin.set_message_ttl(topic, seconds=120)
    admin.set_deduplication(topic, enabled=True)
    admin.set_backlog_quota_unlimited(topic)

    assert admin.retention(topic) == (60, -1)
    assert admin.message_ttl(topic) == 120
    assert admin.deduplication(topic)
    assert {kind: quota["limitSize"] for kind, quota in admin.backlog_quota(topic).items()} == {
        "destination_storage": -1,
        "message_age": -1,
    }
    admin.delete_topic(topic)


@pytest.mark.cluster
@pytest.mark.parametrize(("namespace", "does"), [("pulsar/system", False), (NAMESPACE, True)])
def test_a_topic_is_deduplicated_except_among_the_brokers_own(admin: PulsarAdmin, namespace: str, does: bool) -> None:
    topic = f"persistent://{namespace}/contract-{uuid4().hex}"
    admin.create_partitioned_topic(topic, 2)
    admin.set_deduplication(topic, enabled=True)

    deadline = time.monotonic() + 5
    while not (found := admin.deduplicates(topic)) and time.monotonic() < deadline:
        time.sleep(0.2)

    assert found is does
    admin.delete_topic(topic, force=True)


@pytest.mark.cluster
def test_a_topic_is_deleted_once_partitions_and_all(admin: PulsarAdmin) -> None:
    partitioned, plain = _topic(), _topic()
    admin.create_partitioned_topic(partitioned, 2)
    admin.create_topic(plain)

    for topic in (partitioned, plain):
        assert admin.delete_topic(topic, force=True)
        assert not admin.delete_topic(topic)
        assert admin.partitions(topic) is None


@pytest.mark.cluster
def test_maintenance_calls_work(admin: PulsarAdmin) -> None:
    topic = _topic()
    admin.create_topic(topic)

    admin.check_health()
    admin.trim(topic)
    admin.unload(topic)
    assert admin.offload_status(topic) == ("NOT_RUN", "")
    assert len(admin.clusters()) >= 1
    admin.delete_topic(topic)
