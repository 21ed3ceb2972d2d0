"""Which topic a request is sent to, and when a lane is created."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import RefusedError, UnavailableError
from streaming.topics import routing
from streaming.topics.routing import LaneUnavailableError, NoLaneError, RequestTopics
from streaming.topics.setup import ensure_request_topic, require_sendable
from udfs.paths import tenant_of

SHARED = "persistent://pulsar/system/__ledger_deletion"


def lane(tenant: str) -> str:
    return f"persistent://{tenant}/ledger-deletion/__ledger_deletion"


def settings_with(folder: Path, text: str = 'lanes = "tenant"') -> Settings:
    file = folder / "config.toml"
    file.write_text(f"[topics]\n{text}\n[pulsar]\ntimeout_seconds = 1\n")
    return load(file)


class Slow:
    """A broker that answers when it is released."""

    def __init__(self) -> None:
        self.is_asked, self.release = Event(), Event()

    def wait(self) -> None:
        self.is_asked.set()
        self.release.wait(60)


class Scene:
    """A cluster with tenants that have applications, and the topics of a sender."""

    def __init__(self, settings: Settings, *tenants: str, most_remembered: int = routing.MOST_REMEMBERED) -> None:
        self.pulsar = MemoryPulsar()
        self.pulsar.known_namespaces |= {f"{tenant}/app" for tenant in tenants}
        self.settings = settings
        self.now_s = 0.0
        self.refused: set[str] = set()
        self.hanging: set[str] = set()
        self.slow: dict[str, Slow] = {}  # by tenant
        self.asked: list[str] = []
        self.pulsar.faults.before(self._fail)
        self.topics = RequestTopics(settings, self._ensure, self._check, lambda: self.now_s, most_remembered)

    def topic_for(self, tenant: str, namespace: str = "app") -> str:
        return self.topics.topic_for(f"persistent://{tenant}/{namespace}/orders")

    def _ensure(self, topic: str) -> None:
        self.asked.append(topic)
        if slow := self.slow.get(tenant_of(topic)):
            slow.wait()
        ensure_request_topic(self.pulsar, self.settings, topic)

    def _check(self, topic: str) -> None:
        require_sendable(self.pulsar, self.settings, topic)

    def _fail(self, _operation: str, names: Sequence[str]) -> None:
        for name in names:
            if any(name.startswith(f"persistent://{tenant}/") for tenant in self.refused):
                raise RefusedError("403 forbidden")
            if any(name.startswith(f"persistent://{tenant}/") for tenant in self.hanging):
                raise UnavailableError("no answer")


def test_nothing_is_created_before_a_request_and_only_its_tenants_lane_by_it(tmp_path: Path) -> None:
    scene = Scene(settings_with(tmp_path), "acme", "rival")
    before = set(scene.pulsar.known_namespaces)
    assert scene.pulsar.topics == {}
    assert scene.topic_for("acme") == lane("acme")
    assert scene.pulsar.topics.keys() == {lane("acme")}
    assert scene.pulsar.known_namespaces == {*before, "acme/ledger-deletion"}


def test_a_lane_has_its_subscription_and_policies_before_it_is_used(tmp_path: Path) -> None:
    scene = Scene(settings_with(tmp_path, 'lanes = "tenant"\nlane_partitions = 3'), "acme")
    topic, pulsar = scene.topic_for("acme"), scene.pulsar
    assert pulsar.partitions(topic) == 3
    assert all(part.cursors for part in pulsar.topics[topic].partitions.values())
    assert pulsar.retention(topic) == (scene.settings.topics.retention_minutes, -1)
    assert all(quota["limitSize"] == -1 for quota in pulsar.backlog_quota(topic).values())
    assert "acme/ledger-deletion" in pulsar.closed_namespaces, "no broker creates another topic there"


def test_trusted_tenants_and_v1_names_use_the_shared_topic(tmp_path: Path) -> None:
    scene = Scene(settings_with(tmp_path), "acme")
    assert scene.topic_for("pulsar", "system") == SHARED
    assert scene.topics.topic_for("persistent://acme/west/app/orders") == SHARED
    assert scene.topics.topic_for("acme/app/persistent/no%2Ftopic") == SHARED, "it has no valid name"
    assert scene.pulsar.topics.keys() == {SHARED}


@pytest.mark.parametrize("lanes", ["tenant", "namespace"])
def test_a_deleted_tenant_or_namespace_is_not_created_again(tmp_path: Path, lanes: str) -> None:
    scene = Scene(settings_with(tmp_path, f'lanes = "{lanes}"'), "acme")
    before = set(scene.pulsar.known_namespaces)
    for tenant, namespace in (("ghost", "app"), *([("acme", "gone")] if lanes == "namespace" else [])):
        with pytest.raises(NoLaneError, match=f"tenant {tenant} has no lane"):
            scene.topic_for(tenant, namespace)
    assert scene.pulsar.topics == {}
    assert scene.pulsar.known_namespaces == before


@pytest.mark.parametrize("is_allowed", [False, True])
def test_the_shared_topic_replaces_a_lane_only_if_the_operator_allows_it(
    tmp_path: Path, is_allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(
        settings_with(tmp_path, f'lanes = "tenant"\nshared_without_lane = {str(is_allowed).lower()}'), "acme", "rival"
    )
    scene.refused.add("acme")
    if is_allowed:
        assert scene.topic_for("acme") == SHARED
    else:
        with pytest.raises(NoLaneError, match="tenant acme has no lane"):
            scene.topic_for("acme")
        assert SHARED not in scene.pulsar.topics
    assert "tenant acme has no lane" in caplog.text
    assert scene.topic_for("rival") == lane("rival"), "other tenants are not concerned"


def test_a_lane_is_checked_once_a_minute_and_recreated_if_it_was_deleted(tmp_path: Path) -> None:
    scene = Scene(settings_with(tmp_path), "acme")
    topic = scene.topic_for("acme")
    assert scene.topic_for("acme") == topic
    assert scene.asked == [topic]
    scene.pulsar.delete_topic(topic, force=True)
    scene.now_s += routing.REMEMBERED_SECONDS
    assert scene.topic_for("acme") == topic
    assert scene.pulsar.partitions(topic) == 1


def test_requests_that_were_sent_while_the_lane_was_deleted_count_as_lost(tmp_path: Path) -> None:
    scene = Scene(settings_with(tmp_path), "acme")
    topic = scene.topic_for("acme")
    scene.topics.check_sent(topic)
    scene.pulsar.delete_topic(topic, force=True)
    scene.pulsar.closed_namespaces.clear()
    with pytest.raises(UnavailableError, match="it was deleted"):
        scene.topics.check_sent(topic)
    scene.pulsar.connect(topic)
    with pytest.raises(UnavailableError, match="is not partitioned"):
        scene.topics.check_sent(topic)
    with pytest.raises(NoLaneError, match="is not partitioned"):
        scene.topic_for("acme")


def test_a_tenant_whose_lanes_hang_is_waited_for_once_a_minute(tmp_path: Path) -> None:
    scene = Scene(settings_with(tmp_path, 'lanes = "namespace"'), "acme", "rival")
    scene.pulsar.known_namespaces |= {f"acme/ns{number}" for number in range(9)}
    scene.hanging.add("acme")
    for number in range(9):
        with pytest.raises(LaneUnavailableError):
            scene.topic_for("acme", f"ns{number}")
        scene.topic_for("rival")
    assert len([topic for topic in scene.asked if "acme" in topic]) == 1
    scene.hanging.clear()
    scene.now_s += routing.REMEMBERED_SECONDS
    assert scene.topic_for("acme", "ns0").startswith("persistent://acme/ns0/")


def test_pulsar_is_given_up_if_it_answers_for_no_tenant(tmp_path: Path) -> None:
    tenants = [f"t{number}" for number in range(9)]
    scene = Scene(settings_with(tmp_path), *tenants)
    scene.hanging.update(tenants)
    errors = []
    for tenant in tenants[:5]:
        with pytest.raises(UnavailableError) as raised:
            scene.topic_for(tenant)
        errors.append(raised.type)
    assert errors == [LaneUnavailableError] * 4 + [UnavailableError]


def test_a_bounded_number_of_lanes_is_remembered(tmp_path: Path) -> None:
    scene = Scene(settings_with(tmp_path), "a", "b", "c", most_remembered=2)
    for tenant in ("a", "b", "a", "c", "a", "b"):
        scene.topic_for(tenant)
    assert scene.asked == [lane("a"), lane("b"), lane("c"), lane("b")]


def test_a_lane_that_is_being_created_delays_only_its_own_requests(tmp_path: Path) -> None:
    scene = Scene(settings_with(tmp_path), "acme", "rival")
    slow = scene.slow["acme"] = Slow()
    with ThreadPoolExecutor(3) as threads:
        try:
            own = [threads.submit(scene.topic_for, "acme") for _ in range(2)]
            assert slow.is_asked.wait(20)
            assert threads.submit(scene.topic_for, "rival").result(20) == lane("rival")
        finally:
            slow.release.set()
        assert [each.result(20) for each in own] == [lane("acme")] * 2
    assert scene.asked.count(lane("acme")) == 1
