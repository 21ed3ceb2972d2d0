"""A race: who finds and removes the ledgers that a broker leaked, how fast, and what else does each of them delete?

    .venv/bin/python -m bench.race [--ledgers 10000] [--only NAME...] [--sample 100] [--home DIR]

A sandbox has --ledgers real ledgers, and an unmodified broker leaked a tenth of them: data, cursors, schemas, compacted
ledgers and buckets of delayed messages, of topics and partitions, and of tenant `dead` (bench/race_world.py). The
broker answers each call about the tenant's topics with 500, because the policies of their namespace are unreadable.
Each contestant starts from a copy of the same data, while five topics roll ledgers over and a typed topic is created
every three seconds.

    shell        bookkeeper shell and pulsar-admin; keeps the ledgers of topics and namespaces that it could not ask
    bookie       curl over the HTTP APIs of bookie and broker; skips topics that fail, with a warning
    script       kazoo and the broker's REST API, one call after the other; skips topics that fail, with a warning
    careful      the same script, which keeps the ledgers of topics that it could not ask, and all buckets
    pip-186      PIP-186's consumer, which searches nothing: it gets requests for all leaks, and for some ledgers in use
    ours         `ledger-reaper audit --publish`, then `ledger-reaper run` until each request has a final receipt; then
                 the policies are repaired, all topics are loaded, and both commands run again
    ours-fed     `ledger-reaper run` with the requests of pip-186

All list the ledgers before the references, so none takes a ledger that is created during its search for an orphan.
The shell starts a JVM for each topic and ledger: it runs on --sample ledgers and a quarter as many topics, and its
seconds are those of the sample times the number of topics or ledgers; the other answers come from the same API by curl,
untimed. The ages that ours waits for are seconds, not hours, because the leaks are minutes old.

"False" orphans are ledgers that a contestant calls orphans and that are in use before and after its search, or new.
"Destroyed" are ledgers that are still referenced after the removal, and no longer exist. CPU is that of the
contestant's processes. ZooKeeper's requests are the packets that its command srvr counts (a bulk read is one), without
those of the traffic: as many for each message as before the contestant starts.
"""

import json
import math
import os
import random
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
from bench.race_world import Plan, Traffic, World, request_of
from bench.session import command_line
from streaming.adapters.pulsar.publish import OutgoingRequest, send_all
from streaming.clients import admin_for
from streaming.config.load import load
from streaming.sandbox import cluster as clusters
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts.launch import java_environment
from streaming.sandbox.parts.part_clients import publish, subscribe
from streaming.sandbox.parts.part_settings import metadata_service_uri
from streaming.state.outcomes import receipts_of
from streaming.topics.setup import ensure_topics
from udfs.paths import LEDGERS_ROOT

RACERS = Path(__file__).parent / "racers"
NAMES = ("shell", "bookie", "script", "careful", "pip-186", "ours", "ours-fed")
_SETTLE_S = 5.0
_ALONE_S = 10.0  # in which the traffic runs alone, and is measured
_TOOL_MEMORY = "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=128m"
_QUIET_PERIOD = '[safety]\nopen_quiet_period = "10s"\n'


