"""Lanes on the real cluster: each message of a lane ends in one receipt, whatever its tenant does."""

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.doorbell.doorbell import Doorbell
from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.clients import admin_for
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Instance, Part
from streaming.sandbox.parts import part_clients
from streaming.state import receipts
from streaming.topics.setup import ensure_topics
from tests.integration.conftest import (
    Deployment,
    create_tenant,
    deployment,
    killed_at_the_end,
    load_hook,
    payload,
    running_cluster,
    stop,
    wait_until,
)
from tests.integration.odd_messages import ODD, Senders, senders_without_java
from udfs import columns as c
from udfs.records import Reason

pytestmark = [pytest.mark.cluster]

VALID = ("ALREADY_GONE", "NOT_FOUND")
DELETED = ("DELETED", "UNREFERENCED")
SETTLE = "before:streaming.adapters.pulsar.doorbell.doorbell:Doorbell.settle"  # receipts are written, nothing acked
_ids = iter(range(7 * 10**15, 8 * 10**15))  # above every id of a real cluster


@dataclass(frozen=True)
class Lane:
    """The lane of a tenant that no other test has."""

    service: Deployment
    send: Senders
    tenant: str

    @property
    def topic(self) -> str:
        return f"persistent://{self.tenant}/ledger-deletion/__ledger_deletion"

    @property
    def partition(self) -> str:
        return f"{self.topic}-partition-0"

    def create(self, admin: PulsarAdmin) -> None:
        admin.ensure_namespace(self.topic)
        admin.create_partitioned_topic(self.topic, 1)
        admin.ensure_subscription(self.topic, self.service.settings.topics.subscription)

    def publish(self, *kinds: str) -> None:
        """Send odd messages of these kinds, and a request for each "valid"."""
        for kind in kinds:
            request = payload(f"{self.tenant}/ns/persistent/nowhere", next(_ids))
            if kind == "valid":
                self.send.raw.send(self.partition, request)
            else:
                ODD[kind](self.send, self.partition, request)

    @property
    def receipts(self) -> list[dict[str, Any]]:
        columns = [*c.POSITION, c.OUTCOME, c.REASON]
        rows = receipts.rows(self.service.settings.state_dir, columns=columns)
        return [row for row in rows if row[c.SOURCE] == self.partition]

    @property
    def outcomes(self) -> Counter[tuple[str, str]]:
        rows = self.receipts
        assert len({tuple(row[name] for name in c.POSITION) for row in rows}) == len(rows), (
            "a message was processed twice"
        )
        return Counter((row[c.OUTCOME], row[c.REASON]) for row in rows)

    @property
    def is_watched(self) -> bool:
        with admin_for(self.service.settings) as admin:
            stats = admin.stats(self.partition)
        return f"{self.service.settings.topics.subscription}-doorbell" in stats["subscriptions"]

    @property
    def backlog(self) -> int:
        (counted,) = self.service.console.json("backlog")
        return int(counted["topics"].get(self.topic, 0))

    @property
    def is_acknowledged(self) -> bool:
        with admin_for(self.service.settings) as admin:
            stats = admin.internal_stats(self.partition)
        return stats.mark_deleted(self.service.settings.topics.subscription) == stats.last


@pytest.fixture
def service(cluster: Cluster, tmp_path: Path) -> Deployment:
    return with_lanes(deployment(cluster, tmp_path))


def with_lanes(deployed: Deployment) -> Deployment:
    """Let a service read lanes; its znodes are its own, because only one service of a cluster may read lanes."""
    text = deployed.config.read_text().replace("[topics]\n", '[topics]\nlanes = "tenant"\n')
    deployed.config.write_text(text.replace("[zookeeper]\n", f'[zookeeper]\nown_root = "/lanes-{uuid4().hex[:8]}"\n'))
    return deployed


@pytest.fixture
def send(service: Deployment) -> Iterator[Senders]:
    with senders_without_java(service.settings.pulsar.service_url) as opened:
        yield opened


@pytest.fixture
def lanes(service: Deployment, send: Senders) -> Iterator[tuple[Lane, Lane]]:
    """Two lanes; deleted at the end, because they would be read by the next test's service too."""
    made = Lane(service, send, f"odd{uuid4().hex[:8]}"), Lane(service, send, f"other{uuid4().hex[:8]}")
    with admin_for(service.settings) as admin:
        for lane in made:
            lane.create(admin)
        yield made
        for lane in made:
            admin.delete_topic(lane.topic, force=True)


