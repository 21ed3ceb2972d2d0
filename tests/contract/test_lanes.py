"""Lanes on the fake and on a real broker: creation, races, interruptions, and lanes that were deleted."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.sender import MemoryRequestSender
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.producer import PulsarRequestSender
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ConfigError, RefusedError, UnavailableError
from streaming.ports import RequestSender, TopicAdmin
from streaming.topics.routing import NoLaneError, RequestTopics, request_topics
from streaming.topics.senders import RequestSenders
from streaming.topics.setup import ensure_request_topic
from tests.builders import data_request

CONFIG = """
[topics]
lanes = "{lanes}"
lane_partitions = 2
[pulsar]
service_url = "{pulsar}"
admin_url = "{admin}"
timeout_seconds = 10
"""


class Admin(TopicAdmin, Protocol):
    """The port with what a tenant's administrator may do beside us."""

    def create_topic(self, topic: str) -> bool: ...

    def delete_topic(self, topic: str, *, force: bool = False) -> bool: ...


@dataclass(frozen=True)
class World:
    """A Pulsar with a tenant, whose namespace `app` has applications."""

    admin: Admin
    open_sender: Callable[[Settings, str], RequestSender]
    settings: Mapping[str, Settings]  # by topics.lanes
    tenant: str

    def lane(self, lanes: str = "tenant") -> str:
        namespace = "ledger-deletion" if lanes == "tenant" else "app"
        return f"persistent://{self.tenant}/{namespace}/__ledger_deletion"

    def ensure(self, lanes: str = "tenant") -> None:
        ensure_request_topic(self.admin, self.settings[lanes], self.lane(lanes))

    def require_whole(self, lanes: str = "tenant") -> None:
        """Fail unless the lane has all that it needs."""
        settings, lane = self.settings[lanes], self.lane(lanes)
        assert self.admin.partitions(lane) == 2
        for number in range(2):
            stats = self.admin.internal_stats(f"{lane}-partition-{number}")
            assert stats.has_subscription(settings.topics.subscription)
        assert self.admin.retention(lane) == (settings.topics.retention_minutes, -1)
        assert self.admin.message_ttl(lane) == 0
        assert {quota["limitSize"] for quota in self.admin.backlog_quota(lane).values()} == {-1}


