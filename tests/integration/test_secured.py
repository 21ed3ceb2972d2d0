"""The whole service on a separate cluster that requires TLS and credentials of any kind; takes minutes."""

import base64
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pulsar as library
import pytest

from ledger_reaper_client import (
    Basic,
    ClientCertificate,
    ClientError,
    ForbiddenError,
    LedgerComponent,
    LedgerDeletionService,
    LedgerType,
    OAuth2,
    Settings,
    Tls,
    Token,
    TokenFile,
)
from ledger_reaper_client.credentials import Credentials
from streaming.adapters.pulsar import oauth2
from streaming.adapters.pulsar.admin_api.admin import PulsarAdminSettings
from streaming.adapters.pulsar.http import PulsarHttp
from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.readers.frames import LOOKED_UP, LOOKUP, Connection, ReceiveTimeout
from streaming.adapters.pulsar.readers.read import check_connection
from streaming.config.sections import PulsarSettings
from streaming.errors import ReaperError, RefusedError
from streaming.sandbox import cluster as sandbox
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts.part_clients import read_znodes
from tests.certificates import certificate, client_certificate
from tests.integration import secured_world
from tests.integration.conftest import Deployment, killed_at_the_end, payload, stop, stored_requests, wait_until
from tests.integration.secured_world import KEY, token, with_tokens
from tests.oauth2_server import OAuth2Server, oauth2_server
from tests.pulsar_settings import pulsar_settings
from udfs.formats.managed_ledger import parse_managed_ledger
from udfs.paths import managed_ledger_path
from udfs.phase_one.marks import read_marks
from udfs.proto import pulsar_api_pb2 as api

pytestmark = [pytest.mark.cluster, pytest.mark.long]

WATCHED = "persistent://public/default/watched"
DATA = LedgerComponent.MANAGED_LEDGER
WATCH = "\n[watch]\nenabled = true\npoll_seconds = 5\nmark_ahead = true\n"


PASSWORD, CLIENT_SECRET = "pass word of the reaper", "secret+of/the client"
SHORT_S = 10.0
KINDS = ("token", "basic", "oauth2", "tls")


@dataclass(frozen=True)
class Secured(secured_world.Secured):
    """A cluster whose broker accepts credentials of any kind."""

    topic: str
    leaked: list[int]  # ledgers of the topic
    issuer: OAuth2Server

    def deployment(self, role: str, extra: str = "", *, kind: str = "token") -> Deployment:
        here = self.new_folder(role)
        return self.configured(here, self.credentials(here, kind, role), extra)

    def credentials(self, here: Path, kind: str, role: str, state: str = "valid") -> dict[str, str]:
        """Write the files of a kind of credentials; return the keys of [pulsar] that name them.

        state: "valid", "expired", or "wrong", which is what another one has.
        """
        if kind == "token":
            valid = token(role, -60 if state == "expired" else None)
            (here / "token").write_text(valid if state != "wrong" else valid[:-6] + "AAAAAA")
            return {"token_file": f"{here}/token"}
        if kind == "basic":
            (here / "basic").write_text(f"{role}:{PASSWORD if state == 'valid' else 'another'}\n")
            return {"basic_file": f"{here}/basic"}
        if kind == "oauth2":
            key = self.issuer.key_file(here / "key.json", role, None if state == "valid" else "another")
            issuer = {"oauth2_issuer_url": self.issuer.url, "oauth2_audience": self.issuer.audience}
            return {"oauth2_key_file": str(key), **issuer, "oauth2_scope": self.issuer.scope}
        authority = (self.ca, self.key)  # signs the certificates of clients
        if state == "wrong":
            (here / "other").mkdir(exist_ok=True)
            authority = certificate(here / "other", "127.0.0.1")
        life = timedelta(hours=-1) if state == "expired" else timedelta(hours=1)
        cert, key = client_certificate(here, role, authority, life=life)
        return {"tls_cert_file": str(cert), "tls_key_file": str(key)}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    running = sandbox.up(folder / "home")
    try:
        topic = "persistent://public/default/secured"
        topics.fill(running, topic, 3, ["s"])
        topics.fill(running, WATCHED, 9, ["s"])
        leaked = list(ledger_list.make_synthetic(running, topic, count=50, first_id=5_000_000))
        with oauth2_server(KEY, {"reaper": CLIENT_SECRET}) as issuer:
            yield _requiring_credentials(running, folder, topic, leaked, issuer)
    finally:
        sandbox.down(folder / "home")


