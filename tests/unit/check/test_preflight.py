"""The preflight before the first start prints every line, and changes neither ZooKeeper, Pulsar nor a disk."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryBroker, MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.check.preflight import Line, Status, check, worst
from streaming.cli.main import app
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.coordination.lock import InstanceLock
from streaming.coordination.ownership import Ownership
from streaming.errors import ConfigError, ReaperError, SafetyError, UnavailableError
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.queries import checkpoints as checkpoints_of
from streaming.state.delta.delta_tables import opened
from streaming.topics import existing
from tests.builders import NOW_MS, ROOT, put
from tests.services import command_clients_of
from tests.unit.adapters.pulsar.frame_broker import Partition, serving
from tests.unit.reconcile.rows import write_rows
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.paths import BROKERS

DATA = Path(__file__).parents[2] / "data"


class World:
    """A cluster on which the service has never run."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tree = MemoryTree(ManualClock(NOW_MS))
        put(self.tree, f"{ROOT}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
        put(self.tree, f"{ROOT}/INSTANCEID", b"id")
        put(self.tree, BROKERS)
        self.brokers = MemoryStore(self.tree)
        self.brokers.create(f"{BROKERS}/broker-1:8080", b"{}", ephemeral=True)
        self.store = MemoryStore(self.tree)
        self.pulsar = MemoryPulsar(ManualClock(NOW_MS))
        self.broker = MemoryBroker()

    def look(self) -> dict[str, Line]:
        clients = command_clients_of(self.store, self.pulsar, broker=self.broker)
        return {line.what: line for line in check(self.settings, clients, ManualClock(NOW_MS))}


@pytest.fixture
def broker() -> Iterator[Partition]:
    """A broker's answer to a connection, before there is a topic."""
    with serving(Partition({}, None)) as partition:
        yield partition


@pytest.fixture
def world(tmp_path: Path, broker: Partition) -> World:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[pulsar]\nservice_url = "{broker.url}"\n'
        f'[zookeeper]\nledgers_root = "{ROOT}"\n[safety]\nexclusive_bookkeeper = true\n'
        f'[state]\ndir = "{tmp_path}/new/state"\n[checkpoints]\ndir = "{tmp_path}/new/checkpoints"\n'
    )
    return World(load(file))


def test_nothing_is_created_before_the_first_start(world: World, tmp_path: Path) -> None:
    before = world.tree.paths()

    lines = world.look()

    assert [line for line in lines.values() if line.status is Status.PROBLEM] == []
    for what in ("own root writable, clocks agree", "state directory", "checkpoints directory"):
        assert lines[what].status is Status.NOTE
        assert "does not exist yet; the first start creates it" in lines[what].says
        assert "if the service has run before" in lines[what].do
    assert lines["state of this cluster"].says == "not used yet"
    assert (world.tree.paths(), world.store.faults.effects) == (before, 0)
    assert (world.pulsar.topics, world.pulsar.faults.effects) == ({}, 0)
    assert [each.name for each in tmp_path.iterdir()] == ["config.toml"]


def test_a_wrong_service_url_is_found_before_any_topic_exists(world: World) -> None:
    line = world.look()["Pulsar service"]
    assert line.status is Status.OK
    assert "connected" in line.says
    pulsar = world.settings.pulsar.model_copy(update={"service_url": "pulsar://127.0.0.1:1"})
    world.settings = world.settings.model_copy(update={"pulsar": pulsar})
    line = world.look()["Pulsar service"]
    assert (line.status, line.exit_code) == (Status.PROBLEM, UnavailableError.exit_code)
    assert "pulsar://127.0.0.1:1 does not answer" in line.says
    assert world.pulsar.topics == {}


def test_the_rights_of_a_superuser_are_asked_for_before_the_first_start(world: World) -> None:
    assert world.look()["loaded topics"].says == "1 broker asked: each reports its loaded topics"
    world.broker.is_refused = True
    lines = world.look()
    line = lines["loaded topics"]
    assert (line.status, line.exit_code) == (Status.PROBLEM, ConfigError.exit_code)
    assert line.do.startswith("give this service's role the rights of a superuser")
    assert "the brokers' metadata store" not in lines, "its advice would mislead"
    assert worst(list(lines.values())) == ConfigError.exit_code


def test_a_broker_that_does_not_answer_for_itself_is_found(world: World) -> None:
    world.broker.faults.away = True
    line = world.look()["loaded topics"]
    assert (line.status, line.exit_code) == (Status.PROBLEM, UnavailableError.exit_code)
    assert "make every broker's web address reachable" in line.do


