"""Fixtures of integration tests: each test has a service with its own topics, name, state and checkpoints."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streaming.adapters.pulsar.readers.read import read
from streaming.cli.main import app
from streaming.clients import admin_for
from streaming.config.load import CONF, load
from streaming.config.settings import Settings
from streaming.errors import ReaperError, RefusedError
from streaming.ports import StoredMessage
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster, down, up
from streaming.sandbox.parts import part_clients
from streaming.spark import jars as artifacts
from streaming.spark.installed import has_connector
from streaming.state.outcomes import receipts_of
from streaming.topics.requests import publish_lines
from streaming.topics.setup import ensure_topics
from tests import shared_classes
from tests.integration import console
from tests.integration.installation import dist, installed, source  # noqa: F401  fixtures
from udfs.paths import managed_ledger_name, managed_ledger_path

CONFIG = """
[service]
name = "{name}"
trigger_seconds = 1
chunk_rows = {chunk_rows}
[pulsar]
service_url = "{pulsar}"
admin_url = "{admin}"
[zookeeper]
hosts = "{zookeeper}"
session_timeout_seconds = 6
[topics]
requests = ["persistent://pulsar/system/{name}"]
[two_phase]
reconsume_later_seconds = 2
not_closed_later_seconds = 2
max_retry_delete_count = 2
send_delay_seconds = 0
[safety]
exclusive_bookkeeper = true
min_age_seconds = 1
above_newest_quarantine_seconds = 1
[limits]
deletes_per_second = 0
max_share_per_hour = 1.0
{limits}
[tiered_storage]
allowed = [{{ endpoint = "{s3}", bucket = "{bucket}", cluster_names_are_unique = true }}]
credentials_file = "{home}/aws-credentials"
offload_grace_seconds = 1
[state]
dir = "{here}/state"
[checkpoints]
dir = "{here}/checkpoints"
[spark]
ui_port = 0
java_options = "-XX:TieredStopAtLevel=1 {classes}"
local_dir = "{here}/spark"
[metrics]
port = 0
"""

collect_ignore = ["test_spark4_faults.py", "test_spark4_source.py"] if has_connector() else []  # it needs PySpark 4


def pytest_collection_finish(session: pytest.Session) -> None:
    """Create the archive of classes only for many starts of the service, as in long tests."""
    shared_classes.Archive.is_created = any(item.get_closest_marker("long") for item in session.items)


# The required exit code, several allowed codes, or a function of the output.
Code = int | tuple[int, ...] | Callable[[str], int]


@dataclass(frozen=True)
class Deployment:
    """A configuration and the command line over it."""

    config: Path

    @property
    def settings(self) -> Settings:
        return load(self.config)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "streaming", *arguments, "--config", str(self.config)]

    @property
    def console(self) -> console.Console:
        """Runs commands faster than `run`, in a process that has run commands before."""
        return console.Console(str(self.config))

    def run(self, *arguments: str, stdin: bytes = b"", code: Code = 0, seconds: float = 240) -> str:
        """Run a command; return its output on both streams. Fail unless the exit code fits `code`."""
        return _run(self.command(*arguments), code, seconds, input=stdin, env=_with_classes())

    def call(self, *arguments: str, code: int = 0) -> str:
        """Run a command that starts no Spark in this process, which saves the seconds of a start."""
        result = CliRunner().invoke(app, [*arguments, "--config", str(self.config)])
        error = result.exception
        exit_code = error.exit_code if isinstance(error, ReaperError) else result.exit_code
        assert exit_code == code, f"{result.output} {error!r}"
        return f"{result.output}{error if isinstance(error, ReaperError) else ''}"

    def document(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run a command as `call` does; return the JSON object in its output, which other texts may surround."""
        text = self.call(*arguments, "--json", code=code)
        document, _end = json.JSONDecoder().raw_decode(text[text.index("{") :])
        assert isinstance(document, dict)
        return document

    def submit(self, *arguments: str, code: int = 0, seconds: float = 240, jars: str = "") -> str:
        """Run a command through spark-submit, as in the README.

        Args:
            jars: the output of `ledger-reaper jars`, if the command needs more than the usual jars.
        """
        return _run(self._submitted(*arguments, jars=jars), code, seconds, **_submitting())

    def start(self, *arguments: str, log: Path, submitted: bool = False) -> subprocess.Popen[bytes]:
        """Start a command, or spark-submit with it, in a process group of its own."""
        command = self._submitted(*arguments) if submitted else self.command(*arguments)
        with log.open("ab") as out:
            options = _submitting() if submitted else {"env": _with_classes()}
            return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options)

    def _submitted(self, *arguments: str, jars: str = "") -> list[str]:
        submit = [str(Path(sys.executable).parent / "spark-submit"), "--properties-file", "conf/spark-defaults.conf"]
        jars = jars or ",".join(str(jar) for jar in artifacts.jars())
        submit += ["--conf", f"spark.local.dir={self.config.parent / 'spark'}"]
        return [*submit, "--jars", jars, "streaming/__main__.py", *arguments, "--config", str(self.config)]

    def request(self, payloads: Iterable[bytes]) -> None:
        """Publish requests as `ledger-reaper request --unchecked` does; test_service.py runs the command itself."""
        with admin_for(self.settings) as admin:
            publish_lines(self.settings, admin, payloads, unchecked=True)

    def receipts(self) -> list[dict[str, Any]]:
        """Return all receipts; since tests poll them, a local state is read again only if a file has changed."""
        stamp = _stamp(self.config.parent / "state")
        cached = _read.get(self.config)
        if cached is None or cached[0] != stamp or not stamp:
            cached = _read[self.config] = stamp, list(receipts_of(self.settings))
        return [dict(row) for row in cached[1]]

    def final(self) -> dict[str, list[dict[str, Any]]]:
        """Return the final receipts by original message."""
        by_message: dict[str, list[dict[str, Any]]] = {}
        for row in self.receipts():
            if row["outcome"] != "RETRY":
                by_message.setdefault(row["message_id"], []).append(row)
        return by_message

    def outcomes(self) -> Counter[tuple[str, str]]:
        return Counter((row["outcome"], row["reason"]) for rows in self.final().values() for row in rows)


