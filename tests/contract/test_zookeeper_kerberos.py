"""A ZooKeeper that authenticates clients by Kerberos, with a real KDC of Debian's krb5 (docs/evidence.md)."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from streaming.adapters.zookeeper import kerberos_login
from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.errors import ConfigError, UnavailableError
from streaming.ports import Unreadable, Znode
from tests.contract.kerberos_server import CLIENT, REALM, Kdc, kdc_running, missing_for_kerberos
from tests.contract.zookeeper_server import ZooKeeperServer, zookeeper_running
from udfs.formats.acl import ALL, AclEntry, acl_bytes

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(missing_for_kerberos()), reason=f"missing: {missing_for_kerberos()}"),
]

OTHER = f"other@{REALM}"
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class World:
    """A KDC, and a ZooKeeper that knows clients by it."""

    kdc: Kdc
    server: ZooKeeperServer

    def settings(self, keytab: Path, principal: str = CLIENT) -> ZooKeeperClientSettings:
        return ZooKeeperClientSettings(
            hosts=f"localhost:{self.server.port}",
            session_timeout_seconds=5.0,
            connect_timeout_seconds=4.0,
            sasl_mechanism="GSSAPI",
            kerberos_principal=principal,
            kerberos_keytab_file=str(keytab),
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("kerberos")
    (home / "kdc").mkdir()
    (home / "zookeeper").mkdir()
    with pytest.MonkeyPatch.context() as patch, kdc_running(home / "kdc") as kdc:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        for name in ("KRB5_CLIENT_KTNAME", "KRB5CCNAME"):  # restored at the end
            patch.setenv(name, "")
        config = "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
        with zookeeper_running(home / "zookeeper", *kdc.server_jvm_options, config=config) as server:
            yield World(kdc, server)


@pytest.fixture(autouse=True)
def _new_tickets(world: World) -> Iterator[None]:
    kerberos_login.forget_tickets()
    yield
    if world.kdc.process is None:
        world.kdc.start()


@pytest.fixture
def store(world: World) -> Iterator[ZooKeeperStore]:
    opened = ZooKeeperStore(world.settings(world.kdc.keytab("client")))
    yield opened
    opened.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def reads(store: ZooKeeperStore) -> bool:
    """Whether a store can be read; False while it is unavailable."""
    try:
        return isinstance(store.read_many(["/"])[0], Znode)
    except UnavailableError:
        return False


def fault_of(settings: ZooKeeperClientSettings) -> str:
    """Return why a new client can't read; "" if it can."""
    store = ZooKeeperStore(settings)
    try:
        store.read_many(["/"])
    except UnavailableError as error:
        return str(error)
    finally:
        store.close()
    return ""


def test_znodes_are_closed_to_other_principals(world: World, store: ZooKeeperStore) -> None:
    store.create("/ours", b"data")
    world.kdc.add(OTHER)
    other = ZooKeeperStore(world.settings(world.kdc.keytab("other", OTHER), OTHER))

    (refused,) = other.read_many(["/ours"])
    other.close()

    assert store.acl_of("/ours") == acl_bytes([AclEntry(ALL, "sasl", CLIENT)])
    assert isinstance(store.read_many(["/ours"])[0], Znode)
    assert isinstance(refused, Unreadable)


def test_another_process_logs_in_with_the_same_settings(world: World) -> None:
    settings = world.settings(world.kdc.keytab("client"))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(_reads_there, settings).result()


def _reads_there(settings: ZooKeeperClientSettings) -> bool:
    return reads(ZooKeeperStore(settings))


def test_a_key_that_the_kdc_has_replaced_is_named(world: World) -> None:
    old = world.kdc.keytab("old")
    world.kdc.keytab("new")
    said = fault_of(world.settings(old))
    assert f"no Kerberos ticket for {CLIENT}" in said
    assert "export the keytab again" in said


def test_a_principal_that_the_kdc_does_not_know_is_named(world: World) -> None:
    gone = f"gone@{REALM}"
    world.kdc.add(gone)
    keytab = world.kdc.keytab("gone", gone)
    world.kdc.administer(f"delprinc -force {gone}")
    assert f"'{gone}' not found in Kerberos database. Check the keytab" in fault_of(world.settings(keytab, gone))


def test_a_keytab_of_another_principal_is_refused(world: World) -> None:
    said = fault_of(world.settings(world.kdc.keytab("client"), OTHER))
    assert f"is that of {CLIENT}, not that of zookeeper.kerberos_principal" in said