def test_a_migration_to_another_metadata_store_is_a_problem_for_an_operator(world: World) -> None:
    what = "still the brokers' metadata store"
    assert world.look()[what].status is Status.OK
    put(world.tree, MIGRATION_PATH, b'{"phase":"FAILED","targetUrl":"oxia://oxia1:6648/default"}')
    line = world.look()[what]
    assert (line.status, line.exit_code) == (Status.PROBLEM, SafetyError.exit_code)
    assert "to oxia://oxia1:6648/default has phase FAILED" in line.says
    assert "delete the znode" in line.says
    assert "holds.md" in line.do
    assert world.look()["brokers' sessions"].status is Status.NOTE, "the text is long enough for one line"


def test_a_store_without_a_brokers_session_is_a_problem_for_an_operator(world: World) -> None:
    assert world.look()["brokers' sessions"].says == "1 broker has a session in this ZooKeeper"
    world.brokers.expire_session()
    lines = world.look()
    line = lines["brokers' sessions"]
    assert (line.status, line.exit_code) == (Status.PROBLEM, UnavailableError.exit_code)
    assert "although the admin API answers" in line.says
    assert "loaded topics" not in lines, "its advice would mislead"


@pytest.mark.parametrize(
    ("has_connector", "remedy"),
    [
        pytest.param(False, "`ledger-reaper checkpoints convert` converts", id="of the other PySpark"),
        pytest.param(True, "Name it in [topics] as before", id="of other topics"),
    ],
)
def test_checkpoints_that_can_not_be_resumed_have_one_remedy(
    world: World, monkeypatch: pytest.MonkeyPatch, has_connector: bool, remedy: str
) -> None:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: has_connector)
    shutil.copytree(DATA / "checkpoint-v1", world.settings.checkpoints.dir)
    line = world.look()["checkpoints as configured"]
    assert (line.status, line.exit_code) == (Status.PROBLEM, ConfigError.exit_code)
    assert remedy in line.says
    assert line.do == "see the error, and checkpoints/README.md"


def test_a_broker_that_uses_another_store_is_a_problem_for_an_operator(world: World) -> None:
    world.pulsar.stores = {"metadataStoreUrl": "oxia://oxia1:6648/default"}
    line = world.look()["brokers' sessions"]
    assert (line.status, line.exit_code) == (Status.PROBLEM, SafetyError.exit_code)
    assert "metadataStoreUrl=oxia://oxia1:6648/default" in line.says


def test_everything_else_is_checked_if_a_service_does_not_answer(world: World) -> None:
    world.pulsar.faults.away = True
    lines = world.look()
    assert lines["Pulsar admin"].exit_code == UnavailableError.exit_code
    assert lines["ZooKeeper and ledger layout"].status is Status.OK
    assert "state directory" in lines
    assert "state of this cluster" not in lines
    assert "accounts" not in lines
    assert worst(list(lines.values())) == UnavailableError.exit_code


def test_held_tenants_are_named_until_an_operator_releases_them(world: World) -> None:
    name, root = world.settings.service.name, world.settings.zookeeper.own_root
    holds = TenantHolds(world.store, tenant_holds_path(root, name))
    holds.hold({"shop": "161 of the 200 owners known of tenant shop are gone at once"})
    line = world.look()["blast radius"]
    assert line.status is Status.PROBLEM
    assert "nothing of these tenants is deleted: shop: 161 of the 200" in line.says
    assert "resume" in line.do
    holds.release("shop")
    assert world.look()["blast radius"].says == "within the limits"


def test_another_clusters_directory_is_the_worst(world: World) -> None:
    state = Path(world.settings.state.dir)
    state.mkdir(parents=True)
    (state / "cluster.json").write_text('{"instance_id": "another"}')
    lines = world.look()
    assert "belongs to another" in lines["state of this cluster"].says
    assert worst(list(lines.values())) == 4


def _receipts(directory: Path) -> str:
    """Create a table of receipts there; returns its id."""
    write_rows(directory, "receipts", [(5, 0, -1)])
    table = opened(str(directory), "receipts")
    assert table is not None
    return str(table.metadata().id)


def test_a_second_service_on_the_same_topics_is_a_problem_and_the_first_is_named(world: World) -> None:
    root, first = world.settings.zookeeper.own_root, world.settings.topics.requests[0]
    assert world.look()["no other service on these topics"].status is Status.OK
    Ownership(world.store, root, "third").claim([first])
    line = world.look()["no other service on these topics"]
    assert (line.status, line.exit_code) == (Status.PROBLEM, 4)
    assert f"{first} is read by service 'third'" in line.says