Stamp = frozenset[tuple[str, int, int]]
_read: dict[Path, tuple[Stamp, list[dict[str, Any]]]] = {}


def _stamp(folder: Path) -> Stamp:
    """Return path, size and time of each file below the folder."""
    files = set()
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            stat = file.stat()
            files.add((str(file), stat.st_size, stat.st_mtime_ns))
    return frozenset(files)


def _with_classes() -> dict[str, str]:
    return os.environ | {shared_classes.CLASS_PATH: shared_classes.class_path()}


def _submitting() -> dict[str, Any]:
    """Return directory and environment of spark-submit: the operator's, with options for a faster start of the JVM."""
    environment = {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": shared_classes.SOONER}
    return {"cwd": CONF.parent, "env": os.environ | environment}


def _run(command: list[str], code: Code, seconds: float, **options: Any) -> str:
    completed = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False, **options
    )
    text: str = completed.stdout.decode(errors="replace")
    expected = code(text) if callable(code) else code
    assert completed.returncode in (expected if isinstance(expected, tuple) else (expected,)), text[-4000:]
    return text


def deployment(
    cluster: Cluster, here: Path, *, chunk_rows: int = 50_000, extra: str = "", limits: str = ""
) -> Deployment:
    """Configure a service that keeps all its files in `here`."""
    classes = shared_classes.java_options(partial(_use_all_classes, cluster))
    return _deployment(cluster, here, chunk_rows=chunk_rows, extra=extra, limits=limits, classes=classes)


def _use_all_classes(cluster: Cluster, here: Path, classes: str) -> None:
    """Run the service so that it loads all classes: it refuses a request, finds a ledger gone, retries a request."""
    service = _deployment(cluster, here, classes=classes)
    topic = "persistent://public/default/all-classes"
    topics.fill(cluster, topic, 2, ["s"])
    listed = topics.data_ledgers(cluster, topic)[0]
    service.request([b"no request", payload(topic, 10**15), payload(topic, listed)])
    service.run("run", "--until-idle", seconds=600)  # without the archive, on a busy machine


def config_text(cluster: Cluster, **rest: object) -> str:
    """Fill in CONFIG for this cluster; `rest` are the other placeholders."""
    addresses = cluster.addresses
    return CONFIG.format(
        pulsar=addresses.pulsar,
        admin=addresses.admin,
        zookeeper=addresses.zookeeper,
        s3=addresses.s3,
        bucket=cluster.bucket,
        **rest,
    )


def _deployment(
    cluster: Cluster, here: Path, *, classes: str, chunk_rows: int = 50_000, extra: str = "", limits: str = ""
) -> Deployment:
    text = config_text(
        cluster,
        name=f"t{uuid.uuid4().hex[:10]}",
        chunk_rows=chunk_rows,
        home=cluster.home.root,
        here=here,
        limits=limits,
        classes=classes,
    )
    config = here / "config.toml"
    config.write_text(text + extra)
    return Deployment(config)


@pytest.fixture(scope="session", autouse=True)
def _process_of_consoles() -> Iterator[None]:
    with console.process():
        yield


Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(cluster: Cluster, tmp_path: Path) -> Deploy:
    """Return a factory of deployments."""

    def make(*, chunk_rows: int = 50_000, extra: str = "", folder: str = "service", limits: str = "") -> Deployment:
        here = tmp_path / folder
        here.mkdir()
        return deployment(cluster, here, chunk_rows=chunk_rows, extra=extra, limits=limits)

    return make