@pytest.mark.parametrize(
    ("kinds", "valid", "dead"),
    [
        pytest.param(("valid", "flagged_as_encrypted", "valid"), 2, (Reason.ENCRYPTED,), id="read in a pass"),
        pytest.param(
            (
                *("valid", "event_time_2_to_62", "flagged_as_encrypted", "marker_with_a_request", "valid"),
                *("compressed", "batch_of_fewer_than_declared", "metadata_is_garbage", "valid"),
            ),
            3 + 1 + 4 + 1,
            (Reason.ENCRYPTED, Reason.UNREADABLE, Reason.NOT_SHOWN),
            id="read alone",
            marks=pytest.mark.long,
        ),
    ],
)
def test_each_odd_message_of_a_lane_ends_in_one_receipt_and_other_lanes_are_read(
    lanes: tuple[Lane, Lane], kinds: tuple[str, ...], valid: int, dead: tuple[Reason, ...]
) -> None:
    odd, other = lanes
    odd.publish(*kinds)
    other.publish("valid", "valid")
    expected = Counter({VALID: valid}) + Counter(("DEAD_LETTER", str(each)) for each in dead)
    assert other.backlog == 2

    output = odd.service.console.run("run", "--until-idle")

    assert (odd.backlog, other.backlog) == (0, 0)
    assert odd.outcomes == expected, output[-4000:]
    assert other.outcomes == Counter({VALID: 2})
    assert odd.is_acknowledged
    assert other.is_acknowledged
    assert "PROBLEM" not in odd.service.call("check")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_transaction_that_never_ends_delays_its_lane_for_a_while(transactional: Cluster, tmp_path: Path) -> None:
    service = with_lanes(deployment(transactional, tmp_path))
    expected = Counter({VALID: 3, ("DEAD_LETTER", str(Reason.OPEN_TRANSACTION)): 1})
    with senders_without_java(service.settings.pulsar.service_url) as send:
        lane = Lane(service, send, f"open{uuid4().hex[:8]}")
        with admin_for(service.settings) as admin:
            lane.create(admin)
        lane.publish("valid", "open_unknown_to_the_coordinator", "valid", "valid")
        service.run("run", "--until-idle", seconds=400)
        assert lane.outcomes == expected
        assert lane.is_acknowledged

        log = tmp_path / "run.log"
        running = service.start("run", log=log)
        try:
            wait_until(lambda: lane.is_watched, running, log)
            time.sleep(5)  # until its backlog was read
            lane.publish("valid")
            expected[VALID] += 1
            wait_until(lambda: lane.outcomes == expected and lane.is_acknowledged, running, log, seconds=400)
        finally:
            stop(running)