def test_a_topic_that_passes_have_read_and_the_pattern_no_longer_matches_is_named(world: World) -> None:
    ownership = Ownership(world.store, world.settings.zookeeper.own_root, world.settings.service.name)
    former = "persistent://acme/reaper/d1"
    ownership.claim([*world.settings.topics.claims, former])
    world.pulsar.store(f"{former}-partition-0", (5, 1))
    line = world.look()["no topic left behind"]
    assert line.status is Status.NOTE
    assert f"{former}, which this service owns, is not read now" in line.says
    assert "/system/" not in line.says


def test_partitioned_topics_in_another_store_are_a_problem_for_a_pattern(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing, "_ATTEMPTS", 1)
    topics = world.settings.topics.model_copy(update={"requests_pattern": "persistent://[^/]+/reaper/d"})
    world.settings = world.settings.model_copy(update={"topics": topics})
    assert world.look()["further topics"].status is Status.OK, "before the first start"
    world.pulsar.create_partitioned_topic(topics.requests[0], 4)
    line = world.look()["further topics"]
    assert (line.status, line.exit_code) == (Status.PROBLEM, ConfigError.exit_code)
    assert "configurationMetadataStoreUrl" in line.says


def test_a_state_directory_that_is_not_the_services_is_reported_without_an_alarm(world: World, tmp_path: Path) -> None:
    ownership = Ownership(world.store, world.settings.zookeeper.own_root, world.settings.service.name)
    ownership.hold_state(_receipts(tmp_path / "used"), "/var/lib/used")
    topic = world.settings.topics.requests[0]
    state = Path(world.settings.state.dir)
    state.mkdir(parents=True)
    (state / "accounts.json").write_text(json.dumps({f"{topic}-partition-0": {"5": 3}}))
    for _ in range(2):  # an empty one, and one with other receipts
        lines = world.look()
        said = lines["state of this service"]
        assert "this is not the state directory of service 'main', which is /var/lib/used" in said.says
        assert said.exit_code == 4
        assert lines["accounts"].status is Status.NOTE
        assert worst(list(lines.values())) == 4
        _receipts(state)
    ownership.release_state()
    lines = world.look()
    assert lines["state of this service"].status is Status.OK
    assert "vanished with unread messages" in lines["accounts"].says
    assert lines["accounts"].exit_code == 4, "never 1, a fault of the program"


def test_files_that_can_not_be_read_are_one_problem_each_and_the_rest_is_not_checked(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[pulsar]\ntls_trust_certs_file = "ca.pem"\n[zookeeper]\ndigest_file = "digest"\n')
    (tmp_path / "digest").write_text("u:p")
    result = CliRunner().invoke(app, ["check", "--config", str(config)])
    problems = [line for line in result.output.splitlines() if line.startswith("PROBLEM")]
    assert problems == [
        f"PROBLEM  pulsar.tls_trust_certs_file: {tmp_path}/ca.pem can't be read: No such file or directory"
    ]
    assert "ZooKeeper, Pulsar and buckets: not checked: pulsar.tls_trust_certs_file can't be read" in result.output
    assert "state directory" in result.output
    assert result.exit_code == 2


def test_a_webhook_that_would_end_a_start_is_a_problem(world: World, tmp_path: Path) -> None:
    assert "webhook" not in world.look()
    url = tmp_path / "url"
    notify = world.settings.notify.model_copy(update={"webhook_file": str(url)})
    world.settings = world.settings.model_copy(update={"notify": notify})
    for content, status in (("http://192.0.2.1/s3cret", Status.PROBLEM), ("https://192.0.2.1/s3cret", Status.OK)):
        url.write_text(content)
        line = world.look()["webhook"]
        assert line.status is status, line
        assert "s3cret" not in line.says + line.do


def test_a_service_that_runs_is_well(world: World) -> None:
    root, name = world.settings.zookeeper.own_root, world.settings.service.name
    with InstanceLock(world.store, root, name, on_lost=lambda: None):
        line = world.look()["instance"]
    assert line.status is Status.OK
    assert line.says.startswith("runs: pid ")


def test_no_line_counts_as_a_fault_of_the_program(world: World) -> None:
    def fails(_operation: str, _names: object) -> None:
        raise ReaperError("what nothing is known of")

    world.pulsar.faults.before(fails)
    codes = {line.exit_code for line in world.look().values()}
    assert SafetyError.exit_code in codes
    assert ReaperError.exit_code not in codes
