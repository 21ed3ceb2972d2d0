"""Lanes on the real cluster: each message of a lane ends in one receipt, whatever its tenant does."""

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdminSettings
from streaming.adapters.pulsar.doorbell.doorbell import Doorbell
from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.clients import admin_for
from streaming.sandbox.cluster import Cluster
from streaming.state import receipts
from tests.integration.conftest import Deployment, deployment, load_hook, payload, wait_until
from tests.integration.odd_messages import ODD, Senders, senders_without_java
from udfs import columns as c
from udfs.records import Reason

pytestmark = [pytest.mark.cluster]

VALID = ("ALREADY_GONE", "NOT_FOUND")
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
    """A service that reads lanes; its znodes are its own, because only one service of a cluster may read lanes."""
    deployed = deployment(cluster, tmp_path)
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
            admin.ensure_namespace(lane.topic)
            admin.create_partitioned_topic(lane.topic, 1)
            admin.ensure_subscription(lane.topic, service.settings.topics.subscription)
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