@dataclass(kw_only=True)
class Cost:
    """Time and requests of a phase."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    zookeeper_requests: float = 0.0
    extrapolated: bool = False

    def __add__(self, other: "Cost") -> "Cost":
        return self.times(1, other)

    def times(self, factor: float, base: "Cost | None" = None) -> "Cost":
        """Return the cost multiplied, plus the base."""
        base = base or Cost()
        return Cost(
            wall_s=base.wall_s + factor * self.wall_s,
            cpu_s=base.cpu_s + factor * self.cpu_s,
            zookeeper_requests=base.zookeeper_requests + factor * self.zookeeper_requests,
            extrapolated=base.extrapolated or self.extrapolated or factor != 1,
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
    again: Cost | None = None  # search and removal after the repair
    removed_again: Removed | None = None
    remarks: list[str] = field(default_factory=list)
    fraction_removed: float = 1.0  # of what it found, where the removal is a sample

    def rates(self) -> tuple[float, float]:
        """Return ledgers judged a second of search, and leaked ledgers removed a second of search and removal."""
        removed = self.removed.orphans.total() / self.fraction_removed if self.removed else 0
        whole_s = self.search.wall_s + self.removal.wall_s
        return self.ledgers / self.search.wall_s if self.search.wall_s else math.nan, removed / whole_s


class Race:
    """The cluster on which one contestant runs, with traffic."""

    def __init__(self, cluster: Cluster, world: World, traffic: Traffic, folder: Path, sample: int) -> None:
        self.cluster = cluster
        self.world = world
        self.folder = folder
        self.sample = sample
        self._traffic = traffic
        self._packets_a_message = 0.0
        folder.mkdir(parents=True)

    def measure_traffic(self) -> None:
        """Measure how many requests the traffic alone causes."""
        sent, packets = self._traffic.sent, packets_received(self.cluster)
        time.sleep(_ALONE_S)
        self._packets_a_message = (packets_received(self.cluster) - packets) / (self._traffic.sent - sent)

    def state(self) -> State:
        """Read the ledgers."""
        return read_state(self.cluster, self.world.compacted)

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None, *, codes: Sequence[int] = (0,)) -> Cost:
        """Run a step of a contestant in its folder, and measure it."""
        report = self.folder / "cost.json"
        sent, packets = self._traffic.sent, packets_received(self.cluster)
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
        of_traffic = self._packets_a_message * (self._traffic.sent - sent)
        return Cost(
            wall_s=used["wall_s"],
            cpu_s=used["cpu_s"],
            zookeeper_requests=packets_received(self.cluster) - packets - of_traffic,
        )

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file of the contestant; none if it does not exist."""
        file = self.folder / name
        return file.read_text().splitlines() if file.is_file() else []

    def write(self, name: str, lines: Sequence[str]) -> None:
        """Write a file for the contestant."""
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def some(self, lines: Sequence[str], share: float = 1) -> list[str]:
        """Return a sample, the same in each race."""
        wanted = max(1, round(self.sample * share))
        return sorted(random.Random(1).sample(sorted(lines), min(wanted, len(lines))))


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


def shell(race: Race, result: Result) -> None:
    """Run a sample of the loop over the shells, and take the other answers from curl."""
    cluster = race.cluster
    conf, scratch = race.folder / "shell.conf", race.folder / "scratch"
    scratch.mkdir()
    conf.write_text(
        f"zkServers={cluster.addresses.zookeeper}\nmetadataServiceUri={metadata_service_uri(cluster.spec)}\n"
        f"zkLedgersRootPath={LEDGERS_ROOT}\n"
    )
    client = race.folder / "client.conf"
    client.write_text(f"webServiceUrl={cluster.addresses.admin}\nbrokerServiceUrl={cluster.addresses.pulsar}\n")
    env = {
        **java_environment(cluster.home, scratch, _TOOL_MEMORY, cluster.pulsar),
        "BOOKIE_CONF": str(conf),
        "PULSAR_CLIENT_CONF": str(client),
        "PULSAR": str(cluster.pulsar),
        "ADMIN": cluster.addresses.admin,
        "BOOKIE": cluster.addresses.bookie_http,
    }

    def step(*arguments: str) -> Cost:
        return race.run(["bash", str(RACERS / "shell_loop.sh"), *arguments], env)

    def sampled(what: str, lines: list[str], chosen: list[str]) -> Cost:
        race.write("sample", chosen)
        return step(what, "sample").times(len(lines) / len(chosen))

    def search() -> set[int]:
        result.search = step("ledgers") + step("topics")
        names = race.lines("topics")
        chosen = race.some(names, 0.25)
        result.search += sampled("stats", names, chosen)
        race.write("topics", [name for name in names if name not in set(chosen)])
        race.run(["bash", str(RACERS / "bookie_loop.sh"), "references"], env)
        result.search += step("candidates")
        candidates = race.lines("candidates")
        result.search += sampled("metadata", candidates, race.some(candidates))
        # the shell prints the metadata of each ledger; those that it was not asked for come from the copy of the world
        failed = tuple(name.removeprefix("persistent://") for name in race.lines("failed"))
        result.remarks.append(f"{len(names)} topics, {len(candidates)} candidates, failed: {len(failed)}")
        return {int(ledger) for ledger in candidates if not _names_one_of(race.world, int(ledger), failed)}

    def remove() -> None:
        lines = [str(ledger) for ledger in named]
        chosen = race.some(lines)
        result.removal = sampled("delete", lines, chosen)
        result.fraction_removed = len(chosen) / len(named)
        result.remarks.append(f"deleted {len(chosen)} of {len(named)}")

    named: set[int] = set()

    def keep() -> set[int]:
        named.update(search())
        return named

    after = _searched(race, result, keep)
    _removed(race, result, after, remove)


