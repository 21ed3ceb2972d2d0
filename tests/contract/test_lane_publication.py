"""A publication to lanes: each tenant's requests are in its lane exactly once, whatever happens to other lanes."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from uuid import uuid4

import pulsar as library
import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.readers.read import PulsarReader
from streaming.audit import audit_columns as a
from streaming.audit.audit_options import AuditOptions, FindingFilters
from streaming.audit.output import Output
from streaming.audit.publication.orphan_requests import OrphanRequests, OrphansRequested
from streaming.audit.publication.publication_plan import plan_name, plans
from streaming.audit.tables import Rows, Tables
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.sandbox.cluster import Cluster
from streaming.topics.requests import publish_lines
from streaming.topics.routing import request_topics
from tests.builders import data_request
from tests.contract.test_lanes import CONFIG
from tests.unit.audit.frames import finding, findings_of
from tests.unit.audit.results import output_at
from udfs import columns as c
from udfs.records import PendingDelete
from udfs.requests.lanes import Lanes
from udfs.requests.request_format import decode, encode

pytestmark = pytest.mark.cluster


class Scene:
    """A cluster with two tenants of applications and one that does not exist, and an orphan of each."""

    def __init__(self, settings: Settings, folder: Path, tables: Tables, admin: PulsarAdmin) -> None:
        self.settings, self.tables, self.admin = settings, tables, admin
        self.output: Output = output_at(folder)
        self.tenants = [f"{name}-{uuid4().hex[:8]}" for name in ("acme", "rival", "ghost")]
        for tenant in self.tenants[:2]:
            admin.ensure_namespace(f"persistent://{tenant}/app/x")

    def lane(self, number: int) -> str:
        return f"persistent://{self.tenants[number]}/ledger-deletion/__ledger_deletion"

    def orphans(self) -> Rows:
        owners = [f"{tenant}/app/persistent/t" for tenant in self.tenants]
        rows = (
            finding(ledger_id, **{a.MANAGED_LEDGER: owner, c.REFERENCE_KEY: f"data:{owner}"})
            for ledger_id, owner in enumerate([*owners, *owners], start=1)
        )
        return self.tables.keep(findings_of(self.tables, *rows))

    def publish(self, *, is_repeated: bool = False) -> OrphansRequested:
        options = AuditOptions(recheck_seconds=0, filters=FindingFilters())
        return OrphanRequests(
            settings=self.settings, output=self.output, options=options, clock=SystemClock(), is_repeated=is_repeated
        ).publish("1", self.orphans())

    def requested(self) -> list[list[int]]:
        """Return the ledgers that each tenant's lane has requests for."""
        reader = PulsarReader(self.settings.pulsar)
        found = []
        for number in range(3):
            lane = self.lane(number)
            last = self.admin.last_positions(lane) if self.admin.partitions(lane) else {}
            requests = [decode(message.payload) for message in reader.read(last)]
            found.append(sorted(each.ledger_id for each in requests if isinstance(each, PendingDelete)))
        return found


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    addresses = cluster.addresses
    file = tmp_path / "config.toml"
    file.write_text(CONFIG.format(lanes="tenant", pulsar=addresses.pulsar, admin=addresses.admin))
    (tmp_path / "out").mkdir()
    tables = Tables(tmp_path, Event())
    with PulsarAdmin(PulsarAdminSettings(admin_url=addresses.admin)) as admin:
        yield Scene(load(file), tmp_path / "out", tables, admin)
    tables.close()


@pytest.mark.parametrize("is_repeated", [False, True], ids=["once", "repeated"])
def test_what_could_not_be_sent_to_a_lane_is_sent_by_the_next_try_and_nothing_twice(
    scene: Scene, *, is_repeated: bool
) -> None:
    first = scene.publish(is_repeated=is_repeated)
    assert first.requests == 4
    assert {lane: count for lane, (count, _why) in first.unsent.items()} == {scene.lane(2): 2}
    assert scene.requested() == [[1, 4], [2, 5], []]
    assert scene.tenants[2] not in scene.admin.tenants(), "a deleted tenant is not created again"

    scene.admin.ensure_namespace(f"persistent://{scene.tenants[2]}/app/x")
    second = scene.publish(is_repeated=is_repeated)
    assert not second.unsent
    assert scene.requested() == [[1, 4], [2, 5], [3, 6]]
    assert [plan.is_done for plan in plans(scene.output)] == [True]
    assert scene.publish(is_repeated=is_repeated).is_repetition is not is_repeated
    assert scene.requested() == [[1, 4], [2, 5], [3, 6]]


def test_a_lane_that_was_deleted_before_an_interrupted_publication_is_resumed_gets_its_requests_again(
    scene: Scene,
) -> None:
    assert scene.publish().unsent
    scene.admin.delete_topic(scene.lane(0), force=True)
    assert scene.publish().unsent.keys() == {scene.lane(2)}
    assert scene.requested() == [[1, 4], [2, 5], []]


def test_a_tenant_that_keeps_our_producers_off_its_lane_stops_only_its_own_requests(scene: Scene) -> None:
    assert request_topics(scene.settings, scene.admin).open_lane(scene.lane(0)) is None
    with client(scene.settings.pulsar) as opened:
        opened.create_producer(scene.lane(0), access_mode=library.ProducerAccessMode.Exclusive)
        assert scene.publish().unsent.keys() == {scene.lane(0), scene.lane(2)}
        lines = [encode(data_request(7, f"{tenant}/app/persistent/t")) for tenant in scene.tenants[:2]]
        report = publish_lines(scene.settings, scene.admin, lines)
        assert (report.published, set(report.unsent)) == (1, {scene.lane(0)})
        assert scene.requested() == [[], [2, 5, 7], []]

    assert scene.publish().unsent.keys() == {scene.lane(2)}
    assert scene.requested() == [[1, 4], [2, 5, 7], []]


def test_a_publication_that_an_earlier_version_planned_is_resumed(scene: Scene) -> None:
    topic = f"persistent://{scene.tenants[0]}/app/requests"
    scene.admin.create_partitioned_topic(topic, 2)
    one = scene.settings.topics.model_copy(update={"lanes": Lanes.ONE, "requests": (topic,)})
    scene.settings = scene.settings.model_copy(update={"topics": one})
    name = plan_name("1", FindingFilters())
    planned = {"name": name, "audit_id": "1", "at_ms": 1, "requests": 6, "size_bytes": 1, "is_done": False}
    plan = {**planned, "after": scene.admin.last_positions(topic)}
    scene.output.save(f"asked/publication={name}", scene.orphans())
    scene.output.write(f"published/{name}.json", json.dumps(plan).encode())

    assert scene.publish().requests == 6
    assert scene.publish().is_repetition
    messages = PulsarReader(scene.settings.pulsar).read(scene.admin.last_positions(topic))
    assert len(list(messages)) == 6