@pytest.mark.long
def test_a_kill_before_the_acknowledgement_and_a_cursor_that_is_moved_back_repeat_nothing(
    lanes: tuple[Lane, Lane], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, _other = lanes
    service = lane.service
    lane.publish("valid", "flagged_as_encrypted", "valid")
    expected = Counter({VALID: 2, ("DEAD_LETTER", str(Reason.ENCRYPTED)): 1})
    with monkeypatch.context() as killing:
        load_hook(killing, "crash", CRASH_PIDS=tmp_path / "pid", CRASH_AT=SETTLE)
        assert service.start("run", "--until-idle", log=tmp_path / "run.log").wait(200) == -signal.SIGKILL
    assert lane.outcomes == expected
    assert not lane.is_acknowledged
    lane.publish("valid")
    expected[VALID] += 1
    service.run("run", "--until-idle", seconds=300)
    assert lane.outcomes == expected
    assert lane.is_acknowledged

    subscription = service.settings.topics.subscription
    admin = SnapshotAdmin(PulsarAdminSettings.of(service.settings.pulsar))
    running = service.start("run", log=tmp_path / "again.log")
    try:
        wait_until(lambda: "reading" in (tmp_path / "again.log").read_text(), running, tmp_path / "again.log")
        admin.reset_cursor(lane.partition, subscription, lane_start(lane))
        lane.publish("valid")
        expected[VALID] += 1
        log = tmp_path / "again.log"
        wait_until(lambda: lane.is_acknowledged and lane.outcomes == expected, running, log)
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(60)
    assert lane.outcomes == expected


def lane_start(lane: Lane) -> tuple[int, int]:
    """Return the position of the lane's first message."""
    with admin_for(lane.service.settings) as admin:
        return admin.internal_stats(lane.partition).ledgers[0][0], 0


@pytest.mark.long
def test_a_subscription_that_another_client_holds_stops_its_lane_alone(lanes: tuple[Lane, Lane]) -> None:
    held, other = lanes
    service = held.service
    holder = Doorbell(service.settings.pulsar, service.settings.topics.subscription)
    try:
        holder.watch(held.partition)
        held.publish("valid")
        assert holder.rung(60) == [held.partition]
        other.publish("valid")
        output = service.run("run", "--until-idle", code=3)
        assert held.topic in output
        assert held.outcomes == Counter()
        assert other.outcomes == Counter({VALID: 1})
    finally:
        holder.close()
    service.run("run", "--until-idle")
    assert held.outcomes == Counter({VALID: 1})


@dataclass
class TwoBrokers:
    """A lane of a tenant with leaked ledgers on one broker, and lanes of other tenants on a broker that hangs."""

    cluster: Cluster
    lane: Lane
    others: list[Lane]
    leaked: list[int]
    deleted: int = 0
    owner: str = "persistent://well/shop/carts"

    @property
    def service(self) -> Deployment:
        return self.lane.service

    @property
    def brokers(self) -> tuple[Instance, Instance]:
        well, hanging = self.cluster.spec.all_of(Part.BROKER)
        return well, hanging

    def settle(self) -> None:
        """Create all topics, each on its broker."""
        well, hanging = self.brokers
        with admin_for(self.service.settings) as admin:
            for lane in (self.lane, *self.others):
                lane.create(admin)
            ensure_topics(admin, self.service.settings)
            move(self.cluster, self.owner, well)
            for topic in (*self.service.settings.topics.owned, self.lane.topic):
                for number in range(admin.partitions(topic) or 0):
                    move(self.cluster, f"{topic}-partition-{number}", well)
        for lane in self.others:
            move(self.cluster, lane.partition, hanging)

    def is_deleted(self, running: "Popen[bytes]", log: Path) -> None:
        """Request a leaked ledger, and wait until it is deleted."""
        self.lane.send.raw.send(self.lane.partition, payload(self.owner, self.leaked.pop()))
        self.deleted += 1
        wait_until(lambda: self.service.outcomes()[DELETED] == self.deleted, running, log)

    def are_served(self, expected: "Counter[tuple[str, str]]", running: "Popen[bytes]", log: Path) -> None:
        """Wait until the requests of the other lanes have these final receipts; some were tried again meanwhile."""
        wait_until(lambda: self.service.outcomes() == expected + Counter({DELETED: self.deleted}), running, log)


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[TwoBrokers]:
    # the broker keeps its topics: it hangs for less than its session lasts
    settings = {"metadataStoreSessionTimeoutMillis": "40000", "loadBalancerSheddingEnabled": "false"}
    with running_cluster(tmp_path / "cluster", counts={Part.BROKER: 2}, broker_settings=settings) as cluster:
        service = with_lanes(deployment(cluster, tmp_path))
        urls = [f"pulsar://127.0.0.1:{cluster.spec.port(part, 'broker')}" for part in cluster.spec.all_of(Part.BROKER)]
        with senders_without_java(urls[0]) as to_well, senders_without_java(urls[1]) as to_hanging:
            others = [Lane(service, to_hanging, f"hanging{number}") for number in range(8)]
            scene = TwoBrokers(cluster, Lane(service, to_well, "well"), others, [])
            create_tenant(cluster, "well", "shop")
            topics.fill(cluster, scene.owner, 3, ["s"])
            scene.leaked.extend(ledger_list.make_synthetic(cluster, scene.owner, count=7, first_id=5_000_000))
            scene.settle()
            yield scene


@pytest.mark.long
def test_a_broker_that_hangs_stops_the_lanes_on_it_alone(two_brokers: TwoBrokers, tmp_path: Path) -> None:
    scene, log = two_brokers, tmp_path / "run.log"
    with killed_at_the_end(scene.service.start("run", log=log)) as running:
        scene.is_deleted(running, log)
        for lane in scene.others:
            lane.publish("valid")
        scene.are_served(Counter({VALID: 8}), running, log)
        for lane in scene.others:
            lane.publish("valid", "flagged_as_encrypted")
        with cluster_faults.paused(scene.cluster, scene.brokers[1]):
            for _ in range(5):
                scene.is_deleted(running, log)
        scene.are_served(Counter({VALID: 16, ("DEAD_LETTER", str(Reason.ENCRYPTED)): 8}), running, log)
        scene.is_deleted(running, log)
        stop(running)


def move(cluster: Cluster, partition: str, broker: Instance) -> None:
    """Move a partition's namespace bundle to a broker."""
    path = f"lookup/v2/topic/{partition.replace('://', '/')}"
    url = f"127.0.0.1:{cluster.spec.port(broker, 'broker_http')}"
    namespace = "/".join(partition.split("/")[2:4])

    def is_there() -> bool:
        found = part_clients.http_any("GET", cluster.serving.admin, path)
        if found.ok and json.loads(found.text)["httpUrl"].endswith(url):
            return True
        bundle = part_clients.http_any("GET", cluster.serving.admin, f"{path}/bundle").text
        topics.admin(cluster, "PUT", f"namespaces/{namespace}/{bundle}/unload?destinationBroker={url}")
        return False

    topics.wait_for(is_there, f"{partition} on {url}", seconds=60)
