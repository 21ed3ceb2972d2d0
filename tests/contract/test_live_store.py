"""Whether ZooKeeper is still the cluster's metadata store: the same answers from the fake store and from ZooKeeper.

The states are those that Pulsar's MigrationCoordinator writes (PIP-454); no server of Oxia runs here.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore, close_all
from streaming.audit.audit_options import AuditOptions
from streaming.audit.ledger_audit import Audit
from streaming.audit.phase_progress import PhaseResult, Phases
from streaming.audit.stages import engine_for
from streaming.cli.main import app
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.coordination.live_store import (
    await_broker,
    migration,
    require_live_store,
    require_no_migration,
    stop_at_migration,
)
from streaming.errors import ForbiddenError, SafetyError, StopRequestedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import MetadataStore, Znode
from streaming.snapshots.audit.snapshot_audit import SnapshotAudit
from streaming.terminal import Terminal
from tests.contract.zookeeper_server import ZooKeeperServer
from tests.unit.audit.results import output_at
from udfs.formats.acl import AclEntry, acl_bytes
from udfs.formats.store_migration import MIGRATION_PATH, NO_MIGRATION
from udfs.paths import BROKERS

BROKER = f"{BROKERS}/broker-1:8080"
PARTICIPANT = "/pulsar/migration-coordinator/participants/id-0000000000"
WRITE_ONLY = acl_bytes([AclEntry(2 | 4 | 8, "world", "anyone")])
OTHERS = acl_bytes([AclEntry(31, "digest", "pulsar:hash")])


@pytest.fixture(params=["memory", "zookeeper"])
def brokers(request: pytest.FixtureRequest) -> Iterator[MetadataStore]:
    """A session of the brokers on a store of their own, which has what Pulsar 5.0 creates at its start."""
    if request.param == "memory":
        opened: MetadataStore = MemoryStore(MemoryTree(SystemClock()))
    else:
        hosts, chroot = request.getfixturevalue("zookeeper_server").hosts, f"/{uuid4().hex}"
        with closing(ZooKeeperStore(ZooKeeperClientSettings(hosts=hosts))) as whole:
            whole.create(chroot, b"")
        opened = ZooKeeperStore(ZooKeeperClientSettings(hosts=f"{hosts}{chroot}"))
    with closing(opened) as store:
        store.create(PARTICIPANT.rpartition("/")[0], b"", parents=True)
        store.create(PARTICIPANT, b"", ephemeral=True)
        store.create(BROKERS, b"", parents=True)
        store.create(BROKER, b"{}", ephemeral=True)
        yield store


def test_a_cluster_whose_brokers_could_migrate_is_served(brokers: MetadataStore) -> None:
    assert migration(brokers) == ""
    assert require_live_store(brokers, answering, sleep=awake) == 1
    assert require_live_store(brokers, refusing, sleep=awake) == 1
    assert require_live_store(brokers, silent, sleep=awake) == 1
    await_broker(brokers)
    stop_at_migration(brokers)
    assert InUseLoader(brokers, None, SystemClock()).holding([NO_MIGRATION]) == {NO_MIGRATION}


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING", "COMPLETED", "FAILED"])
def test_every_phase_is_refused_by_its_name_until_the_znode_is_gone(brokers: MetadataStore, phase: str) -> None:
    brokers.create(MIGRATION_PATH, b'{"phase":"PREPARATION","targetUrl":"oxia://oxia1:6648/default"}')
    brokers.set_data(MIGRATION_PATH, b'{"phase":"%s","targetUrl":"oxia://oxia1:6648/default"}' % phase.encode())
    _refused(brokers, f"to oxia://oxia1:6648/default has phase {phase}")

    brokers.delete(MIGRATION_PATH)
    require_live_store(brokers, answering, sleep=awake)


@pytest.mark.parametrize("data", [b"", b"\xff", b'{"phase":"LATER"}'])
def test_content_that_is_not_understood_is_refused(brokers: MetadataStore, data: bytes) -> None:
    brokers.create(MIGRATION_PATH, data)
    _refused(brokers, "its phase is unknown")


@pytest.mark.parametrize("acl", [WRITE_ONLY, OTHERS], ids=["nobody reads it", "others only"])
def test_a_znode_that_this_service_may_not_read_is_refused(brokers: MetadataStore, acl: bytes) -> None:
    brokers.create(MIGRATION_PATH, b'{"phase":"FAILED"}', acl=acl)
    _refused(brokers, "its phase is unknown")


def test_without_an_answer_of_the_store_nothing_is_allowed(brokers: MetadataStore) -> None:
    brokers.close()
    asking: list[Callable[[MetadataStore], object]] = [migration, require_no_migration, stop_at_migration, await_broker]
    for ask in asking:
        with pytest.raises(UnavailableError):
            ask(brokers)


def answering() -> dict[str, str]:
    """Ask a broker whose metadata are in ZooKeeper."""
    return {
        "metadataStoreUrl": "zk:zk1:2181/pulsar",
        "bookkeeperMetadataServiceUri": "metadata-store:zk:zk1:2181/ledgers",
    }


def awake(_seconds: float) -> bool:
    raise AssertionError("there is nothing to wait for")


def refusing() -> dict[str, str]:
    raise ForbiddenError("our role may not read the configuration")


def silent() -> dict[str, str]:
    raise UnavailableError("no broker answers")


@pytest.mark.parametrize("is_registered", [True, False])
@pytest.mark.parametrize(
    ("stores", "text"),
    [
        ({"metadataStoreUrl": "oxia://oxia1:6648/default"}, "metadataStoreUrl=oxia://oxia1:6648/default: .* in Oxia"),
        (
            {"metadataStoreUrl": "zk:zk1", "bookkeeperMetadataServiceUri": "metadata-store:oxia://oxia1/bk"},
            "bookkeeperMetadataServiceUri=metadata-store:oxia://oxia1/bk: .* in Oxia",
        ),
        ({"metadataStoreUrl": "etcd:http://etcd1:2379"}, "in etcd"),
    ],
    ids=["Oxia", "BookKeeper's in Oxia", "etcd"],
)
def test_a_broker_that_uses_another_store_is_refused_by_the_stores_name(
    brokers: MetadataStore, stores: dict[str, str], text: str, *, is_registered: bool
) -> None:
    if not is_registered:
        brokers.delete(BROKER)
    with pytest.raises(SafetyError, match=text):
        require_live_store(brokers, lambda: stores, sleep=awake)


@pytest.mark.parametrize("ask", [answering, refusing])
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "znodes without a session"])
def test_a_store_without_a_brokers_session_is_refused_if_the_admin_api_answers(
    brokers: MetadataStore, left: str, ask: Callable[[], dict[str, str]]
) -> None:
    brokers.delete(BROKER)
    if left == "nothing":
        brokers.delete(BROKERS)
    elif left != "an empty folder":
        brokers.create(BROKER, b"{}")
    waits: list[float] = []
    with pytest.raises(UnavailableError, match=r"no broker has a session .* although the admin API answers"):
        require_live_store(brokers, ask, sleep=waits.append)
    assert sum(waits) == 30
    with pytest.raises(UnavailableError, match="no broker has a session"):
        await_broker(brokers)


def test_a_store_without_a_brokers_session_is_accepted_if_all_brokers_are_down(brokers: MetadataStore) -> None:
    brokers.delete(BROKER)
    assert require_live_store(brokers, silent) == 0


def test_a_broker_that_registers_a_little_later_than_its_admin_api_answers_is_awaited(brokers: MetadataStore) -> None:
    brokers.delete(BROKER)
    waits: list[float] = []

    def registers(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            brokers.create(BROKER, b"{}", ephemeral=True)

    assert require_live_store(brokers, answering, sleep=registers) == 1
    assert len(waits) == 3


def test_a_stop_ends_the_wait_for_a_broker(brokers: MetadataStore) -> None:
    brokers.delete(BROKER)
    with pytest.raises(StopRequestedError):
        require_live_store(brokers, answering, sleep=lambda _seconds: True)


def test_a_brokers_znode_that_can_not_be_read_is_unknown(brokers: MetadataStore) -> None:
    brokers.delete(BROKER)
    brokers.create(BROKER, b"{}", ephemeral=True, acl=OTHERS)
    with pytest.raises(UnavailableError, match="can't be read"):
        require_live_store(brokers, answering, sleep=awake)


def test_brokers_that_can_not_be_listed_are_unknown(brokers: MetadataStore) -> None:
    brokers.delete(BROKER)
    brokers.delete(BROKERS)
    brokers.create(BROKERS, b"", acl=OTHERS)
    with pytest.raises(UnavailableError, match="can't be listed"):
        require_live_store(brokers, answering)


def test_only_znodes_of_a_session_are_ephemeral(brokers: MetadataStore) -> None:
    brokers.create("/stays", b"")
    assert [isinstance(node, Znode) and node.is_ephemeral for node in brokers.read_many([BROKER, "/stays"])] == [
        True,
        False,
    ]


COMPLETED = b'{"phase":"COMPLETED","targetUrl":"oxia://oxia1:6648/default"}'
LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
TOPIC = ("--topic", "persistent://public/default/orders")


@pytest.fixture
def config(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> Iterator[Path]:
    """A configuration for a ZooKeeper that the cluster has left; no broker answers."""
    chroot = f"/{uuid4().hex}"
    with closing(ZooKeeperStore(ZooKeeperClientSettings(hosts=zookeeper_server.hosts))) as whole:
        whole.create(f"{chroot}{MIGRATION_PATH}", COMPLETED, parents=True)
    file = tmp_path / "config.toml"
    file.write_text(
        f'[zookeeper]\nhosts = "{zookeeper_server.hosts}{chroot}"\n[safety]\nexclusive_bookkeeper = true\n'
        f'allowed_components = ["TRANSACTION_SNAPSHOT"]\n[metrics]\nport = -1\n'
        f'[pulsar]\nadmin_url = "http://127.0.0.1:1"\nservice_url = "pulsar://127.0.0.1:1"\n'
        f'[state]\ndir = "{tmp_path}/state"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n'
    )
    (tmp_path / "state").mkdir()
    yield file
    close_all()


@pytest.mark.parametrize(
    "command",
    [
        ("audit",),
        ("audit", "--watch", "6h"),
        ("audit", "--last", "--publish", "--yes"),
        ("watch",),
        ("undo", "--ledger", "5"),
        ("undo", "--ledger", "5", "--dry-run"),
        ("snapshots", "audit"),
        ("snapshots", "guard"),
        ("snapshots", "repair", *TOPIC, "--yes"),
        ("snapshots", "repair", "--namespace", "public/default", "--yes"),
        ("snapshots", "trim", *TOPIC, "--yes"),
        ("snapshots", "compact", "--namespace", "public/default", "--yes"),
        ("snapshots", "migrate", TOPIC[1], "--to", "segments", "--yes"),
        ("snapshots", "undo", *TOPIC, "--yes"),
        ("snapshots", "undo", "--removed", *TOPIC, "--yes"),
        ("snapshots", "undo", "--migrated", *TOPIC, "--yes"),
    ],
    ids=" ".join,
)
def test_every_command_that_judges_or_changes_something_refuses_at_its_start(
    config: Path, command: tuple[str, ...]
) -> None:
    done = CliRunner().invoke(app, [*command, "--config", str(config)])
    assert isinstance(done.exception, SafetyError), done.output
    assert "to oxia://oxia1:6648/default has phase COMPLETED" in str(done.exception)
    assert done.exception.exit_code == 4
    assert not done.stdout


class Interrupted(Phases):
    """Calls `act` when the audit enters the phase of this name."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        super().__init__(Terminal(quiet=True), Event())
        self._name, self._act = name, act

    @contextmanager
    def phase(self, name: str) -> Iterator[PhaseResult]:
        if name == self._name:
            self._act()
        with super().phase(name) as shown:
            yield shown