def add_request_topics(service: Deployment, *suffixes: str) -> list[str]:
    """Add request topics to the configuration, named like the first topic with these suffixes, and create them.

    Returns:
        All request topics.
    """
    (first,) = service.settings.topics.requests
    requests = [first, *(f"{first}{suffix}" for suffix in suffixes)]
    text = service.config.read_text()
    service.config.write_text(text.replace(f'requests = ["{first}"]', f"requests = {json.dumps(requests)}"))
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    return requests


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose broker has transactions enabled."""
    settings = {"transactionCoordinatorEnabled": "true"}
    with running_cluster(tmp_path_factory.mktemp("transactions"), broker_settings=settings) as running:
        yield running


@contextmanager
def running_cluster(home: Path, **options: Any) -> Iterator[Cluster]:
    """Run a cluster in a folder, with these options of `up`."""
    try:
        yield up(home, **options)
    finally:
        down(home)


def create_tenant(cluster: Cluster, tenant: str, *namespaces: str) -> None:
    """Create a tenant and namespaces of it."""
    clusters = json.loads(topics.admin(cluster, "GET", "clusters"))
    topics.admin(cluster, "PUT", f"tenants/{tenant}", {"allowedClusters": clusters, "adminRoles": []})
    for namespace in namespaces:
        topics.admin(cluster, "PUT", f"namespaces/{tenant}/{namespace}")


def load_hook(environment: pytest.MonkeyPatch, name: str, **variables: object) -> None:
    """Let processes that start from now on load a hook of tests/data, with its variables."""
    hook = Path(__file__).parent.parent / "data" / name
    environment.setenv("PYTHONPATH", os.pathsep.join([str(hook), os.environ.get("PYTHONPATH", "")]))
    for variable, value in variables.items():
        environment.setenv(variable, str(value))


def stop(running: subprocess.Popen[bytes]) -> None:
    """Send a service SIGTERM, and wait until it ends with exit code 0."""
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0


@contextmanager
def killed_at_the_end(running: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill all processes of a command at the end of the test."""
    try:
        yield running
    finally:
        kill(running)


def kill(running: subprocess.Popen[bytes]) -> None:
    """kill -9 a command and its children, including orphaned processes."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def wait_until(
    holds: Callable[[], object], running: subprocess.Popen[bytes], log: Path, *, seconds: float = 150
) -> None:
    """Wait for an effect of a running command; fail with the end of its log."""
    checked = time.monotonic()
    deadline = checked + seconds
    while not holds():
        assert running.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(max(0.2, 3 * (time.monotonic() - checked)))  # costly checks take a quarter of the time
        checked = time.monotonic()


def stored_requests(settings: Settings, topic: str) -> list[StoredMessage]:
    """Return the messages of a request topic; none if it does not exist or its partitions are being created."""
    with admin_for(settings) as admin:
        if not admin.partitions(topic):
            return []
        try:
            last = admin.last_positions(topic)
        except RefusedError:
            return []
    return list(read(settings.pulsar, last))


def new_topic(kind: str) -> str:
    """Return a name that was not used before."""
    return f"persistent://public/default/{kind}-{uuid.uuid4().hex[:8]}"


def leak(cluster: Cluster, topic: str, count: int) -> list[int]:
    """Create synthetic ledgers that the topic seems to have leaked; return their ids, above every id of a broker."""
    first = _next_ids[0]
    _next_ids[0] += count
    return list(ledger_list.make_synthetic(cluster, topic, count=count, first_id=first))


FIRST_SYNTHETIC = 1_000_000  # above the ids of brokers
# by time: a cluster may outlive a run of the tests
_next_ids = [int(time.time() * 1000) % 1_000_000_000 + FIRST_SYNTHETIC]


def gone_owner(cluster: Cluster) -> tuple[str, tuple[int, ...]]:
    """Create a topic and delete its metadata, as an operator may; return its name and its ledgers, all CLOSED."""
    topic = new_topic("gone")
    topics.fill(cluster, topic, 3, ["s"])
    # an unload that interrupts the creation of the next ledger leaves that ledger open
    topics.wait_for(lambda: len(topics.data_ledgers(cluster, topic)) == 4, "the ledger after the three full ledgers")
    topics.unload(cluster, topic)
    owned = ledger_list.owned(cluster, topic).data
    part_clients.delete_znode(cluster.addresses.zookeeper, managed_ledger_path(managed_ledger_name(topic)))
    return topic, owned


def payload(topic: str, ledger_id: int, **fields: Any) -> bytes:
    """Return a request as JSON, as a broker would write it."""
    request = {"topicName": topic, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER", "ledgerId": ledger_id}
    return json.dumps(request | fields).encode()
