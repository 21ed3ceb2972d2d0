"""Runs the service under load while parts of it and of the cluster die, and checks that no request is lost.

    .venv/bin/python -m bench.soak [--minutes 20] [--every 60] [--home DIR] [--seed N] [--only FAULT] [--hostile]

It runs on a new cluster; a supervisor starts the service again after each end. There are four kinds of requests: for
leaked ledgers, for ledgers in use, for ledgers that never existed, and bytes that are not a request. Every --every
seconds the script injects a random fault: kill -9 the service, the broker or the bookie, freeze ZooKeeper for some
seconds, or stop the service. At the end it lets the service process all requests, and prints an account from the
topics, the receipts and BookKeeper's metadata. The exit code is 1 if a request was lost, doubled or answered wrongly,
if a ledger in use is gone, or if the service ended with an undocumented exit code. With --hostile no part dies;
instead a tenant publishes odd messages to its own topic, and with --hanging-broker the broker of that topic hangs most
of the time (bench/hostile.py).
"""

import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.session import command_line
from bench.supervisor import NOWHERE, Supervisor, payload
from streaming.clients import admin_for, command_clients, reader_for
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import Pulsar
from streaming.reconcile.accounting import reconcile
from streaming.sandbox import cluster as clusters
from streaming.sandbox import cluster_faults, ledger_list, shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.reckoning import reckon
from streaming.topics.requests import publish_lines

TOPICS = [f"persistent://public/default/soak-{number}" for number in range(4)]
LOT = 40
CONFIG = """
[service]
name = "soak"
chunk_rows = 2000
[topics]
requests = ["persistent://pulsar/system/soak"]
[two_phase]
reconsume_later_seconds = 3
reconsume_later_max_seconds = 20
max_retry_delete_count = 4
[limits]
deletes_per_second = 0
share_applies_above_ledgers = 1000000000
"""


@dataclass
class Load:
    """Publishes requests, and records which ledgers must be deleted and which must be kept."""

    cluster: Cluster
    settings: Settings
    listed: dict[str, list[int]]
    random: random.Random
    leaked: list[int] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    asked: dict[int, float] = field(default_factory=dict)  # ledger -> when (s)
    refused: int = 0

    def run(self, stop: threading.Event) -> None:
        first = 1_000_000 + int(time.time()) % 1_000_000 * 1000
        while not stop.wait(1.0):
            topic = self.random.choice(TOPICS)
            try:
                created = ledger_list.make_synthetic(self.cluster, topic, count=LOT, first_id=first)
            except Exception:  # ZooKeeper is frozen, or created only half of them; the next batch has other ids
                first += LOT
                continue
            first += LOT
            self._send(topic, list(created))

    def _send(self, topic: str, made: list[int]) -> None:
        lines = [payload(topic, each) for each in made]
        lines += [payload(topic, self.random.choice(self.listed[topic])), payload(topic, NOWHERE), b"\xff no request"]
        # a request without acknowledgement may be stored; it is sent again, so some are stored twice
        self.asked |= dict.fromkeys(made, time.time())
        while True:
            try:
                with command_clients(self.settings) as clients:
                    publish_lines(self.settings, clients.pulsar.admin, lines, unchecked=True)
                break
            except ReaperError:
                self.refused += 1
                time.sleep(2)
        self.leaked += made
        self.sent.update({"leaked": len(made), "in use": 1, "never was": 1, "no request": 1})


def chaos(cluster: Cluster, service: Supervisor, chance: random.Random, only: str) -> str:
    """Inject a random fault whose name starts with `only`, and return its name."""

    def broken(part: Part) -> Callable[[], None]:
        def act() -> None:
            cluster_faults.kill(cluster, part)
            time.sleep(chance.uniform(0, 6))
            cluster_faults.restart(cluster, part)

        return act

    def frozen() -> None:
        with cluster_faults.paused(cluster, Part.ZOOKEEPER):
            time.sleep(chance.uniform(1, 8))

    acts: dict[str, Callable[[], None]] = {
        "kill -9 service": lambda: service.end(signal.SIGKILL),
        "kill -9 service, again": lambda: service.end(signal.SIGKILL),
        "kill -9 broker": broken(Part.BROKER),
        "kill -9 bookie": broken(Part.BOOKIE),
        "ZooKeeper frozen": frozen,
        "stop and start": lambda: service.end(signal.SIGTERM),
    }
    what = chance.choice(sorted(name for name in acts if name.startswith(only)))
    acts[what]()
    return what


