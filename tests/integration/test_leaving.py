"""A real cluster whose ZooKeeper has the znode of a migration to Oxia, and a copy of a real cluster's ZooKeeper."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.ports import MetadataStore, Znode
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from tests.integration.conftest import (
    Deployment,
    deployment,
    killed_at_the_end,
    leak,
    new_topic,
    payload,
    running_cluster,
    stop,
    wait_until,
)
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.paths import BROKERS, Layout, ledger_path

pytestmark = [pytest.mark.cluster, pytest.mark.long]

STATE = '{"phase":"%s","targetUrl":"oxia://oxia1:6648/default"}'
LEAKED = 5


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of these tests alone: the znode of a migration holds every service on it."""
    with running_cluster(tmp_path_factory.mktemp("leaving")) as running:
        yield running


@pytest.fixture
def zookeeper(own: Cluster) -> Iterator[MetadataStore]:
    with closing(ZooKeeperStore(ZooKeeperClientSettings(hosts=own.addresses.zookeeper))) as store:
        yield store


@pytest.fixture
def service(own: Cluster, tmp_path: Path) -> Deployment:
    here = tmp_path / "service"
    here.mkdir()
    return deployment(own, here)


def test_a_service_deletes_nothing_from_the_start_of_a_migration_until_its_znode_is_gone(
    own: Cluster, zookeeper: MetadataStore, service: Deployment, tmp_path: Path
) -> None:
    topic, log = new_topic("leaving"), tmp_path / "log"
    topics.fill(own, topic, 2, ["s"])
    leaked = leak(own, topic, LEAKED)
    paths = [ledger_path(Layout.HIERARCHICAL, "/ledgers", ledger_id) for ledger_id in leaked]
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: "reading " in log.read_text(), running, log)
        zookeeper.create(MIGRATION_PATH, (STATE % "PREPARATION").encode(), parents=True)
        service.request(payload(topic, ledger_id) for ledger_id in leaked)
        for phase in ("PREPARATION", "COPYING", "COMPLETED", "FAILED"):
            zookeeper.set_data(MIGRATION_PATH, (STATE % phase).encode())
            wait_until(partial(_is_logged, log, phase), running, log)
            for command in (("check",), ("audit",), ("undo", "--ledger", "5"), ("snapshots", "guard"), ("space",)):
                assert f"has phase {phase}" in " ".join(service.call(*command, code=4).split())
            assert f"has phase {phase}" in " ".join(service.call("status").split())
        time.sleep(5)
        assert service.receipts() == []
        assert all(isinstance(node, Znode) for node in zookeeper.read_many(paths))

        zookeeper.delete(MIGRATION_PATH)
        wait_until(lambda: service.outcomes() == Counter({("DELETED", "UNREFERENCED"): LEAKED}), running, log)
        stop(running)
    assert zookeeper.read_many(paths) == [None] * LEAKED


def test_a_copy_of_the_clusters_znodes_is_refused(own: Cluster, zookeeper: MetadataStore, service: Deployment) -> None:
    hosts = own.addresses.zookeeper
    for path in ("/ledgers/LAYOUT", "/ledgers/INSTANCEID"):
        (node,) = zookeeper.read_many([path])
        assert isinstance(node, Znode)
        zookeeper.create(f"/copy{path}", node.data, parents=True)
    for path in ("/managed-ledgers", "/schemas", BROKERS):
        zookeeper.create(f"/copy{path}", b"", parents=True)
    service.config.write_text(service.config.read_text().replace(hosts, f"{hosts}/copy"))
    for output in (service.call("check", code=3), service.call("audit", code=3), service.run("run", code=3)):
        assert "no broker has a session in this ZooKeeper" in " ".join(output.split())


def _is_logged(log: Path, phase: str) -> bool:
    return f"has phase {phase}" in log.read_text()