def _requiring_credentials(
    running: Cluster, folder: Path, topic: str, leaked: list[int], issuer: OAuth2Server
) -> Secured:
    hashed = subprocess.run(["openssl", "passwd", "-apr1", PASSWORD], capture_output=True, text=True, check=True)
    (folder / ".htpasswd").write_text(f"reaper:{hashed.stdout.strip()}\n")
    providers = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    settings = {
        "authenticationProviders": ",".join(providers + kind for kind in ("Token", "Basic", "Tls")),
        "authenticationRefreshCheckSeconds": "1",
        "basicAuthConf": f"file://{folder}/.htpasswd",
    }
    world = with_tokens(running, folder, broker_settings=settings)
    return Secured(**vars(world), topic=topic, leaked=leaked, issuer=issuer)


def test_a_broker_whose_certificate_has_another_name_gets_no_token(secured: Secured) -> None:
    by_another_name = secured.service_url.replace("127.0.0.1", "localhost")
    service = secured.deployment("reaper")
    text = service.config.read_text().replace(secured.service_url, by_another_name)
    service.config.write_text(text)

    output = service.run("request", stdin=payload(secured.topic, secured.leaked[0]), code=3)
    assert service.settings.topics.requests[0] in output


def test_the_service_works_with_a_token_over_tls_and_prints_no_token(secured: Secured) -> None:
    service = secured.deployment("reaper")
    requests = b"\n".join(payload(secured.topic, ledger_id) for ledger_id in secured.leaked[:10])
    output = service.run("request", stdin=requests)
    output += service.run("check")
    output += service.run("run", "--until-idle")
    assert service.outcomes() == {("DELETED", "UNREFERENCED"): 10}
    assert token("reaper") not in output
    assert KEY.decode() not in output


@pytest.mark.parametrize("kind", ["basic", "oauth2", "tls"])
def test_the_service_works_with_any_kind_of_credentials_and_shows_no_secret(secured: Secured, kind: str) -> None:
    service = secured.deployment("reaper", kind=kind)
    leaked = secured.leaked[27 + 5 * KINDS.index(kind) :][:5]
    output = service.run("request", stdin=b"\n".join(payload(secured.topic, ledger_id) for ledger_id in leaked))
    output += service.run("check")
    output += service.run("run", "--until-idle")
    assert service.outcomes() == {("DELETED", "UNREFERENCED"): 5}
    assert "fallback" not in output, output
    stored = b"".join(file.read_bytes() for file in (service.config.parent / "state").rglob("*") if file.is_file())
    for secret in (PASSWORD, CLIENT_SECRET, base64.b64encode(f"reaper:{PASSWORD}".encode()).decode(), "eyJ"):
        assert secret not in output
        assert secret.encode() not in stored


def _by_admin(settings: PulsarSettings) -> None:
    with PulsarHttp(PulsarAdminSettings.of(settings)) as http:
        if (answer := http.get("v2/brokers/ready")).status in (401, 403):
            raise RefusedError(str(answer.status))


def _by_client(settings: PulsarSettings) -> None:
    with client(settings) as opened:
        try:
            opened.get_topic_partitions(WATCHED)
        except library.PulsarException as error:
            raise RefusedError(str(error)) from error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", [_by_admin, check_connection, _by_client])
def test_wrong_and_expired_credentials_are_refused_until_the_file_has_valid_ones(
    secured: Secured, tmp_path: Path, kind: str, ask: Callable[[PulsarSettings], object]
) -> None:
    keys = secured.credentials(tmp_path, kind, "reaper")
    addresses = {"service_url": secured.service_url, "admin_url": secured.admin_url, "timeout_seconds": 5}
    settings = pulsar_settings(**addresses, **keys, tls_trust_certs_file=str(secured.ca))
    for state in ("wrong", "expired", "valid", "wrong", "valid"):
        oauth2._tokens.clear()
        secured.credentials(tmp_path, kind, "reaper", state)
        if state == "valid":
            ask(settings)
        else:
            with pytest.raises(ReaperError) as raised:
                ask(settings)
            assert PASSWORD not in str(raised.value)


