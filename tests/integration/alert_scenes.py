"""A real service on a real cluster, and what Prometheus would get from it.

promtool evaluates the rules on what the service serves. A scrape counts as what Prometheus gets for as long as an alert
waits (`for:`), so that no test waits for hours.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from streaming.sandbox.cluster import Cluster
from tests.contract.zookeeper_server import free_port
from tests.integration.conftest import Deployment, config_text, kill, running_cluster, stop
from tests.integration.missing_world import World
from tests.scrapes import Scrape, scrape_of

PATIENCE_S = 600


@dataclass(frozen=True)
class Scene(World):
    """A world whose service runs, on a fixed port."""

    log: Path
    runs: list[Popen[bytes]] = field(default_factory=list)

    @property
    def running(self) -> Popen[bytes]:
        """The process of the service."""
        return self.runs[-1]

    def scrape(self) -> Scrape:
        """Return what the service serves."""
        return scrape_at(self.service.settings.metrics.port)

    def until(self, holds: Callable[[Scrape], object], seconds: float = PATIENCE_S) -> Scrape:
        """Wait until a scrape is so, and return it."""
        return until(self.service.settings.metrics.port, holds, self.running, self.log, seconds)

    def until_logged(self, text: str) -> None:
        """Wait until the log of all runs has a text."""
        self.until(lambda _scrape: text in self.log.read_text())

    def until_receipt(self, ledger_id: int, outcome: str) -> None:
        """Wait for a receipt of a ledger."""
        self.until(
            lambda _scrape: any(
                row["ledger_id"] == ledger_id and row["outcome"] == outcome for row in self.service.receipts()
            )
        )

    def start(self) -> Scrape:
        """Start the service, wait until it is ready, and return its scrape."""
        self.runs.append(self.service.start("run", log=self.log))
        return self.until(lambda scrape: scrape.value("ledger_reaper_ready") == 1)

    def restart(self, *changes: tuple[str, str]) -> None:
        """Stop the service, replace texts of its configuration, and start it."""
        stop(self.running)
        text = self.service.config.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.service.config.write_text(text)
        self.start()

    @property
    def requests(self) -> str:
        """The request topic."""
        return self.service.settings.topics.requests[0]


def scrape_at(port: int) -> Scrape:
    """Return what a process serves."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return scrape_of(answer.read().decode())


def until(
    port: int, holds: Callable[[Scrape], object], running: Popen[bytes], log: Path, seconds: float = PATIENCE_S
) -> Scrape:
    """Wait until a scrape of a process is so, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        assert running.poll() is None, log.read_text()[-4000:]
        try:
            found = scrape_at(port)
        except (HTTPError, URLError, ConnectionError):  # it starts
            found = Scrape("", 0)
        if holds(found):
            return found
        assert time.monotonic() < deadline, found.text + log.read_text()[-2000:]
        time.sleep(0.3)


@contextmanager
def running_scene(
    cluster: Cluster, here: Path, *changes: tuple[str, str], name: str = "alerts", limits: str = ""
) -> Iterator[Scene]:
    """Run a service on a cluster. `changes` replace texts of conftest.CONFIG."""
    here.mkdir(exist_ok=True)
    texts = {"name": name, "chunk_rows": 1000, "home": cluster.home.root, "here": here, "classes": ""}
    text = config_text(cluster, limits=limits, **texts)
    for old, new in (*changes, ("[metrics]\nport = 0", f"[metrics]\nport = {free_port()}")):
        assert old in text
        text = text.replace(old, new)
    config = here / "local.toml"
    config.write_text(text)
    service = Deployment(config)
    state = Path(service.settings.state_dir)
    state.mkdir()
    created = Scene(cluster, service, state, here / "log")
    created.start()
    try:
        yield created
    finally:
        kill(created.running)


@contextmanager
def watching_scene(temporary: pytest.TempPathFactory, *, limits: str = "") -> Iterator[Scene]:
    """Run a cluster that keeps the entries of deleted ledgers, and a service with a watcher and strict shrink rules."""
    home, here = temporary.mktemp("cluster"), temporary.mktemp("service")
    with running_cluster(home, gc_wait_seconds=3600) as cluster, pytest.MonkeyPatch.context() as environment:
        environment.setenv("LEDGER_REAPER__SAFETY__MAX_SHRINK", "0.5")
        environment.setenv("LEDGER_REAPER__SAFETY__SHRINK_APPLIES_ABOVE_LEDGERS", "5")
        environment.setenv("LEDGER_REAPER__WATCH__ENABLED", "true")
        with running_scene(cluster, here, limits=limits) as created:
            yield created


def alerts(*names: str) -> set[str]:
    """Return the full names."""
    return {f"LedgerReaper{name}" for name in names}


def record(name: str, scrape: Scrape) -> None:
    """Keep a scrape for the dashboard's test, if it is to be recorded."""
    if os.environ.get("RECORD_SCRAPE"):
        scrape.record(name)
