"""The first configuration: what `init` asks, what it can find out by itself, and how it tries each answer."""

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from streaming.adapters.pulsar.readers.read import check_connection
from streaming.clients import admin_for, command_clients
from streaming.config.hosts import each_url, is_tls
from streaming.config.load import load_values
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.live_store import require_live_store
from streaming.errors import ReaperError
from streaming.terminal import count_of
from udfs.formats.metadata_url import other_store

Key = tuple[str, str]  # section and key
Answers = Mapping[Key, Any]
ADMIN_URL, SERVICE_URL = ("pulsar", "admin_url"), ("pulsar", "service_url")
CA_FILE = ("pulsar", "tls_trust_certs_file")
CREDENTIALS = ("pulsar", "credentials_file")  # no key of the configuration: credentials_in() returns the key
TOKEN_FILE, BASIC_FILE, OAUTH2_FILE = ("pulsar", "token_file"), ("pulsar", "basic_file"), ("pulsar", "oauth2_key_file")
ISSUER, AUDIENCE, SCOPE = ("pulsar", "oauth2_issuer_url"), ("pulsar", "oauth2_audience"), ("pulsar", "oauth2_scope")
CERT_FILE, KEY_FILE = ("pulsar", "tls_cert_file"), ("pulsar", "tls_key_file")
HOSTS, DIGEST_FILE = ("zookeeper", "hosts"), ("zookeeper", "digest_file")
EXCLUSIVE, STATE, CHECKPOINTS = ("safety", "exclusive_bookkeeper"), ("state", "dir"), ("checkpoints", "dir")
LANES = ("topics", "lanes")
_PORT, _TLS_PORT = 6650, 6651


@dataclass(frozen=True, slots=True)
class Step:
    """Keys that are asked for, and the trial of them all."""

    texts: Mapping[Key, str]  # the question for each key
    trial: Callable[[Settings], str]  # returns what was seen; raises ReaperError


def brokers_answer(settings: Settings) -> str:
    """Ask the admin API for the names of clusters. Raises ReaperError."""
    with admin_for(settings) as admin:
        return f"{settings.pulsar.admin_url} answers; clusters: {', '.join(admin.clusters())}"


def service_answers(settings: Settings) -> str:
    """Connect to a broker with Pulsar's binary protocol. Raises ReaperError."""
    check_connection(settings.pulsar)
    return f"{settings.pulsar.service_url} accepts connections"


def ledgers_found(settings: Settings) -> str:
    """Read BookKeeper's layout in ZooKeeper, and count the brokers that have a session there. Raises ReaperError."""
    zookeeper = settings.zookeeper
    with command_clients(settings) as clients:
        layout = identity.read_layout(clients.store, zookeeper.ledgers_root)
        running = require_live_store(clients.store, clients.pulsar.admin.metadata_stores, patience_s=0)
    return f"{zookeeper.hosts}: {layout}; {count_of(running, 'broker has', 'brokers have')} a session there"


_CA_TEXT = "File with the certificate of the brokers' authority (PEM; empty: the system's authorities)"
# The brokers are asked first, because their answers propose the other addresses.
STEPS = (
    Step(
        {
            ADMIN_URL: "Admin API of the brokers (http://host:8080, https://host:8443; several: http://a:8080,b:8080)",
            CA_FILE: _CA_TEXT,
            CREDENTIALS: (
                "File with credentials for the brokers: a token, user:password, OAuth2's key file, or a client "
                "certificate (empty: none)"
            ),
            KEY_FILE: "Key of the client certificate (RSA, PKCS #8)",
            ISSUER: "OAuth2's issuer (https://host/…)",
            AUDIENCE: "Audience that the issuer expects (empty: none)",
            SCOPE: "Scope that the issuer expects (empty: none)",
        },
        brokers_answer,
    ),
    Step({SERVICE_URL: "Binary protocol of the brokers (pulsar://host:6650)", CA_FILE: _CA_TEXT}, service_answers),
    Step(
        {
            DIGEST_FILE: 'File with "user:password" for ZooKeeper (digest; empty: none)',
            HOSTS: "ZooKeeper servers (host:2181,host:2181, with the chroot at the end if there is one)",
        },
        ledgers_found,
    ),
)


def credentials_in(file: str) -> tuple[Key, dict[Key, str]]:
    """Return the key that fits the content of a file with credentials, and the other keys' values that it contains."""
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return TOKEN_FILE, {}  # the trial will report that the file can't be read
    if text.startswith("{"):
        issuer = re.search(r'"issuer_url"\s*:\s*"([^"]+)"', text)
        return OAUTH2_FILE, {ISSUER: issuer[1]} if issuer else {}
    if "-----BEGIN " in text:
        return CERT_FILE, {KEY_FILE: file} if "PRIVATE KEY-----" in text else {}
    return (BASIC_FILE if ":" in text else TOKEN_FILE), {}


def is_needed(key: Key, answers: Answers) -> bool:
    """Whether a key needs an answer. An authority needs one with TLS only, a key of credentials with these only."""
    if key in (ISSUER, AUDIENCE, SCOPE):
        return OAUTH2_FILE in answers
    if key == KEY_FILE:
        return CERT_FILE in answers
    return key != CA_FILE or any(is_tls(str(answers.get(url, ""))) for url in (ADMIN_URL, SERVICE_URL))


def settings_of(answers: Answers, folder: Path) -> Settings:
    """Return the settings that a file with these answers in this folder would give. Raises ConfigError."""
    if CERT_FILE in answers and SERVICE_URL not in answers:
        # Settings refuse a client certificate without TLS, and the default service_url has none
        answers = {**answers, SERVICE_URL: _service_url(str(answers[ADMIN_URL]))}
    values: dict[str, dict[str, Any]] = {}
    for (section, key), value in answers.items():
        values.setdefault(section, {})[key] = value
    return load_values(values, folder)


def first_proposals() -> dict[Key, str]:
    """Return the default addresses, which are those of a cluster on this machine."""
    settings = load_values({}, Path.cwd())
    return {ADMIN_URL: settings.pulsar.admin_url, HOSTS: settings.zookeeper.hosts}


def proposals(answers: Answers, folder: Path, *, asks_brokers: bool) -> dict[Key, str]:
    """Return addresses that follow from the answers so far, and those that the brokers report if the role may ask."""
    found = {SERVICE_URL: _service_url(str(answers[ADMIN_URL]))}
    # only proposals: if the brokers do not answer, the operator types the addresses
    with contextlib.suppress(ReaperError):
        settings = settings_of(answers, folder)
        if asks_brokers:
            with admin_for(settings) as admin:
                found |= _reported(admin.metadata_stores())
    return found


def _reported(stores: Mapping[str, str]) -> dict[Key, str]:
    """Return the ZooKeeper servers that a broker's configuration names."""
    url = stores.get("metadataStoreUrl", "")
    return {} if not url or other_store(url) else {HOSTS: re.sub(r"^(metadata-store:)?zk:", "", url)}


def _service_url(admin_url: str) -> str:
    first = urlsplit(each_url(admin_url)[0])
    tls = first.scheme == "https"
    return f"pulsar{'+ssl' if tls else ''}://{first.hostname}:{_TLS_PORT if tls else _PORT}"