def test_a_reader_answers_the_brokers_question_for_a_new_token(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token("reaper", 4))
    addresses = {"service_url": secured.service_url, "admin_url": secured.admin_url, "timeout_seconds": 5}
    settings = pulsar_settings(**addresses, token_file=str(file), tls_trust_certs_file=str(secured.ca))
    with Connection(settings, secured.service_url) as connection:
        file.write_text(token("reaper", 60))
        with pytest.raises(ReceiveTimeout):  # receive() answers the question, and returns nothing of it
            connection.receive(time.monotonic() + 8)
        lookup = api.CommandLookupTopic(topic=WATCHED, request_id=connection.next_request())
        answer = connection.ask(api.BaseCommand(type=LOOKUP, lookup_topic=lookup), LOOKED_UP)
        assert answer.lookup_topic_response.response == 1


@contextmanager
def _renewed(secured: Secured, file: Path) -> Iterator[None]:
    """Write a token that lasts ten seconds, every three seconds, until the block ends."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.is_set():
            new = file.with_name("new")
            new.write_text(token("reaper", SHORT_S))
            new.replace(file)
            is_over.wait(3)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("kind", ["token", "oauth2"])
def test_a_running_service_outlives_its_tokens(secured: Secured, tmp_path: Path, kind: str) -> None:
    service, log = secured.deployment("reaper", kind=kind), tmp_path / "log"
    secured.issuer.life_seconds = SHORT_S
    leaked = secured.leaked[20:26] if kind == "token" else secured.leaked[26:32]
    with (
        _renewed(secured, service.config.parent / "token"),
        killed_at_the_end(service.start("run", log=log)) as running,
    ):
        for number, some in enumerate((leaked[:3], leaked[3:]), 1):
            service.request([payload(secured.topic, ledger_id) for ledger_id in some])
            wait_until(lambda count=3 * number: sum(service.outcomes().values()) == count, running, log)  # type: ignore[misc]
            time.sleep(1.5 * SHORT_S)
        stop(running)
    secured.issuer.life_seconds = 300.0
    assert service.outcomes() == {("DELETED", "UNREFERENCED"): 6}
    assert "fallback" not in log.read_text()


def _client(secured: Secured, credentials: Credentials) -> LedgerDeletionService:
    tls = Tls(str(secured.ca))
    addresses = secured.service_url, secured.admin_url
    return LedgerDeletionService(Settings(*addresses, lanes="tenant", receipts=True, credentials=credentials, tls=tls))


def test_a_tenants_roles_use_the_client_according_to_their_rights(secured: Secured) -> None:
    topic = "persistent://acme/own/orders"
    cluster_name = json.loads(secured.admin("GET", "clusters"))[0]
    secured.admin("PUT", "tenants/acme", {"adminRoles": ["acme-admin"], "allowedClusters": [cluster_name]})
    secured.admin("PUT", "namespaces/acme/own")

    def send(role: str, owner: str = topic) -> str:
        with _client(secured, Token(token(role))) as client:
            return client.send_pending_delete_ledger(owner, 5_000_000, None, DATA, LedgerType.LEDGER)

    with pytest.raises(ForbiddenError, match="grant this role the right"):
        send("acme-producer")
    assert send("acme-admin")
    with pytest.raises(ClientError):
        send("acme-producer")
    secured.admin("POST", "namespaces/acme/ledger-deletion/permissions/acme-producer", ["produce"])
    assert send("acme-producer")
    with pytest.raises(ForbiddenError):
        send("acme-producer", secured.topic)  # another tenant's
    with _client(secured, Token(token("acme-producer"))) as client, pytest.raises(ClientError):
        client.estimated_inflight_deletion_ledger_count(topic)
    with _client(secured, Token(token("acme-admin"))) as client:
        assert client.estimated_inflight_deletion_ledger_count(topic) == 2

    secured.admin("PUT", "namespaces/acme/bare")
    secured.admin("PUT", "persistent/acme/bare/__ledger_deletion/partitions", 2)
    secured.admin("POST", "namespaces/acme/bare/permissions/acme-producer", ["produce"])
    by_namespace = replace(_client(secured, Token(token("acme-producer"))).settings, lanes="namespace")
    with LedgerDeletionService(by_namespace) as client, pytest.raises(ForbiddenError, match="has no subscription"):
        client.send_pending_delete_ledger("persistent://acme/bare/x", 1, None, DATA, LedgerType.LEDGER)


@pytest.mark.parametrize("kind", KINDS)
def test_the_client_works_with_any_kind_of_credentials(secured: Secured, tmp_path: Path, kind: str) -> None:
    keys = secured.credentials(tmp_path, kind, "reaper")
    credentials: dict[str, Callable[[], Credentials]] = {
        "token": lambda: TokenFile(keys["token_file"]),
        "basic": lambda: Basic("reaper", PASSWORD),
        "oauth2": lambda: OAuth2(
            keys["oauth2_key_file"],
            keys["oauth2_issuer_url"],
            audience=keys["oauth2_audience"],
            scope=keys["oauth2_scope"],
        ),
        "tls": lambda: ClientCertificate(keys["tls_cert_file"], keys["tls_key_file"]),
    }
    with _client(secured, credentials[kind]()) as client:
        sent = client.send_pending_delete_ledger(secured.topic, 5_000_000, None, DATA, LedgerType.LEDGER)
        assert client.newest_receipt(secured.topic, sent) is None
        assert client.estimated_inflight_deletion_ledger_count(secured.topic) >= 1


@pytest.mark.parametrize("role", ["nobody"])
def test_a_role_without_rights_deletes_nothing_and_gets_a_hint(secured: Secured, role: str) -> None:
    service = secured.deployment(role)
    completed = subprocess.run(
        service.command("run", "--until-idle"), capture_output=True, text=True, timeout=240, check=False
    )
    assert completed.returncode in (1, 2)
    assert "rights" in completed.stderr
    assert "credentials in [pulsar]" in service.run("check", code=2)
    assert set(secured.leaked[10:20]) <= ledger_list.listed_by_bookie(secured.cluster)


def test_a_token_with_a_foreign_signature_is_refused(secured: Secured) -> None:
    service = secured.deployment("stranger")
    file = Path(service.settings.pulsar.token_file)
    file.write_text(file.read_text()[:-6] + "AAAAAA")
    completed = subprocess.run(
        service.command("run", "--until-idle"), capture_output=True, text=True, timeout=240, check=False
    )
    assert completed.returncode in (1, 2)
    assert "check the credentials in [pulsar]" in completed.stderr


def test_a_watcher_whose_role_is_no_superuser_marks_nothing_says_so_and_still_watches(
    secured: Secured, tmp_path: Path
) -> None:
    service, resource, log = secured.deployment("watcher", WATCH), topics.resource(WATCHED), tmp_path / "log"
    tenant = json.loads(secured.admin("GET", "tenants/pulsar"))
    secured.admin("POST", "tenants/pulsar", {**tenant, "adminRoles": ["watcher"]})  # only of the request topics
    secured.admin("POST", f"{resource}/retention", {"retentionTimeInMinutes": 3, "retentionSizeInMB": -1})
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until((service.config.parent / "state" / "watcher.json").exists, running, log)
        before = _ledgers(secured, resource)
        secured.admin("PUT", f"{resource}/unload")
        time.sleep(15)  # scans that find the topic unloaded
        secured.admin("POST", f"{resource}/subscription/s/skip_all")  # loads the topic, and moves its cursor to the end
        wait_until(lambda: "watch.mark_ahead" in log.read_text(), running, log)
        secured.admin("POST", f"{resource}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        secured.admin("POST", f"{resource}/trim")
        listed = _ledgers(secured, resource)
        assert before - listed, "nothing was dropped"
        wait_until(lambda: before - listed <= _requested_ledgers(service), running, log)
        stop(running)
    warnings = [line for line in log.read_text().splitlines() if "watch.mark_ahead" in line]
    assert 1 <= len(warnings) <= 2, warnings  # of the first topic, and of the pause that follows
    assert all("they refuse that to a role without the rights of a superuser" in line for line in warnings)
    info = parse_managed_ledger(read_znodes(secured.cluster.addresses.zookeeper, [_PATH])[_PATH])
    assert not read_marks(info.properties).all.ledgers


_PATH = managed_ledger_path(WATCHED)


def _requested_ledgers(service: Deployment) -> set[int]:
    messages = stored_requests(service.settings, service.settings.topics.watch)
    return {json.loads(message.payload)["ledgerId"] for message in messages}


def _ledgers(secured: Secured, resource: str) -> set[int]:
    stats = json.loads(secured.admin("GET", f"{resource}/internalStats"))
    return {ledger["ledgerId"] for ledger in stats["ledgers"]}