@pytest.mark.parametrize(
    ("kind", "phase"), [(Audit, "Comparing both lists"), (SnapshotAudit, "Finding namespaces with snapshots")]
)
@pytest.mark.parametrize("starts", [False, True], ids=["undisturbed", "a migration starts"])
def test_an_audit_during_which_a_migration_starts_ends_without_findings(
    config: Path, tmp_path: Path, kind: type[Audit] | type[SnapshotAudit], phase: str, *, starts: bool
) -> None:
    settings, output = load(config), output_at(tmp_path / "audit")
    with closing(ZooKeeperStore(ZooKeeperClientSettings(hosts=settings.zookeeper.hosts))) as brokers:
        brokers.delete(MIGRATION_PATH)
        brokers.create("/ledgers/LAYOUT", LAYOUT, parents=True)
        for path, data in (("/ledgers/INSTANCEID", b"id"), ("/managed-ledgers", b""), ("/schemas", b"")):
            brokers.create(path, data)
        phases = Interrupted(phase, lambda: brokers.create(MIGRATION_PATH, COMPLETED) if starts else None)
        with engine_for(settings, Event()) as engine:
            options = AuditOptions(recheck_seconds=0)
            audit = kind(
                engine=engine, settings=settings, options=options, output=output, phases=phases, clock=SystemClock()
            )
            if starts:
                with pytest.raises(SafetyError, match="has phase COMPLETED"):
                    audit.run()
            else:
                audit.run()
    assert bool(list((tmp_path / "audit").rglob("*.parquet"))) is not starts


def _refused(store: MetadataStore, text: str) -> None:
    with pytest.raises(SafetyError, match=text):
        require_live_store(store, pytest.fail)
    with pytest.raises(SafetyError, match=text):
        require_no_migration(store)
    with pytest.raises(UnavailableError, match=text):
        stop_at_migration(store)
    assert InUseLoader(store, None, SystemClock()).holding([NO_MIGRATION]) == set()
