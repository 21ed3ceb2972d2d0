"""A ZooKeeper that speaks TLS and asks who one is: who is let in, who is not, and that no secret reaches a log."""

import logging
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

from streaming.adapters.zookeeper.store import ZooKeeperSettings, ZooKeeperStore
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import GuardedDelete, GuardStatus, Unreadable, Znode
from tests.contract.zookeeper_server import free_port, zookeeper_running
from udfs.formats.acl import ALL, AclEntry, acl_bytes

pytestmark = pytest.mark.slow  # a server with TLS takes its time to start

SECRET = "s3cret-of-the-store"
PATIENT = ZooKeeperSettings("", session_timeout_seconds=5.0, connect_timeout_seconds=4.0)


@dataclass(frozen=True)
class Secured:
    """One server: SASL on both ports, TLS on the second. ca: PEM of its certificate; other_ca: of somebody else's."""

    plain: str
    tls: str
    ca: Path
    other_ca: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured")
    ca, other_ca = _certificate(home, "server"), _certificate(home, "other")
    jaas = home / "jaas.conf"
    jaas.write_text(
        "Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'  user_reaper="{SECRET}"\n  user_somebody="other-secret";\n}};\n'
    )
    port = free_port()
    config = (
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
        f"secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\nssl.clientAuth=none\n"
        f"ssl.keyStore.location={home / 'server.p12'}\nssl.keyStore.password=changeit\n"
    )
    with zookeeper_running(home, f"-Djava.security.auth.login.config={jaas}", config=config) as server:
        yield Secured(server.hosts, f"127.0.0.1:{port}", ca, other_ca)


def _certificate(home: Path, name: str) -> Path:
    """A key pair of its own in <name>.p12, self-signed for 127.0.0.1; returns its certificate as PEM."""
    store = ("-keystore", str(home / f"{name}.p12"), "-storetype", "PKCS12", "-storepass", "changeit", "-alias", "zk")
    made = ("-keyalg", "EC", "-dname", f"CN={name}", "-ext", "san=ip:127.0.0.1", "-validity", "2")
    subprocess.run(["keytool", "-genkeypair", *store, *made], check=True, capture_output=True)
    pem = home / f"{name}.pem"
    subprocess.run(["keytool", "-exportcert", "-rfc", *store, "-file", str(pem)], check=True, capture_output=True)
    return pem


def _settings(folder: Path, hosts: str, user: str = "reaper", password: str = SECRET) -> ZooKeeperSettings:
    digest_file = folder / f"digest-{user}"
    digest_file.write_text(f"{user}:{password}\n")
    return replace(PATIENT, hosts=hosts, digest_file=str(digest_file), sasl_mechanism="DIGEST-MD5")


def _over_tls(settings: ZooKeeperSettings, ca: Path) -> ZooKeeperSettings:
    return replace(settings, use_tls=True, tls_ca_file=str(ca))


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_sasl_opens_what_is_closed_to_others_and_never_reaches_a_log(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_tls: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    path = f"/closed-{is_tls}"
    settings = _settings(tmp_path, secured.plain)
    other = _settings(tmp_path, secured.plain, "somebody", "other-secret")
    if is_tls:
        settings, other = (_over_tls(replace(each, hosts=secured.tls), secured.ca) for each in (settings, other))
    ours, theirs = ZooKeeperStore(settings), ZooKeeperStore(other)

    ours.create(path, b"data", acl=acl_bytes([AclEntry(ALL, "sasl", "reaper")]))
    (mine,) = ours.read_many([path])
    (foreign,) = theirs.read_many([path])
    (deleted,) = ours.delete_guarded([GuardedDelete((), ((path, 0),))])
    ours.close()
    theirs.close()

    assert isinstance(mine, Znode)
    assert isinstance(foreign, Unreadable)
    assert deleted.status is GuardStatus.DELETED
    assert SECRET not in caplog.text
    assert SECRET not in repr(ours._session._settings)


def test_what_sasl_creates_is_closed_to_other_users(secured: Secured, tmp_path: Path) -> None:
    ours = ZooKeeperStore(_settings(tmp_path, secured.plain))
    other = ZooKeeperStore(_settings(tmp_path, secured.plain, "somebody", "other-secret"))

    ours.create("/ours", b"data")
    acl, (foreign,) = ours.acl_of("/ours"), other.read_many(["/ours"])
    with pytest.raises(RefusedError):
        other.set_data("/ours", b"")
    ours.close()
    other.close()

    assert acl == acl_bytes([AclEntry(ALL, "sasl", "reaper")])
    assert isinstance(foreign, Unreadable)


def test_a_certificate_that_the_server_does_not_ask_for_is_no_identity(secured: Secured, tmp_path: Path) -> None:
    private, _certificate, _chain = pkcs12.load_key_and_certificates(
        secured.ca.with_name("other.p12").read_bytes(), b"changeit"
    )
    assert private is not None
    key = tmp_path / "key.pem"
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    settings = replace(PATIENT, hosts=secured.tls, tls_cert_file=str(secured.other_ca), tls_key_file=str(key))
    store = ZooKeeperStore(_over_tls(settings, secured.ca))

    with pytest.raises(RefusedError, match="none of our credentials"):
        store.create("/nobodys", b"")
    store.close()


def test_a_wrong_password_is_named_and_nothing_is_read(secured: Secured, tmp_path: Path) -> None:
    store = ZooKeeperStore(_settings(tmp_path, secured.plain, password="wrong"))
    with pytest.raises(UnavailableError, match="refused our credentials"):
        store.read_many(["/"])
    store.close()


def test_a_server_with_another_certificate_is_not_talked_to(secured: Secured, tmp_path: Path) -> None:
    settings = replace(_settings(tmp_path, secured.tls), connect_timeout_seconds=2.0)
    store = ZooKeeperStore(_over_tls(settings, secured.other_ca))
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        store.read_many(["/"])
    store.close()


def test_a_certificate_for_another_name_is_not_believed(secured: Secured, tmp_path: Path) -> None:
    by_name = secured.tls.replace("127.0.0.1", "localhost")
    settings = replace(_settings(tmp_path, by_name), connect_timeout_seconds=2.0)
    store = ZooKeeperStore(_over_tls(settings, secured.ca))
    with pytest.raises(UnavailableError, match=r"(?i)hostname|certificate"):
        store.read_many(["/"])
    store.close()