def _names_one_of(world: World, ledger: int, topics: tuple[str, ...]) -> bool:
    """Whether a ledger is of one of the topics, or of a topic of one of the namespaces (`tenant/ns/`)."""
    texts = world.owners.get(ledger, {}).values()
    return any(text.removeprefix("persistent://").replace("/persistent/", "/").startswith(topics) for text in texts)


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


def requests(world: World) -> list[dict[str, Any]]:
    """Return a request for each leak that PIP-186 can name, and for a tenth as many ledgers in use.

    The latter are those of a broker that announced a deletion and then could not write its list.
    """
    leaked = [request_of(ledger_id, world.owners[ledger_id]) for ledger_id in world.leaked]
    in_use = sorted(world.used.keys() & world.owners.keys())
    announced = [request_of(ledger_id, world.owners[ledger_id]) for ledger_id in in_use]
    possible = [request for request in announced if request is not None]
    chosen = random.Random(2).sample(possible, len(world.leaked) // 10)
    every = [*(request for request in leaked if request is not None), *chosen]
    random.Random(3).shuffle(every)
    return every


def pip_186(race: Race, result: Result) -> None:
    """Run PIP-186's consumer on the requests."""
    wanted, topic = requests(race.world), "persistent://public/race/__ledger_deletion"
    addresses = race.cluster.addresses
    subscribe(addresses.pulsar, topic, ["ledger-deletion"])  # the broker trims messages that no subscription waits for
    publish(addresses.pulsar, topic, (json.dumps(request).encode() for request in wanted))
    before = race.state()
    command = [sys.executable, str(RACERS / "pip_186.py"), addresses.pulsar, addresses.admin, addresses.zookeeper]

    def remove() -> None:
        result.removal = race.run([*command, topic, str(len(wanted))])
        result.remarks += [f"{len(wanted)} requests", race.lines("log")[-1]]

    _removed(race, result, before, remove)


def ours(race: Race, result: Result) -> None:
    """Run the audit and the service, and both again after the tenant's policies are repaired and all topics loaded."""
    config = configured(race)

    def search() -> set[int]:
        result.search, orphans = _audit(race, result, config)
        return orphans

    def remove() -> None:
        result.removal = _serve(race, result, config)

    after = _searched(race, result, search)
    _removed(race, result, after, remove)
    race_world.repair(race.cluster, race.world)
    before = race.state()
    result.again = _audit(race, result, config)[0] + _serve(race, result, config)
    result.removed_again = judge_removal(race.world.leaked, before, race.state())


def _audit(race: Race, result: Result, config: Path) -> tuple[Cost, set[int]]:
    printed = len(race.lines("log"))
    command = ["audit", "--json", "--publish", "--yes", "--publish-per-second", "0", "--recheck-seconds", "5"]
    cost = race.run(_ledger_reaper(config, *command), codes=(0, 4))
    rows = [json.loads(line) for line in race.lines("log")[printed:] if line.startswith("{")]
    findings = [row for row in rows if "class" in row]
    result.remarks.append(f"audit: {dict(Counter((row['class'], row['reason']) for row in findings))}")
    return cost, {row["ledger_id"] for row in findings if row["class"] == "ORPHAN"}


def ours_fed(race: Race, result: Result) -> None:
    """Run the service on PIP-186's requests."""
    config = configured(race)
    settings = load(config)
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
    wanted = [OutgoingRequest(None, json.dumps(request).encode()) for request in requests(race.world)]
    send_all(settings.pulsar, settings.topics.requests[0], wanted)
    result.remarks.append(f"{len(wanted)} requests")

    def remove() -> None:
        result.removal = _serve(race, result, config)

    _removed(race, result, race.state(), remove)


def _serve(race: Race, result: Result, config: Path) -> Cost:
    began_ms = 1000 * time.time()
    cost = race.run(_ledger_reaper(config, "run", "--until-idle"), codes=(0, 4))
    receipts = [row for row in receipts_of(load(config)) if row["outcome"] != "RETRY" and row["at_ms"] > began_ms]
    result.remarks.append(f"final receipts: {dict(Counter((row['outcome'], row['reason']) for row in receipts))}")
    if deleted := [(row["at_ms"] - began_ms) / 1000 for row in receipts if row["outcome"] == "DELETED"]:
        result.remarks.append(f"{len(deleted)} deleted {min(deleted):.1f} to {max(deleted):.1f} s after the start")
    return cost


def configured(race: Race) -> Path:
    """Return a configuration with the sandbox's ages of seconds, for OPEN ledgers as well, and default JVM options."""
    config = race.folder / "race.toml"
    text = race.cluster.home.config.read_text().replace("[safety]\n", _QUIET_PERIOD)
    config.write_text("".join(line for line in text.splitlines(True) if not line.startswith("java_options = ")))
    return config


def _ledger_reaper(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "streaming", *arguments, "--config", str(config)]


CONTESTANTS: Mapping[str, Callable[[Race, Result], None]] = {
    "shell": shell,
    "bookie": bookie,
    "script": script,
    "careful": lambda race, result: script(race, result, "--careful"),
    "pip-186": pip_186,
    "ours": ours,
    "ours-fed": ours_fed,
}


def compete(home: Path, world: World, name: str, sample: int) -> Result:
    """Run a contestant on a cluster that starts from the copy."""
    folder = home / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    cluster = race_world.restore(home, world)
    result = Result(name=name, ledgers=len(world.leaked) + len(world.used))
    with Traffic(cluster) as traffic:
        race = Race(cluster, world, traffic, folder, sample)
        time.sleep(_SETTLE_S)
        race.measure_traffic()
        CONTESTANTS[name](race, result)
    clusters.down(home)
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
        " | judged/s | removed/s | ZooKeeper requests"
    )
    yield f"| {heads} |"
    yield "|---" * (heads.count("|") + 1) + "|"
    for result in results:
        found, removed, both = result.found, result.removed, result.search + result.removal
        judged, rate = result.rates()
        cells = [
            result.name,
            _shown(found.orphans) if found else "none: fed",
            _shown(found.false + found.false_young) if found else "",
            _shown(found.missed) if found else "",
            _took(result.search) if found else "",
            _shown(removed.orphans) if removed else "",
            _shown(removed.destroyed) if removed else "",
            _took(result.removal),
            f"{judged:.1f}" if found else "",
            f"{rate:.2f}",
            "" if both.extrapolated else f"{both.zookeeper_requests:.0f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _took(cost: Cost) -> str:
    return f"{'≈ ' if cost.extrapolated else ''}{cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s"


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
    parser.add_argument("--sample", type=int, default=100, help="ledgers for which the shell starts a JVM")
    parser.add_argument("--home", type=Path, help="keep the cluster here, and use the one that an earlier race made")
    options = parser.parse_args()
    with _home(options.home) as home:
        world = race_world.load(home) or race_world.create(home, Plan(options.ledgers))
        print(world.summary, flush=True)
        results = [compete(home, world, name, options.sample) for name in options.only]
    print("\n".join(table(results)))
    print(json.dumps([_plain(result) for result in results]))


if __name__ == "__main__":
    main()