def soak(home: Path, *, minutes: float, every_s: float, seed: int, only: str) -> int:
    chance = random.Random(seed)
    cluster = clusters.up(home)
    for topic in TOPICS:
        topics.fill(cluster, topic, 3, ["s"])
    before = {topic: topics.read_all(cluster, topic) for topic in TOPICS}
    # without the current ledger, which a broker replaces when it starts again
    listed = {topic: topics.data_ledgers(cluster, topic)[:-1] for topic in TOPICS}
    config = home / "soak.toml"
    config.write_text(merged(cluster.home.config.read_text()))
    service = Supervisor(config, home / "soak.log")
    load_thread = Load(cluster, load(config), listed, random.Random(seed + 1))
    stop, broke = threading.Event(), Counter[str]()
    threads = [threading.Thread(target=work.run, args=(stop,)) for work in (service, load_thread)]
    for thread in threads:
        thread.start()
    began_s = time.monotonic()
    print(f"seed {seed}, {minutes:g} minutes, cluster {home}", flush=True)
    while time.monotonic() - began_s < minutes * 60:
        time.sleep(every_s * chance.uniform(0.6, 1.4))
        broke[chaos(cluster, service, chance, only)] += 1
        print(
            f"{time.monotonic() - began_s:6.0f} s  {load_thread.sent.total()} sent, broken: {dict(broke)}", flush=True
        )
    stop.set()
    for thread in threads:
        thread.join(120)
    service.end(signal.SIGTERM)
    ended = rest(service)
    wrong = account(cluster, load_thread, before)
    wrong += [f"the last run ended with {ended}"] * (ended != 0) + service.unexpected
    print(
        f"{'service ended by itself':42} {dict(service.ends)}\n{'broken':42} {dict(broke)}\n{'WRONG':42} {wrong}",
        flush=True,
    )
    return 1 if wrong else 0


def merged(local: str) -> str:
    """Return the cluster's configuration with the sections of CONFIG instead of its own."""
    mine = {line for line in CONFIG.splitlines() if line.startswith("[")}
    kept, keeps = [], True
    for line in local.splitlines():
        keeps = line not in mine if line.startswith("[") else keeps
        kept += [line] if keeps else []
    trigger = 'name = "soak"\ntrigger_seconds = 1'
    return "\n".join(kept) + CONFIG.replace('name = "soak"', trigger).replace(
        "max_retry", "send_delay_seconds = 0\nnot_closed_later_seconds = 5\nmax_retry"
    )


def rest(service: Supervisor) -> int:
    """Let the service process all waiting requests; return the exit code of its last run."""
    ended = 1
    for _ in range(5):
        ended = service.start("--until-idle").wait(1800)
        if ended == 0:
            break
    return ended


def account(cluster: Cluster, load_thread: Load, before: dict[str, list[bytes]]) -> list[str]:
    """Print the account, and return the faults."""
    settings = load_thread.settings
    result = reckon(settings)
    left = shell.list_ledgers(cluster)
    in_use = {ledger_id for listed in load_thread.listed.values() for ledger_id in listed}
    with admin_for(settings) as admin:
        accounts = reconcile(settings, Pulsar(admin, reader_for(settings)), SystemClock().now_ms())
    wrong = [*result.wrong, *accounts.gaps, *filter(None, [accounts.doubt])]
    wrong += [f"{result.open} requests have no final receipt"] * bool(result.open)
    wrong += [f"{len(in_use - left)} ledgers in use are gone: {sorted(in_use - left)[:5]}"] * bool(in_use - left)
    undeleted = set(load_thread.leaked) & left
    wrong += [f"{len(undeleted)} leaked ledgers are still there: {sorted(undeleted)[:5]}"] * bool(undeleted)
    wrong += [f"{topic} has other messages" for topic in TOPICS if topics.read_all(cluster, topic) != before[topic]]
    for name, value in (
        ("sent (acknowledged)", dict(load_thread.sent)),
        ("times a batch was sent again", load_thread.refused),
        ("requests stored", result.requests),
        ("final receipts", dict(result.outcomes)),
        ("retries, dead letters stored", (result.retries, result.dead_letters)),
        ("leaked ledgers gone", len(load_thread.leaked) - len(undeleted)),
        ("ledgers in use kept", len(in_use & left)),
        ("accounts by position", accounts.text),
        ("LOST", result.open),
    ):
        print(f"{name:42} {value}", flush=True)
    return wrong


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--every", type=float, default=60)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help="only faults whose names start like this, as in 'kill -9'")
    parser.add_argument("--hostile", action="store_true", help="no part dies; a tenant publishes odd messages")
    parser.add_argument("--hanging-broker", action="store_true", help="with --hostile: the tenant's broker hangs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        home = (options.home or Path(scratch)).absolute()
        try:
            if options.hostile:
                from bench.hostile import soak_with_hostile_tenant

                return soak_with_hostile_tenant(
                    home, minutes=options.minutes, seed=options.seed, hangs=options.hanging_broker
                )
            return soak(home, minutes=options.minutes, every_s=options.every, seed=options.seed, only=options.only)
        finally:
            clusters.down(home)


if __name__ == "__main__":
    sys.exit(main())
