"""Turns a cluster into one whose brokers require tokens, authorize roles, and serve over TLS."""

import base64
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import httpx
import pulsar

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.credentials import Credentials
from streaming.adapters.pulsar.tls import Tls
from streaming.errors import ReaperError
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Instance, Part
from streaming.sandbox.parts import launch
from tests.certificates import certificate
from tests.contract.zookeeper_server import free_port
from tests.integration.conftest import CONFIG, Deployment
from tests.oauth2_server import jwt

KEY = b"a signing key of thirty-two bytes"
_START_SECONDS = 120
_REDIRECTS = 5  # of one request, between brokers
_DIGEST = "reaper:a-password-of-the-store"


def token(role: str, life_seconds: float | None = None) -> str:
    """Return a token of the role that the brokers accept; for so many seconds from now, or for ever."""
    return jwt(KEY, role, life_seconds=life_seconds)


@dataclass(frozen=True)
class Secured:
    """A cluster whose brokers require credentials, and their TLS addresses (several are separated by commas)."""

    cluster: Cluster
    service_url: str
    admin_url: str
    ca: Path
    key: Path  # of the certificate `ca`
    folder: Path

    def deployment(self, role: str, extra: str = "") -> Deployment:
        """Configure a service with a token of the role, a digest for ZooKeeper, and a folder of its own."""
        here = self.new_folder(role)
        (here / "token").write_text(token(role))
        (here / "digest").write_text(_DIGEST)
        return self.configured(here, {"token_file": f"{here}/token"}, extra, zookeeper=f'digest_file = "{here}/digest"')

    def new_folder(self, role: str) -> Path:
        """Create the folder of a service."""
        here = self.folder / f"service-{role}{uuid.uuid4().hex[:4]}"
        here.mkdir()
        return here

    def configured(self, here: Path, keys: Mapping[str, str], extra: str, *, zookeeper: str = "") -> Deployment:
        """Write a service's configuration into its folder.

        keys: of [pulsar], which name the credentials. zookeeper: lines of [zookeeper].
        """
        text = CONFIG.format(
            name=f"t{uuid.uuid4().hex[:10]}",
            chunk_rows=1_000,
            pulsar=self.service_url,
            admin=self.admin_url,
            zookeeper=self.cluster.addresses.zookeeper,
            s3=self.cluster.addresses.s3,
            bucket=self.cluster.bucket,
            home=self.cluster.home.root,
            here=here,
            limits="",
            classes="",
        )
        secrets = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
        secrets += f'tls_trust_certs_file = "{self.ca}"\n'
        (here / "config.toml").write_text(text.replace("[zookeeper]", f"{secrets}[zookeeper]\n{zookeeper}") + extra)
        return Deployment(here / "config.toml")

    def admin(self, method: str, path: str, body: object = None) -> str:
        """Send an admin request as a superuser."""
        answer = self.ask("reaper", method, path, body)
        assert answer.is_success, f"{method} {answer.url}: {answer.status_code} {answer.text}"
        return answer.text

    def ask(self, role: str, method: str, path: str, body: object = None) -> httpx.Response:
        """Send an admin request as a role, and return the answer."""
        headers = {"Authorization": f"Bearer {token(role)}"}
        verified = ssl.create_default_context(cafile=str(self.ca))
        url = f"{self.admin_url.partition(',')[0]}/admin/v2/{path}"
        for _redirect in range(_REDIRECTS):  # httpx would follow them without the token
            answer = httpx.request(method, url, json=body, headers=headers, verify=verified, timeout=60)
            url = answer.headers.get("location", url)
            if not answer.is_redirect:
                break
        return answer

    @contextmanager
    def client(self, role: str) -> Iterator[pulsar.Client]:
        """Connect as a role, with Pulsar's own client."""
        opened = pulsar.Client(
            self.service_url,
            authentication=pulsar.AuthenticationToken(token(role)),
            tls_trust_certs_file_path=str(self.ca),
            operation_timeout_seconds=20,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            yield opened
        finally:
            opened.close()


def with_tokens(
    running: Cluster, folder: Path, *other_names: str, broker_settings: Mapping[str, str] = MappingProxyType({})
) -> Secured:
    """Start the brokers again, with authentication, authorization and TLS. Those that run are stopped first.

    Args:
        other_names: of the certificate, beside the address. Brokers of 5.0 find each other by the address's name.
        broker_settings: further ones, which replace others.
    """
    ca, key = certificate(folder, running.spec.listen, *other_names)
    ports = {part: (free_port(), free_port()) for part in running.spec.all_of(Part.BROKER)}
    for part in ports:
        running.stop(part)
    for part, tls_ports in ports.items():
        settings = {**running.spec.broker_settings, **_settings(ca, key, *tls_ports), **broker_settings}
        launch.start(running.home, part, replace(running.spec, broker_settings=settings), running.pulsar)
    token_file = folder / "token"
    token_file.write_text(token("reaper"))
    by_token = Credentials(token_file=str(token_file))
    hosts = [f"{running.spec.listen}:{web_port}" for _port, web_port in ports.values()]
    for part, host in zip(ports, hosts, strict=True):
        admin = PulsarAdminSettings(
            admin_url=f"https://{host}", credentials=by_token, tls=Tls(trust_certs_file=str(ca))
        )
        _wait_healthy(running, part, admin)
    return Secured(
        cluster=running,
        service_url=f"pulsar+ssl://{','.join(f'{running.spec.listen}:{port}' for port, _web_port in ports.values())}",
        admin_url=f"https://{','.join(hosts)}",
        ca=ca,
        key=key,
        folder=folder,
    )


def _settings(ca: Path, key: Path, port: int, web_port: int) -> Mapping[str, str]:
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(KEY).decode()}",
        "superUserRoles": "broker,reaper",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token('broker')}",
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": str(ca),
        "brokerServicePortTls": str(port),
        "webServicePortTls": str(web_port),
        "tlsCertificateFilePath": str(ca),
        "tlsKeyFilePath": str(key),
        "tlsTrustCertsFilePath": str(ca),
    }


def _wait_healthy(running: Cluster, part: Instance, settings: PulsarAdminSettings) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with PulsarAdmin(settings) as admin:
                admin.check_health()
                return
        except ReaperError:
            assert running.process(part), running.home.log(part).read_text()[-3000:]
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
