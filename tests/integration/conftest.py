"""A service of its own for each test, on the shared cluster: its own topics, name, state and checkpoints."""

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

from streaming.adapters.pulsar.read import read
from streaming.cli.main import app
from streaming.clients import admin_for
from streaming.config.load import CONF, load
from streaming.config.settings import Settings
from streaming.errors import ReaperError, RefusedError
from streaming.ports import StoredMessage
from streaming.sandbox import clients, ledgers, topics
from streaming.sandbox.cluster import Cluster, down, up
from streaming.spark import jars as artifacts
from streaming.state.outcomes import receipts_of
from streaming.topics.requests import publish_lines
from streaming.topics.setup import ensure_topics
from tests import shared_classes
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


# The exit code that a command must have, one of several, or the one that its output calls for.
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

    def run(self, *arguments: str, stdin: bytes = b"", code: Code = 0, seconds: float = 240) -> str:
        """Run a command to its end; returns what it printed on both streams. Fails unless it ends with (one) `code`."""
        return _run(self.command(*arguments), code, seconds, input=stdin, env=_with_classes())

    def call(self, *arguments: str, code: int = 0) -> str:
        """Run a command that starts no Spark, in this process: it is as real, and saves the seconds of a start."""
        result = CliRunner().invoke(app, [*arguments, "--config", str(self.config)])
        error = result.exception
        found = error.exit_code if isinstance(error, ReaperError) else result.exit_code
        assert found == code, f"{result.output} {error!r}"
        return f"{result.output}{error if isinstance(error, ReaperError) else ''}"

    def submit(self, *arguments: str, code: int = 0, seconds: float = 240, jars: str = "") -> str:
        """The same by spark-submit, as the README has it; jars: what `ledger-reaper jars` says, if more is needed."""
        return _run(self._submitted(*arguments, jars=jars), code, seconds, **_submitting())

    def start(self, *arguments: str, log: Path, submitted: bool = False) -> subprocess.Popen[bytes]:
        """Start a command, or spark-submit with it, in a process group of its own."""
        command = self._submitted(*arguments) if submitted else self.command(*arguments)
        with log.open("ab") as out:
            how = _submitting() if submitted else {"env": _with_classes()}
            return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **how)

    def _submitted(self, *arguments: str, jars: str = "") -> list[str]:
        submit = [str(Path(sys.executable).parent / "spark-submit"), "--properties-file", "conf/spark-defaults.conf"]
        jars = jars or ",".join(str(jar) for jar in artifacts.jars())
        submit += ["--conf", f"spark.local.dir={self.config.parent / 'spark'}"]
        return [*submit, "--jars", jars, "streaming/__main__.py", *arguments, "--config", str(self.config)]

    def request(self, payloads: Iterable[bytes]) -> None:
        """What `ledger-reaper request --unchecked` does; test_service.py runs the command itself."""
        with admin_for(self.settings) as admin:
            publish_lines(self.settings, admin, payloads, unchecked=True)

    def receipts(self) -> list[dict[str, Any]]:
        """All receipts. Tests poll them: they are read again only if a file of the state has changed, on S3 always."""
        stamp = _stamp(self.config.parent / "state")
        known = _read.get(self.config)
        if known is None or known[0] != stamp or not stamp:
            known = _read[self.config] = stamp, list(receipts_of(self.settings))
        return [dict(row) for row in known[1]]

    def final(self) -> dict[str, list[dict[str, Any]]]:
        """Final receipts by original message."""
        by_message: dict[str, list[dict[str, Any]]] = {}
        for row in self.receipts():
            if row["outcome"] != "RETRY":
                by_message.setdefault(row["message_id"], []).append(row)
        return by_message

    def outcomes(self) -> Counter[tuple[str, str]]:
        return Counter((row["outcome"], row["reason"]) for some in self.final().values() for row in some)


Stamp = frozenset[tuple[str, int, int]]
_read: dict[Path, tuple[Stamp, list[dict[str, Any]]]] = {}


def _stamp(folder: Path) -> Stamp:
    """What changes with every write of a file below the folder."""
    found = set()
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            stat = file.stat()
            found.add((str(file), stat.st_size, stat.st_mtime_ns))
    return frozenset(found)


def _with_classes() -> dict[str, str]:
    return os.environ | {shared_classes.CLASS_PATH: shared_classes.class_path()}


def _submitting() -> dict[str, Any]:
    """Surroundings of spark-submit: as its users have them, but for a JVM that is up sooner."""
    environment = {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": shared_classes.SOONER}
    return {"cwd": CONF.parent, "env": os.environ | environment}


def _run(command: list[str], code: Code, seconds: float, **how: Any) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False, **how
    )
    text: str = done.stdout.decode(errors="replace")
    expected = code(text) if callable(code) else code
    assert done.returncode in (expected if isinstance(expected, tuple) else (expected,)), text[-4000:]
    return text


