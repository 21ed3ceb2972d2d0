"""The whole service on a separate cluster whose ZooKeeper knows it by Kerberos, with a real KDC."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from streaming.clients import open_store
from streaming.sandbox import cluster as sandbox
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from tests.contract.kerberos_server import CLIENT, Kdc, kdc_running, missing_for_kerberos
from tests.integration.conftest import CONFIG, Deployment, killed_at_the_end, payload, stop, wait_until
from udfs.formats.acl import ALL, AclEntry, acl_bytes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.skipif(bool(missing_for_kerberos()), reason=f"missing: {missing_for_kerberos()}"),
]

TOPIC = "persistent://public/default/kerberos"


@dataclass(frozen=True)
class World:
    """A cluster, and the KDC by which its ZooKeeper authenticates clients."""

    cluster: Cluster
    kdc: Kdc
    folder: Path
    leaked: list[int]  # ledgers of TOPIC

    def service(self, name: str, keytab: Path) -> Deployment:
        here = self.folder / name
        here.mkdir()
        text = CONFIG.format(
            name=name,
            chunk_rows=1_000,
            pulsar=self.cluster.addresses.pulsar,
            admin=self.cluster.addresses.admin,
            zookeeper=self.cluster.addresses.zookeeper.replace("127.0.0.1", "localhost"),
            s3=self.cluster.addresses.s3,
            bucket=self.cluster.bucket,
            home=self.cluster.home.root,
            here=here,
            limits="",
            classes="",
        )
        keys = f'sasl_mechanism = "GSSAPI"\nkerberos_principal = "{CLIENT}"\nkerberos_keytab_file = "{keytab}"\n'
        (here / "config.toml").write_text(text.replace("[zookeeper]\n", f"[zookeeper]\n{keys}"))
        return Deployment(here / "config.toml")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kerberos")
    (folder / "kdc").mkdir()
    running = sandbox.up(folder / "home")
    try:
        topics.fill(running, TOPIC, 3, ["s"])
        leaked = list(ledger_list.make_synthetic(running, TOPIC, count=30, first_id=5_000_000))
        with pytest.MonkeyPatch.context() as patch, kdc_running(folder / "kdc") as kdc:
            for name, value in kdc.environment.items():
                patch.setenv(name, value)
            provider = "-Dzookeeper.authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            running.stop(Part.ZOOKEEPER)
            patch.setenv("JDK_JAVA_OPTIONS", " ".join((*kdc.server_jvm_options, provider)))
            running.start(Part.ZOOKEEPER)
            patch.delenv("JDK_JAVA_OPTIONS")
            running.wait_ready(Part.ZOOKEEPER)
            running.wait_ready(Part.BROKER)
            yield World(running, kdc, folder, leaked)
    finally:
        sandbox.down(folder / "home")


def test_the_service_works_by_kerberos_and_its_key_is_rotated_while_it_runs(world: World) -> None:
    keytab = world.kdc.keytab("service")
    service = world.service("by-kerberos", keytab)
    first, second = world.leaked[:10], world.leaked[10:20]
    log = service.config.parent / "log"
    with killed_at_the_end(service.start("run", log=log)) as running:
        service.run("request", stdin=b"\n".join(payload(TOPIC, ledger_id) for ledger_id in first))
        wait_until(lambda: service.outcomes() == {("DELETED", "UNREFERENCED"): 10}, running, log)
        world.kdc.keytab("service")  # replaces the file; the former key is void
        service.run("request", stdin=b"\n".join(payload(TOPIC, ledger_id) for ledger_id in second))
        wait_until(lambda: service.outcomes() == {("DELETED", "UNREFERENCED"): 20}, running, log)
        stop(running)

    checked = service.run("check")
    assert "closed to others" in checked
    audited = service.run("audit", "--json", "--out", str(service.config.parent / "audit"))
    assert re.search('"complete": ?true', audited)
    with closing(open_store(service.settings)) as store:
        assert store.acl_of("/ledger-reaper") == acl_bytes([AclEntry(ALL, "sasl", CLIENT)])


def test_check_names_a_wrong_key_and_a_kdc_that_is_away(world: World) -> None:
    old = world.kdc.keytab("old")
    service = world.service("refused", world.kdc.keytab("new").replace(world.kdc.home / "right.keytab"))
    right, wrong = service.config.read_text(), service.config.read_text().replace("right.keytab", old.name)
    service.config.write_text(wrong)
    assert "export the keytab again" in service.run("check", code=3)
    assert "export the keytab again" in service.run("run", "--until-idle", code=3)

    service.config.write_text(right)
    world.kdc.stop()
    assert "Cannot contact any KDC" in service.run("check", code=3)
    world.kdc.start()
    assert "Kerberos" not in service.run("check")
