"""A race: who finds and removes the ledgers that a broker leaked, how fast, and what else does each of them delete?

    .venv/bin/python -m bench.race [--ledgers 10000] [--only NAME...] [--home DIR]

A sandbox has --ledgers real ledgers, and an unmodified broker leaked a tenth of them: data, cursors, schemas, compacted
ledgers and buckets of delayed messages, of topics and partitions, and of tenant `dead` (bench/race_world.py). The
tenant's bundle is registered for an address of no running broker, which answers each call with 500. Each contestant
starts from a copy of the same data, while five topics roll ledgers over and a typed topic is created every three
seconds.

    bookie       curl over the HTTP APIs of bookie and broker; skips topics that fail, with a warning
    script       kazoo and the broker's REST API, one call after the other; skips topics that fail, with a warning
    careful      the same script, which keeps the ledgers of topics that it could not ask
    ours         `ledger-reaper audit --publish`, then `ledger-reaper run` until each request has a final receipt

All list the ledgers before the references, so none takes a ledger that is created during its search for an orphan.
The ages that ours waits for are seconds, not hours, because the leaks are minutes old.

"False" orphans are ledgers that a contestant calls orphans and that are in use before and after its search, or new.
"Destroyed" are ledgers that are still referenced after the removal, and no longer exist. CPU is that of the
contestant's processes. The servers' CPU and ZooKeeper's requests (packets that its command srvr counts; a bulk read is
one) are those beyond what the traffic alone causes.
"""

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from bench import race_world
from bench.race_judge import KINDS, Found, Removed, State, judge_removal, judge_search, read_state
from bench.race_world import Plan, Traffic, World, server_cpu_s
from bench.session import command_line
from streaming.config.load import load
from streaming.sandbox import cluster as clusters
from streaming.sandbox.cluster import Cluster
from streaming.state.outcomes import receipts_of

RACERS = Path(__file__).parent / "racers"
NAMES = ("bookie", "script", "careful", "ours")
_SETTLE_S = 5.0
_ALONE_S = 10.0  # in which the traffic runs alone, and is measured
_TOOL_MEMORY = "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=128m"
_QUIET_PERIOD = '[safety]\nopen_quiet_period = "10s"\n'


@dataclass(kw_only=True)
class Cost:
    """Time and requests of a phase."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    servers_cpu_s: float = 0.0
    zookeeper_requests: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            wall_s=self.wall_s + other.wall_s,
            cpu_s=self.cpu_s + other.cpu_s,
            servers_cpu_s=self.servers_cpu_s + other.servers_cpu_s,
            zookeeper_requests=self.zookeeper_requests + other.zookeeper_requests,
        )


@dataclass(kw_only=True)
class Result:
    """The result of a contestant."""

    name: str
    ledgers: int
    found: Found | None = None
    removed: Removed | None = None
    search: Cost = field(default_factory=Cost)
    removal: Cost = field(default_factory=Cost)
    remarks: list[str] = field(default_factory=list)

    def rates(self) -> tuple[float, float]:
        """Return ledgers judged a second of search, and leaked ledgers removed a second of search and removal."""
        removed = self.removed.orphans.total() if self.removed else 0
        whole_s = self.search.wall_s + self.removal.wall_s
        return self.ledgers / self.search.wall_s if self.search.wall_s else math.nan, removed / whole_s


class Race:
    """The cluster on which one contestant runs, with traffic."""

    def __init__(self, cluster: Cluster, world: World, folder: Path) -> None:
        self.cluster = cluster
        self.world = world
        self.folder = folder
        self._alone: dict[str, float] = {}
        folder.mkdir(parents=True)

    def measure_traffic(self) -> None:
        """Measure what the traffic alone costs the servers."""
        began_s, cpu_s, packets = time.monotonic(), self._cpu_s(), packets_received(self.cluster)
        time.sleep(_ALONE_S)
        took_s = time.monotonic() - began_s
        self._alone = {
            "cpu": (self._cpu_s() - cpu_s) / took_s,
            "packets": (packets_received(self.cluster) - packets) / took_s,
        }

    def _cpu_s(self) -> float:
        return sum(server_cpu_s(self.cluster).values())

    def state(self) -> State:
        """Read the ledgers."""
        return read_state(self.cluster, self.world.compacted)

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None, *, codes: Sequence[int] = (0,)) -> Cost:
        """Run a step of a contestant in its folder, and measure it."""
        report = self.folder / "cost.json"
        cpu_s, packets = self._cpu_s(), packets_received(self.cluster)
        with (self.folder / "log").open("ab") as log:
            subprocess.run(
                [sys.executable, "-m", "bench.process_cpu", str(report), *command],
                env={**os.environ, "PYTHONPATH": str(RACERS.parents[1]), **(env or {})},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )
        used = json.loads(report.read_text())
        if used["code"] not in codes:
            tail = (self.folder / "log").read_text()[-3000:]
            raise SystemExit(f"{' '.join(command)} ended with {used['code']}: {tail}")
        wall_s = used["wall_s"]
        return Cost(
            wall_s=wall_s,
            cpu_s=used["cpu_s"],
            servers_cpu_s=self._cpu_s() - cpu_s - self._alone["cpu"] * wall_s,
            zookeeper_requests=packets_received(self.cluster) - packets - self._alone["packets"] * wall_s,
        )

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file of the contestant; none if it does not exist."""
        file = self.folder / name
        return file.read_text().splitlines() if file.is_file() else []


def packets_received(cluster: Cluster) -> int:
    """Return how many packets ZooKeeper has received since its start."""
    host, port = cluster.addresses.zookeeper.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"srvr")
        answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    return int(re.findall(r"^Received: (\d+)", answer, re.MULTILINE)[0])


