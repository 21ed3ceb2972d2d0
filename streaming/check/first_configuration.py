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
TOKEN_FILE, CA_FILE = ("pulsar", "token_file"), ("pulsar", "tls_trust_certs_file")
HOSTS, DIGEST_FILE = ("zookeeper", "hosts"), ("zookeeper", "digest_file")
EXCLUSIVE, STATE, CHECKPOINTS = ("safety", "exclusive_bookkeeper"), ("state", "dir"), ("checkpoints", "dir")
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
            TOKEN_FILE: "File with a token for the brokers (JWT; empty: none)",
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


def is_needed(key: Key, answers: Answers) -> bool:
    """Whether a key needs an answer: the certificate only if an address uses TLS."""
    return key != CA_FILE or any(is_tls(str(answers.get(url, ""))) for url in (ADMIN_URL, SERVICE_URL))


def settings_of(answers: Answers, folder: Path) -> Settings:
    """Return the settings that a file with these answers in this folder would give. Raises ConfigError."""
    values: dict[str, dict[str, Any]] = {}
    for (section, key), value in answers.items():
        values.setdefault(section, {})[key] = value
    return load_values(values, folder)


def first_proposals() -> dict[Key, str]:
    """Return the addresses of a cluster on this machine, the defaults."""
    settings = load_values({}, Path.cwd())
    return {ADMIN_URL: settings.pulsar.admin_url, HOSTS: settings.zookeeper.hosts}


def proposals(answers: Answers, folder: Path, *, asks_brokers: bool) -> dict[Key, str]:
    """Return addresses that follow from the answers so far, and those that the brokers report to this role."""
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