def deployment(
    cluster: Cluster, here: Path, *, chunk_rows: int = 50_000, extra: str = "", limits: str = ""
) -> Deployment:
    """A service of its own on the cluster, with everything it keeps in `here`."""
    classes = shared_classes.java_options(partial(_use_all_classes, cluster))
    return _deployment(cluster, here, chunk_rows=chunk_rows, extra=extra, limits=limits, classes=classes)


def _use_all_classes(cluster: Cluster, here: Path, classes: str) -> None:
    """Have the service do a little of each: refuse a request, find a ledger gone, put a request off."""
    service = _deployment(cluster, here, classes=classes)
    topic = "persistent://public/default/all-classes"
    topics.fill(cluster, topic, 2, ["s"])
    there = topics.data_ledgers(cluster, topic)[0]
    service.request([b"no request", payload(topic, 10**15), payload(topic, there)])
    service.run("run", "--until-idle")


def config_text(cluster: Cluster, **rest: object) -> str:
    """CONFIG for this cluster. rest: what else it names."""
    where = cluster.addresses
    return CONFIG.format(
        pulsar=where.pulsar,
        admin=where.admin,
        zookeeper=where.zookeeper,
        s3=where.s3,
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


Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(cluster: Cluster, tmp_path: Path) -> Deploy:
    """Factory of deployments; chunk_rows and extra TOML can be given."""

    def make(*, chunk_rows: int = 50_000, extra: str = "", folder: str = "service", limits: str = "") -> Deployment:
        here = tmp_path / folder
        here.mkdir()
        return deployment(cluster, here, chunk_rows=chunk_rows, extra=extra, limits=limits)

    return make


def read_further(service: Deployment, *names: str) -> list[str]:
    """Have a service read request topics that are named like its first one with these at the end; returns all of them.

    Makes them; nothing is in them.
    """
    (first,) = service.settings.topics.requests
    wanted = [first, *(f"{first}{name}" for name in names)]
    text = service.config.read_text()
    service.config.write_text(text.replace(f'requests = ["{first}"]', f"requests = {json.dumps(wanted)}"))
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    return wanted


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose broker has transactions."""
    home = tmp_path_factory.mktemp("transactions")
    made = up(home, broker_settings={"transactionCoordinatorEnabled": "true"})
    try:
        yield made
    finally:
        down(home)


def stop(running: subprocess.Popen[bytes]) -> None:
    """Ask a service to stop (SIGTERM), and wait until it has ended well."""
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0


@contextmanager
def killed_at_the_end(running: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Leave no process of a command behind, however the test ends."""
    try:
        yield running
    finally:
        kill(running)


def kill(running: subprocess.Popen[bytes]) -> None:
    """kill -9 a command and its children, also those that it left behind."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def wait_until(
    holds: Callable[[], object], running: subprocess.Popen[bytes], log: Path, *, seconds: float = 150
) -> None:
    """Wait for something that a running command brings about; fails with the end of its log."""
    looked = time.monotonic()
    deadline = looked + seconds
    while not holds():
        assert running.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(max(0.1, time.monotonic() - looked))  # half of the time is the command's, however much a look costs
        looked = time.monotonic()


def stored_requests(settings: Settings, topic: str) -> list[StoredMessage]:
    """What a request topic holds: nothing where there is none, or while its partitions are being made."""
    with admin_for(settings) as admin:
        if not admin.partitions(topic):
            return []
        try:
            last = admin.last_positions(topic)
        except RefusedError:
            return []
    return list(read(settings.pulsar, last))


def new_topic(kind: str) -> str:
    """A name that nobody used before."""
    return f"persistent://public/default/{kind}-{uuid.uuid4().hex[:8]}"


def leak(cluster: Cluster, topic: str, count: int) -> list[int]:
    """Make ledgers that look as if the topic had leaked them; returns their ids, which no broker gets to."""
    first = _next_ids[0]
    _next_ids[0] += count
    return list(ledgers.make_synthetic(cluster, topic, count=count, first_id=first))


_next_ids = [int(time.time() * 1000) % 1_000_000_000 + 1_000_000]  # by time: a cluster may outlive a run of the tests


def gone_owner(cluster: Cluster) -> tuple[str, tuple[int, ...]]:
    """A topic whose metadata somebody has deleted by hand; returns its name and its ledgers, all of them CLOSED."""
    topic = new_topic("gone")
    topics.fill(cluster, topic, 3, ["s"])
    # a broker that is about to begin the next ledger leaves it open behind an unload
    topics.wait_for(lambda: len(topics.data_ledgers(cluster, topic)) == 4, "the ledger behind the three full ones")
    topics.unload(cluster, topic)
    owned = ledgers.owned(cluster, topic).data
    clients.delete_znode(cluster.addresses.zookeeper, managed_ledger_path(managed_ledger_name(topic)))
    return topic, owned


def payload(topic: str, ledger_id: int, **fields: Any) -> bytes:
    """A request as JSON, as a broker would write it."""
    named = {"topicName": topic, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER", "ledgerId": ledger_id}
    return json.dumps(named | fields).encode()