def _searched(race: Race, result: Result, search: Callable[[], set[int]]) -> State:
    """Let the contestant search, and judge the ledgers that it names."""
    before = race.state()
    named = search()
    after = race.state()
    result.found = judge_search(named, race.world.leaked, before, after)
    return after


def _removed(race: Race, result: Result, before: State, remove: Callable[[], None]) -> None:
    remove()
    result.removed = judge_removal(race.world.leaked, before, race.state())


def bookie(race: Race, result: Result) -> None:
    """Run the loop over the bookie's API."""
    env = {"BOOKIE": race.cluster.addresses.bookie_http, "ADMIN": race.cluster.addresses.admin}
    _loop(race, result, lambda what: race.run(["bash", str(RACERS / "bookie_loop.sh"), what], env))


def script(race: Race, result: Result, *options: str) -> None:
    """Run the Python script."""
    addresses = race.cluster.addresses
    command = [sys.executable, str(RACERS / "python_script.py")]
    _loop(race, result, lambda what: race.run([*command, what, addresses.zookeeper, addresses.admin, *options]))


def _loop(race: Race, result: Result, step: Callable[[str], Cost]) -> None:
    def search() -> set[int]:
        result.search = step("find")
        return {int(line) for line in race.lines("orphans")}

    def remove() -> None:
        result.removal = step("delete")

    after = _searched(race, result, search)
    _removed(race, result, after, remove)


def ours(race: Race, result: Result) -> None:
    """Run the audit and the service."""
    config = configured(race)

    def search() -> set[int]:
        command = ["audit", "--json", "--publish", "--yes", "--publish-per-second", "0", "--recheck-seconds", "5"]
        result.search = race.run(_ledger_reaper(config, *command), codes=(0, 4))
        printed = [json.loads(line) for line in race.lines("log") if line.startswith("{")]
        findings = [row for row in printed if "class" in row]
        result.remarks.append(f"audit: {dict(Counter((row['class'], row['reason']) for row in findings))}")
        return {row["ledger_id"] for row in findings if row["class"] == "ORPHAN"}

    after = _searched(race, result, search)
    _removed(race, result, after, lambda: _serve(race, result, config))


def _serve(race: Race, result: Result, config: Path) -> None:
    result.removal = race.run(_ledger_reaper(config, "run", "--until-idle"), codes=(0, 4))
    receipts = [row for row in receipts_of(load(config)) if row["outcome"] != "RETRY"]
    result.remarks.append(f"final receipts: {dict(Counter((row['outcome'], row['reason']) for row in receipts))}")


def configured(race: Race) -> Path:
    """Return a configuration with the sandbox's ages of seconds, for OPEN ledgers as well."""
    config = race.folder / "race.toml"
    config.write_text(race.cluster.home.config.read_text().replace("[safety]\n", _QUIET_PERIOD))
    return config


def _ledger_reaper(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "streaming", *arguments, "--config", str(config)]


CONTESTANTS: Mapping[str, Callable[[Race, Result], None]] = {
    "bookie": bookie,
    "script": script,
    "careful": lambda race, result: script(race, result, "--careful"),
    "ours": ours,
}


def compete(home: Path, world: World, name: str) -> Result:
    """Run a contestant on a cluster that starts from the copy."""
    folder = home / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    with race_world.failing_broker() as port:
        cluster = race_world.restore(home, world, port)
        result = Result(name=name, ledgers=len(world.leaked) + len(world.used))
        race = Race(cluster, world, folder)
        with Traffic(cluster) as traffic:
            time.sleep(_SETTLE_S)
            race.measure_traffic()
            CONTESTANTS[name](race, result)
        result.remarks.append(f"traffic: {traffic.sent} messages, {traffic.failures} failures")
    (folder / "result.json").write_text(json.dumps(_plain(result), indent=2))
    print(f"{name}: {result}", flush=True)
    return result


def _plain(value: Any) -> Any:
    """Return dataclasses as dicts; dataclasses.asdict() fails on a Counter."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value


def table(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    heads = (
        "contestant | orphans found | **false** | missed | search | removed | **destroyed** | removal"
        " | judged/s | removed/s | servers' CPU s | ZooKeeper requests"
    )
    yield f"| {heads} |"
    yield "|---" * (heads.count("|") + 1) + "|"
    for result in results:
        found, removed, both = result.found, result.removed, result.search + result.removal
        judged, rate = result.rates()
        cells = [
            result.name,
            _shown(found.orphans) if found else "",
            _shown(found.false + found.false_young) if found else "",
            _shown(found.missed) if found else "",
            _took(result.search) if found else "",
            _shown(removed.orphans) if removed else "",
            _shown(removed.destroyed) if removed else "",
            _took(result.removal),
            f"{judged:.1f}" if found else "",
            f"{rate:.2f}",
            f"{both.servers_cpu_s:.1f}",
            f"{both.zookeeper_requests:.0f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _took(cost: Cost) -> str:
    return f"{cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s"


def _shown(counts: Counter[str]) -> str:
    kinds = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    return f"{counts.total()} ({kinds})" if kinds else "0"


@contextmanager
def _home(wanted: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="race-") as scratch:
        home = (wanted or Path(scratch)).absolute()
        try:
            yield home
        finally:
            clusters.down(home)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--home", type=Path, help="keep the cluster here, and use the one that an earlier race made")
    options = parser.parse_args()
    with _home(options.home) as home:
        world = race_world.load(home) or race_world.create(home, Plan(options.ledgers))
        print(world.summary, flush=True)
        results = [compete(home, world, name) for name in options.only]
    print("\n".join(table(results)))
    print(json.dumps([_plain(result) for result in results]))


if __name__ == "__main__":
    main()
