"""A ZooKeeper with TLS and authentication: who has access, and that no secret is logged."""

import logging
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
from kazoo.exceptions import ConnectionClosedError
from kazoo.protocol.serialization import Exists

from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.adapters.zookeeper.zookeeper_session import Pending, ZooKeeperSession
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import GuardedDelete, GuardStatus, Unreadable, Znode
from tests.certificates import certificate, client_certificate
from tests.contract.zookeeper_server import free_port, zookeeper_running
from udfs.formats.acl import ALL, AclEntry, acl_bytes

pytestmark = pytest.mark.slow  # a server with TLS starts slowly

SECRET = "s3cret-of-the-store"
PATIENT = ZooKeeperClientSettings(hosts="", session_timeout_seconds=5.0, connect_timeout_seconds=4.0)


@dataclass(frozen=True)
class Secured:
    """A server with SASL on both ports, and TLS on the second."""

    plain: str
    tls: str
    ca: Path  # PEM of the server's certificate
    other_ca: Path  # PEM of another certificate


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured")
    ca, other_ca = _certificate(home, "server"), _certificate(home, "other")
    jaas = home / "jaas.conf"
    jaas.write_text(
        "Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'  user_reaper="{SECRET}"\n  user_other="other-secret";\n}};\n'
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
    """Create a key pair in <name>.p12, self-signed for 127.0.0.1, and return its certificate as PEM."""
    store = ("-keystore", str(home / f"{name}.p12"), "-storetype", "PKCS12", "-storepass", "changeit", "-alias", "zk")
    options = ("-keyalg", "EC", "-dname", f"CN={name}", "-ext", "san=ip:127.0.0.1", "-validity", "2")
    subprocess.run(["keytool", "-genkeypair", *store, *options], check=True, capture_output=True)
    pem = home / f"{name}.pem"
    subprocess.run(["keytool", "-exportcert", "-rfc", *store, "-file", str(pem)], check=True, capture_output=True)
    return pem


def _settings(folder: Path, hosts: str, user: str = "reaper", password: str = SECRET) -> ZooKeeperClientSettings:
    digest_file = folder / f"digest-{user}"
    digest_file.write_text(f"{user}:{password}\n")
    return replace(PATIENT, hosts=hosts, digest_file=str(digest_file), sasl_mechanism="DIGEST-MD5")


def _over_tls(settings: ZooKeeperClientSettings, ca: Path) -> ZooKeeperClientSettings:
    return replace(settings, use_tls=True, tls_ca_file=str(ca))


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_sasl_reads_closed_znodes_and_is_never_logged(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_tls: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    path = f"/closed-{is_tls}"
    settings = _settings(tmp_path, secured.plain)
    other = _settings(tmp_path, secured.plain, "other", "other-secret")
    if is_tls:
        settings, other = (_over_tls(replace(plain, hosts=secured.tls), secured.ca) for plain in (settings, other))
    ours, theirs = ZooKeeperStore(settings), ZooKeeperStore(other)

    ours.create(path, b"data", acl=acl_bytes([AclEntry(ALL, "sasl", "reaper")]))
    (node,) = ours.read_many([path])
    (refused,) = theirs.read_many([path])
    (deleted,) = ours.delete_guarded([GuardedDelete((), ((path, 0),))])
    ours.close()
    theirs.close()

    assert isinstance(node, Znode)
    assert isinstance(refused, Unreadable)
    assert deleted.status is GuardStatus.DELETED
    assert SECRET not in caplog.text
    assert SECRET not in repr(ours._session._settings)


def test_znodes_created_with_sasl_are_closed_to_other_users(secured: Secured, tmp_path: Path) -> None:
    ours = ZooKeeperStore(_settings(tmp_path, secured.plain))
    other = ZooKeeperStore(_settings(tmp_path, secured.plain, "other", "other-secret"))

    ours.create("/ours", b"data")
    acl, (refused,) = ours.acl_of("/ours"), other.read_many(["/ours"])
    with pytest.raises(RefusedError):
        other.set_data("/ours", b"")
    ours.close()
    other.close()

    assert acl == acl_bytes([AclEntry(ALL, "sasl", "reaper")])
    assert isinstance(refused, Unreadable)


def test_a_certificate_that_the_server_does_not_request_is_no_identity(secured: Secured, tmp_path: Path) -> None:
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


def test_a_wrong_password_is_named_also_after_the_connection_is_closed(secured: Secured, tmp_path: Path) -> None:
    session = ZooKeeperSession(_settings(tmp_path, secured.plain, password="wrong"))
    pending = session.send(Exists("/", False))
    with pytest.raises(UnavailableError):
        session.wait(pending)
    reply = pending.client.handler.async_result()
    reply.set_exception(ConnectionClosedError("Connection has been closed"))

    with pytest.raises(UnavailableError, match="refused our credentials"):
        session.wait(Pending(pending.client, reply))
    session.close()


def test_a_server_with_an_untrusted_certificate_is_refused(secured: Secured, tmp_path: Path) -> None:
    settings = replace(_settings(tmp_path, secured.tls), connect_timeout_seconds=2.0)
    store = ZooKeeperStore(_over_tls(settings, secured.other_ca))
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        store.read_many(["/"])
    store.close()


def test_a_certificate_for_another_name_is_refused(secured: Secured, tmp_path: Path) -> None:
    by_name = secured.tls.replace("127.0.0.1", "localhost")
    settings = replace(_settings(tmp_path, by_name), connect_timeout_seconds=2.0)
    store = ZooKeeperStore(_over_tls(settings, secured.ca))
    with pytest.raises(UnavailableError, match=r"(?i)hostname|certificate"):
        store.read_many(["/"])
    store.close()


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """A server that requires client certificates: its address, and certificate and key of the authority."""
    home = tmp_path_factory.mktemp("certified")
    ca, key = authority = certificate(home, "127.0.0.1")
    export = ("-export", "-in", str(ca), "-inkey", str(key), "-out", str(home / "server.p12"))
    subprocess.run(["openssl", "pkcs12", *export, "-passout", "pass:changeit"], check=True, capture_output=True)
    store = ("-keystore", str(home / "trust.p12"), "-storetype", "PKCS12", "-storepass", "changeit", "-noprompt")
    subprocess.run(
        ["keytool", "-importcert", *store, "-file", str(ca), "-alias", "ca"], check=True, capture_output=True
    )
    port = free_port()
    config = (
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider\n"
        f"secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\nssl.clientAuth=need\n"
        f"ssl.keyStore.location={home / 'server.p12'}\nssl.keyStore.password=changeit\n"
        f"ssl.trustStore.location={home / 'trust.p12'}\nssl.trustStore.password=changeit\n"
    )
    with zookeeper_running(home, config=config):
        yield f"127.0.0.1:{port}", authority


def _by_certificate(folder: Path, hosts: str, role: str, authority: tuple[Path, Path]) -> ZooKeeperClientSettings:
    folder.mkdir(exist_ok=True)
    cert, key = client_certificate(folder, role, authority)
    settings = replace(
        PATIENT, hosts=hosts, connect_timeout_seconds=2.0, tls_cert_file=str(cert), tls_key_file=str(key)
    )
    return _over_tls(settings, authority[0])


def test_a_client_certificate_is_an_identity(certified: tuple[str, tuple[Path, Path]], tmp_path: Path) -> None:
    hosts, authority = certified
    ours = ZooKeeperStore(_by_certificate(tmp_path / "ours", hosts, "reaper", authority))
    theirs = ZooKeeperStore(_by_certificate(tmp_path / "theirs", hosts, "other", authority))

    ours.create("/ours", b"data")
    acl, (refused,) = ours.acl_of("/ours"), theirs.read_many(["/ours"])
    ours.close()
    theirs.close()

    assert acl == acl_bytes([AclEntry(ALL, "x509", "CN=reaper")])
    assert isinstance(refused, Unreadable)


def test_a_wrong_or_expired_client_certificate_is_refused_until_its_files_have_a_valid_one(
    certified: tuple[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    hosts, authority = certified
    settings = _by_certificate(tmp_path, hosts, "reaper", authority)
    (tmp_path / "other").mkdir()
    foreign = certificate(tmp_path / "other", "127.0.0.1")
    for signed_by, life in ((foreign, 1), (authority, -1)):
        client_certificate(tmp_path, "reaper", signed_by, life=timedelta(hours=life))
        store = ZooKeeperStore(settings)
        with pytest.raises(UnavailableError):
            store.read_many(["/"])
        store.close()
    client_certificate(tmp_path, "reaper", authority)
    store = ZooKeeperStore(settings)
    assert isinstance(store.read_many(["/"])[0], Znode)
    store.close()
