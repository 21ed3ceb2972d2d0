"""The contracts of TopicAdmin and MessageReader, for the fake and for a real broker."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.readers.read import PulsarReader
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.errors import RefusedError
from streaming.ports import MessageReader, TopicAdmin
from udfs.entry_ranges import EntrySpan
from udfs.formats.metadata_url import other_store
from udfs.paths import encode_name, namespace_of

NAMESPACE = "public/default"


class Admin(TopicAdmin, Protocol):
    """The port with further calls for the test, and a cleanup of all that it created."""

    def delete_topic(self, topic: str, *, force: bool = False) -> bool: ...

    def retention(self, topic: str) -> tuple[int, int]: ...

    def set_backlog_quota_unlimited(self, topic: str) -> None: ...

    def set_max_message_bytes(self, topic: str, most_bytes: int) -> None: ...


@dataclass(frozen=True)
class World:
    """One Pulsar. publish(partition, payload, properties): returns when it is stored. wait(seconds): lets time pass."""

    admin: Admin
    reader: MessageReader
    publish: Callable[[str, bytes, Mapping[str, str]], Any]
    wait: Callable[[float], None] = time.sleep


@pytest.fixture(params=["memory", pytest.param("pulsar", marks=pytest.mark.cluster)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        clock = ManualClock()
        memory = MemoryPulsar(clock)
        yield World(memory, memory, memory.publish, lambda seconds: clock.advance(round(seconds * 1000)))
        return
    addresses = request.getfixturevalue("cluster").addresses
    where = {"service_url": addresses.pulsar, "admin_url": addresses.admin}
    settings = load(None).pulsar.model_copy(update=where)

    def publish(partition: str, payload: bytes, about: Mapping[str, str]) -> None:
        with client(settings) as opened:
            opened.create_producer(partition, batching_enabled=False).send(payload, properties=dict(about))

    with PulsarAdmin(PulsarAdminSettings(admin_url=addresses.admin)) as admin:
        yield World(admin, PulsarReader(settings), publish)


@pytest.fixture
def admin(world: World) -> Admin:
    return world.admin


def _topic(suffix: str = "") -> str:
    return f"persistent://{NAMESPACE}/contract-{uuid4().hex}{suffix}"


def test_a_topic_is_created_once_with_its_subscription_on_every_partition(admin: Admin) -> None:
    topic = f"persistent://contract-{uuid4().hex[:8]}/ns/x"
    assert admin.partitions(topic) is None
    assert admin.partitioned_topics(namespace_of(topic)) == []

    for first in (True, False):
        admin.ensure_namespace(topic)
        assert admin.create_partitioned_topic(topic, 3) is first
        admin.ensure_subscription(topic, "a b/c")

    assert admin.partitions(topic) == 3
    partitions = [f"{topic}-partition-{index}" for index in range(3)]
    assert [admin.partitions(partition) for partition in partitions] == [0] * 3
    assert admin.partitions(f"{topic}-partition-3") is None
    assert admin.partitioned_topics(namespace_of(topic)) == [topic]
    assert namespace_of(topic) in admin.namespaces(namespace_of(topic).partition("/")[0])
    assert namespace_of(topic).partition("/")[0] in admin.tenants()
    for partition in partitions:
        stats = admin.internal_stats(partition)
        assert list(stats.cursors) == ["a+b%2Fc"]
        assert stats.has_subscription("a b/c")
        assert not stats.has_subscription("another")
        assert stats.entries_after(stats.mark_deleted("a b/c")) == 0
        assert stats.pending_adds == 0
        assert [entries for _ledger, entries in stats.ledgers] == [0]
    assert {entry for _ledger, entry in admin.last_positions(topic).values()} == {-1}
    assert list(admin.last_positions(topic)) == partitions
    assert list(admin.last_positions(partitions[1])) == [partitions[1]]


def test_an_unpartitioned_topic_is_its_own_partition(admin: Admin) -> None:
    topic = _topic()
    assert admin.create_topic(topic)
    assert not admin.create_topic(topic)
    assert admin.partitions(topic) == 0
    admin.ensure_subscription(topic, "s")
    assert list(admin.last_positions(topic)) == [topic]
    assert topic not in admin.partitioned_topics(NAMESPACE)
    admin.delete_topic(topic, force=True)


@pytest.mark.parametrize(
    ("name", "another"),
    [
        pytest.param("a+b", "a b", id="plus"),
        pytest.param("a b", "a+b", id="space"),
        pytest.param("a%2Bb", "a+b", id="an escape"),
        pytest.param("a%252Bb", "a%2Bb", id="an escape of an escape"),
        pytest.param("100%", "100%25", id="percent"),
        pytest.param("a/b?c#d;e=f&g", "a%2Fb?c#d;e=f&g", id="what a URL separates"),
        pytest.param("\u00e4\u2713\U0001d11e~*", "%C3%A4\u2713\U0001d11e~*", id="not ASCII"),
    ],
)
def test_a_call_reaches_the_subscription_of_exactly_this_name(world: World, name: str, another: str) -> None:
    admin, topic = world.admin, _topic()
    admin.create_topic(topic)
    admin.ensure_subscription(topic, name)
    assert [*admin.internal_stats(topic).cursors] == [encode_name(name)]
    admin.ensure_subscription(topic, another)
    world.publish(topic, b"old", {})
    before = admin.internal_stats(topic).mark_deleted(another)
    world.wait(2.1)
    world.publish(topic, b"new", {})

    def has_moved() -> bool:
        admin.expire_messages(topic, name, older_than_seconds=1)
        stats = admin.internal_stats(topic)
        return stats.entries_after(stats.mark_deleted(name)) < 2

    deadline = time.monotonic() + 10
    while not has_moved() and time.monotonic() < deadline:
        time.sleep(0.2)

    assert has_moved()
    assert admin.internal_stats(topic).mark_deleted(another) == before
    admin.delete_topic(topic, force=True)


def test_no_topic_is_created_without_its_namespace(admin: Admin) -> None:
    topic = f"persistent://no-such-{uuid4().hex[:8]}/ns/x"
    with pytest.raises(RefusedError):
        admin.create_partitioned_topic(topic, 1)
    assert admin.partitions(topic) is None
    assert admin.namespaces(topic.split("/")[2]) == []


def test_no_subscription_is_created_on_a_missing_topic(admin: Admin) -> None:
    topic = _topic()

    with pytest.raises(RefusedError, match="there is no topic"):
        admin.ensure_subscription(topic, "s")
    with pytest.raises(RefusedError, match="there is no topic"):
        admin.last_positions(topic)

    assert admin.partitions(topic) is None


@pytest.mark.parametrize("namespace", ["pulsar/system", NAMESPACE])
def test_policies_are_in_force_once_set(admin: Admin, namespace: str) -> None:
    topic = f"persistent://{namespace}/contract-{uuid4().hex}"
    admin.create_partitioned_topic(topic, 1)

    admin.set_retention(topic, minutes=60, megabytes=-1)
    admin.set_message_ttl(topic, seconds=120)
    admin.set_deduplication(topic, enabled=True)
    admin.set_backlog_quota_unlimited(topic)
    assert admin.max_message_bytes(topic) == 0
    admin.set_max_message_bytes(topic, 20_000)

    assert admin.max_message_bytes(topic) == 20_000
    assert admin.retention(topic) == (60, -1)
    assert admin.message_ttl(topic) == 120
    assert admin.deduplication(topic)
    assert {kind: quota["limitSize"] for kind, quota in admin.backlog_quota(topic).items()} == {
        "destination_storage": -1,
        "message_age": -1,
    }
    admin.delete_topic(topic)


@pytest.mark.parametrize(("namespace", "does"), [("pulsar/system", False), (NAMESPACE, True)])
def test_deduplication_works_except_on_the_brokers_own_topics(world: World, namespace: str, does: bool) -> None:
    admin, topic = world.admin, f"persistent://{namespace}/contract-{uuid4().hex}"
    admin.create_partitioned_topic(topic, 2)
    admin.set_deduplication(topic, enabled=True)

    deadline = time.monotonic() + (0 if isinstance(admin, MemoryPulsar) else 5)
    while not (found := admin.deduplicates(topic)) and time.monotonic() < deadline:
        time.sleep(0.2)

    assert found is does
    admin.delete_topic(topic, force=True)


def test_a_topic_is_deleted_once_with_its_partitions(admin: Admin) -> None:
    partitioned, plain = _topic(), _topic()
    admin.create_partitioned_topic(partitioned, 2)
    admin.create_topic(plain)

    for topic in (partitioned, plain):
        assert admin.delete_topic(topic, force=True)
        assert not admin.delete_topic(topic)
        assert admin.partitions(topic) is None


def test_messages_are_found_by_time_and_read_between_positions(world: World) -> None:
    admin, topic = world.admin, _topic()
    partition = f"{topic}-partition-0"
    admin.create_partitioned_topic(topic, 1)
    admin.ensure_subscription(topic, "s")
    for number in range(3):
        world.publish(partition, b"%d" % number, {"number": str(number)})

    last = admin.last_positions(topic)
    stats = admin.internal_stats(partition)
    messages = list(world.reader.read(last))
    assert [(each.payload, each.properties["number"], each.batch_index) for each in messages] == [
        (b"0", "0", -1),
        (b"1", "1", -1),
        (b"2", "2", -1),
    ]
    assert [(each.ledger_id, each.entry_id) for each in messages] == [(last[partition][0], entry) for entry in range(3)]
    assert last[partition] == (messages[-1].ledger_id, 2)
    assert {each.partition for each in messages} == {partition}
    assert stats.entries_after(stats.mark_deleted("s")) == 3
    first = (messages[0].ledger_id, 0)
    assert [each.payload for each in world.reader.read(last, after={partition: first})] == [b"1", b"2"]
    assert [each.payload for each in world.reader.read({partition: first})] == [b"0"]
    assert list(world.reader.read(last, after=last)) == []
    ledger = first[0]
    some = [EntrySpan(ledger - 1, 0, 5), EntrySpan(ledger, 0, 0), EntrySpan(ledger, 2, 9)]
    assert [each.payload for each in world.reader.read_entries(partition, some)] == [b"0", b"2"]
    assert list(world.reader.read_entries(partition, some[:1])) == [], "a ledger that is not there"
    assert admin.position_at(partition, messages[0].publish_ms) <= first
    admin.delete_topic(topic, force=True)


def test_an_empty_partition_has_nothing_to_read(world: World) -> None:
    topic = _topic()
    world.admin.create_partitioned_topic(topic, 2)
    assert list(world.reader.read(world.admin.last_positions(topic))) == []
    world.admin.delete_topic(topic, force=True)


@pytest.mark.cluster
def test_maintenance_calls_work(cluster: Any) -> None:
    with PulsarAdmin(PulsarAdminSettings(admin_url=cluster.addresses.admin)) as admin:
        topic = _topic()
        admin.create_topic(topic)

        admin.check_health()
        admin.trim(topic)
        admin.unload(topic)
        assert len(admin.clusters()) >= 1
        admin.delete_topic(topic)


@pytest.mark.cluster
def test_a_namespace_lists_its_topics_and_a_subscription_its_backlog(cluster: Any) -> None:
    with PulsarAdmin(PulsarAdminSettings(admin_url=cluster.addresses.admin)) as admin:
        topic = f"persistent://contract-{uuid4().hex[:8]}/ns/x"
        assert admin.backlog(topic, "s") == 0
        admin.ensure_namespace(topic)
        admin.create_partitioned_topic(topic, 3)
        admin.ensure_subscription(topic, "a b/c")
        partitions = {f"{topic}-partition-{index}" for index in range(3)}
        assert partitions < set(admin.topics(namespace_of(topic)))  # beside the namespace's system topics
        assert admin.backlog(topic, "a b/c") == 0


def test_the_brokers_metadata_store_is_zookeeper(world: World) -> None:
    stores = world.admin.metadata_stores()
    assert stores["metadataStoreUrl"].startswith("zk:")
    assert not any(other_store(url) for url in stores.values())