@pytest.fixture(params=["memory", pytest.param("pulsar", marks=pytest.mark.cluster)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    tenant = f"lane-{uuid4().hex[:8]}"
    addresses = ("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")
    if request.param == "pulsar":
        real = request.getfixturevalue("cluster").addresses
        addresses = (real.pulsar, real.admin)

    def loaded(lanes: str) -> Settings:
        file = tmp_path / f"{lanes}.toml"
        file.write_text(CONFIG.format(lanes=lanes, pulsar=addresses[0], admin=addresses[1]))
        return load(file)

    settings = {lanes: loaded(lanes) for lanes in ("tenant", "namespace")}

    with ExitStack() as stack:
        memory = MemoryPulsar()
        admin: Admin = memory
        if request.param == "pulsar":
            admin = stack.enter_context(PulsarAdmin(PulsarAdminSettings(admin_url=addresses[1])))
        admin.ensure_namespace(f"persistent://{tenant}/app/x")

        def open_sender(settings: Settings, topic: str) -> RequestSender:
            if request.param == "pulsar":
                return PulsarRequestSender(settings.pulsar, topic)
            return MemoryRequestSender(memory, topic)

        yield World(admin, open_sender, settings, tenant)


@pytest.mark.parametrize("lanes", ["tenant", "namespace"])
def test_a_lane_is_created_whole_by_its_first_request_and_stays_as_it_is(world: World, lanes: str) -> None:
    assert world.admin.namespaces(world.tenant) == [f"{world.tenant}/app"]
    assert world.admin.partitioned_topics(f"{world.tenant}/app") == []
    for _ in range(2):
        world.ensure(lanes)
        world.require_whole(lanes)
    assert world.admin.namespaces(world.tenant) == sorted(
        {f"{world.tenant}/app", *([f"{world.tenant}/ledger-deletion"] if lanes == "tenant" else [])}
    )


@pytest.mark.parametrize("lanes", ["tenant", "namespace"])
def test_senders_that_create_a_lane_at_the_same_time_all_find_it_whole(world: World, lanes: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        for created in [pool.submit(world.ensure, lanes) for _ in range(4)]:
            created.result()
    world.require_whole(lanes)


def _namespace(world: World) -> None:
    world.admin.ensure_namespace(world.lane())


def _without_a_partition(world: World) -> None:
    _without_subscription(world)
    world.admin.delete_topic(f"{world.lane()}-partition-1")


def _without_subscription(world: World) -> None:
    _namespace(world)
    world.admin.create_partitioned_topic(world.lane(), 2)


def _without_policies(world: World) -> None:
    _without_subscription(world)
    world.admin.ensure_subscription(world.lane(), world.settings["tenant"].topics.subscription)


@pytest.mark.parametrize(
    "interrupted",
    [_namespace, _without_a_partition, _without_subscription, _without_policies],
    ids=lambda f: f.__name__,
)
def test_the_next_sender_completes_what_a_killed_sender_left(
    world: World, interrupted: Callable[[World], None]
) -> None:
    interrupted(world)
    world.ensure()
    world.require_whole()


def test_a_missing_tenant_or_namespace_is_refused_and_stays_missing(world: World) -> None:
    ghost = f"ghost-{uuid4().hex[:8]}"
    for lanes, owner, tenant in (
        ("tenant", f"persistent://{ghost}/ns/t", ghost),
        ("namespace", f"persistent://{ghost}/ns/t", ghost),
        ("namespace", f"persistent://{world.tenant}/gone/t", world.tenant),
    ):
        with pytest.raises(NoLaneError, match=f"tenant {tenant} has no lane"):
            request_topics(world.settings[lanes], world.admin).topic_for(owner)
    assert ghost not in world.admin.tenants()
    assert world.admin.namespaces(world.tenant) == [f"{world.tenant}/app"]


def _senders(world: World, lanes: str) -> tuple[RequestTopics, RequestSenders]:
    settings = world.settings[lanes]
    topics = request_topics(settings, world.admin)
    return topics, RequestSenders(topics, lambda topic: world.open_sender(settings, topic))


def test_a_request_to_a_tenants_lane_that_was_deleted_is_an_error_and_nothing_is_created(world: World) -> None:
    """The producer is new; the check of the lane is remembered."""
    request = data_request(5, f"{world.tenant}/app/persistent/t")
    topics, senders = _senders(world, "tenant")
    assert topics.topic_for(request.managed_ledger) == world.lane()
    world.admin.delete_topic(world.lane(), force=True)
    with pytest.raises(UnavailableError):
        senders.start_send(request).result()
    senders.close()
    assert world.admin.partitions(world.lane()) is None


def test_a_request_to_a_namespaces_lane_that_was_deleted_is_noticed(world: World) -> None:
    """The broker creates an unpartitioned topic: the namespace is the tenant's, so we forbid nothing there."""
    request = data_request(5, f"{world.tenant}/app/persistent/t")
    topics, senders = _senders(world, "namespace")
    senders.send(request.managed_ledger, None, b"{}").result()
    senders.check_sent()
    senders.close()
    assert topics.topic_for(request.managed_ledger) == world.lane("namespace")
    world.admin.delete_topic(world.lane("namespace"), force=True)
    assert senders.start_send(request).result(), "the broker confirms it"
    with pytest.raises(UnavailableError, match="may be lost"):
        senders.check_sent()
    senders.close()
    with pytest.raises(NoLaneError, match="is not partitioned"):
        senders.start_send(request)


def test_a_topic_with_the_name_of_a_partition_is_reported(world: World) -> None:
    """A broker creates it for a producer, if the partitioned topic was deleted."""
    producer = world.open_sender(world.settings["namespace"], f"{world.lane('namespace')}-partition-0")
    producer.send(None, b"{}").result()
    producer.close()
    with pytest.raises((ConfigError, RefusedError), match="has the name of one of its partitions"):
        world.ensure("namespace")