def test_a_host_that_the_kdc_does_not_know_is_named(world: World) -> None:
    settings = world.settings(world.kdc.keytab("client"))
    said = fault_of(replace(settings, hosts=settings.hosts.replace("localhost", "127.0.0.1")))
    assert f"Server zookeeper/127.0.0.1@{REALM} not found in Kerberos database" in said
    assert "zookeeper.kerberos_service" in said


def test_a_missing_or_wrong_keytab_is_refused_and_so_is_one_that_vanishes(world: World, tmp_path: Path) -> None:
    keytab = tmp_path / "keytab"
    for content in (None, b"no keytab"):
        if content is not None:
            keytab.write_bytes(content)
        with pytest.raises(ConfigError, match="kerberos_keytab_file"):
            ZooKeeperStore(world.settings(keytab)).read_many(["/"])
    keytab.write_bytes(b"\x05\x02")
    assert "is a keytab that this user can read" in fault_of(world.settings(keytab))


def test_the_kdc_may_start_later_than_the_client(world: World, store: ZooKeeperStore) -> None:
    world.kdc.stop()
    with pytest.raises(UnavailableError, match=f"Cannot contact any KDC for realm '{REALM}'"):
        store.read_many(["/"])
    world.kdc.start()
    wait_for(lambda: reads(store))


def test_other_threads_run_while_a_kdc_is_silent_and_the_wait_is_bounded(world: World) -> None:
    settings = replace(world.settings(world.kdc.keytab("client")), operation_timeout_seconds=2.0)
    world.kdc.freeze()
    said = fault_of(settings)  # libkrb5 waits for half a minute
    world.kdc.stop()
    assert "did not answer within 2 s" in said
    assert "the KDC has not answered yet" in said


def test_a_client_with_a_ticket_reconnects_without_the_kdc(world: World, store: ZooKeeperStore) -> None:
    assert reads(store)
    world.kdc.stop()
    first = store._session.client()
    losses = store._session.losses
    first._connection._socket.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: reads(store))
    assert store._session.losses > losses


def test_a_new_keytab_is_read_when_the_ticket_ends(world: World) -> None:
    world.kdc.administer(f"modprinc -maxlife 4seconds {CLIENT}")
    settings = world.settings(world.kdc.keytab("client"))
    assert not fault_of(settings)
    new = world.kdc.keytab("new")  # the key in the client's keytab is void from here on
    wait_for(lambda: "export the keytab again" in fault_of(settings))
    new.replace(settings.kerberos_keytab_file)
    wait_for(lambda: not fault_of(settings))
    world.kdc.administer(f"modprinc -maxlife 1day {CLIENT}")


def test_a_server_with_a_new_key_is_reached_after_one_refusal(world: World, store: ZooKeeperStore) -> None:
    assert reads(store)
    assert world.kdc.server_jvm_options == world.server.jvm_options  # replaces the server's keytab
    world.server.stop()
    world.server.start()
    wait_for(lambda: reads(store))


def test_commands_work_and_check_names_what_is_wrong(world: World, tmp_path: Path) -> None:
    old, keytab = world.kdc.keytab("old"), world.kdc.keytab("client")
    config = tmp_path / "config.toml"

    def run(command: str, key: Path, code: int) -> str:
        config.write_text(
            f'[zookeeper]\nhosts = "localhost:{world.server.port}"\nsasl_mechanism = "GSSAPI"\n'
            f'kerberos_principal = "{CLIENT}"\nkerberos_keytab_file = "{key}"\n'
            '[pulsar]\nadmin_url = "http://127.0.0.1:1"\nservice_url = "pulsar://127.0.0.1:1"\n'
        )
        arguments = [*command.split(), "--config", str(config)]
        ran = subprocess.run([sys.executable, "-m", "streaming", *arguments], check=False, capture_output=True)
        output = (ran.stdout + ran.stderr).decode()
        assert ran.returncode == code, output
        return output

    run("pause", keytab, 0)
    store = ZooKeeperStore(world.settings(keytab))
    assert store.acl_of("/ledger-reaper/pause") == acl_bytes([AclEntry(ALL, "sasl", CLIENT)])
    store.close()
    run("resume", keytab, 0)
    assert "export the keytab again" in run("check", old, 3)
    assert "missing.keytab can't be read" in run("check", tmp_path / "missing.keytab", 2)
    world.kdc.stop()
    assert "Cannot contact any KDC" in run("check", keytab, 3)
