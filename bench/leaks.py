"""Counts the ledgers that brokers leak when they are killed, and those that are left if the watcher was running.

    .venv/bin/python -m bench.leaks [--minutes 20] [--topics 50] [--every 25] [--home DIR] [--without-watcher]

It runs on a new cluster, under load on small ledgers: messages are sent, read and acknowledged on every topic;
subscriptions, schemas and short-lived topics are created and deleted. At random moments ledgers can't be deleted for
some seconds, and usually the broker is killed with -9 in that time. `ledger-reaper watch` runs beside it and is killed
with -9, frozen until its session has expired, or stopped for a while. The service does not run in that time, so a first
audit counts what leaks. Then the service runs for ten minutes, and a second audit counts what is left. The exit code is
1 if an orphan is left, if no request names a leaked ledger, if an audit reports missing data, if a topic has lost a
message, or if the watcher sent a request twice. OPEN ledgers wait a minute instead of a day here
(safety.open_quiet_period).

--without-watcher does the same without the watcher, and shows that the service alone deletes no leaked ledger.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar

from bench.session import command_line
from bench.soak import merged
from streaming.adapters.pulsar.readers.read import read
from streaming.clients import admin_for
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.phase_one.watcher.pulsar_publication import WATCH_ID
from streaming.sandbox import cluster as clusters
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.state.outcomes import receipts_of
from udfs.paths import managed_ledger_name
from udfs.records import LedgerMetadata

NAMESPACE = "public/leaks"
KEPT_TOPICS = 3  # which nobody reads
WATCHER_HARMED = 0.7  # of the rounds
SETTLE_SECONDS = 15
FIRST_LOOK_SECONDS = 20  # in which the watcher records the present state
QUIET_PERIOD = '\nopen_quiet_period = "1m"'
SESSION = "\nsession_timeout_seconds = 10\ntimeout_seconds = 12\n"  # a watcher that is frozen loses it
WATCH = """
[watch]
poll_seconds = 20
unlisted_after_seconds = 60
"""


@dataclass
class Traffic:
    """Sends, reads and acknowledges messages on some topics, and retries after crashes."""

    cluster: Cluster
    names: list[str]
    chance: random.Random
    stop: threading.Event = field(default_factory=threading.Event)
    sent: Counter[str] = field(default_factory=Counter)
    failures: int = 0

    def run(self) -> None:
        """Use the topics, one after the other, with clients that stay open as long as they work."""
        while not self.stop.is_set():
            with suppress(pulsar.PulsarException):  # a broker dies at any moment, and its clients with it
                self._use_until_it_fails()
            self.failures += 1
            self.stop.wait(1)

    def _use_until_it_fails(self) -> None:
        client = pulsar.Client(
            self.cluster.addresses.pulsar,
            operation_timeout_seconds=20,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            open_ones: dict[str, tuple[Any, Any]] = {}
            while not self.stop.is_set():
                for name in self.names:
                    if name not in open_ones:
                        producer = client.create_producer(name, send_timeout_millis=10_000)
                        open_ones[name] = producer, client.subscribe(name, "worker")
                    self._use(name, *open_ones[name])
        finally:
            client.close()

    def _use(self, name: str, producer: Any, consumer: Any) -> None:
        for _ in range(topics.ENTRIES_PER_LEDGER):
            producer.send(b"x" * 64)
            self.sent[name] += 1
        with suppress(pulsar.Timeout):
            while True:
                consumer.acknowledge(consumer.receive(timeout_millis=50))


@dataclass
class Comings:
    """Creates and deletes subscriptions, schemas and topics, each on its own topic."""

    cluster: Cluster
    chance: random.Random
    stop: threading.Event
    done: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Run one operation at a time."""
        number = 0
        while not self.stop.wait(1.0):
            number += 1
            topic = f"persistent://{NAMESPACE}/short-{number}"
            act = self.chance.choice([self._topic, self._schema, self._subscription])
            try:
                act(topic)
            except Exception:  # the broker was killed during the operation
                self.done["failed"] += 1
            else:
                self.done[act.__name__.strip("_")] += 1

    def _topic(self, topic: str) -> None:
        topics.fill(self.cluster, topic, 3, ["s"])
        topics.delete_topic(self.cluster, topic)

    def _schema(self, topic: str) -> None:
        topics.post_schema_versions(self.cluster, topic, 2)
        topics.delete_schema(self.cluster, topic)

    def _subscription(self, topic: str) -> None:
        topics.fill(self.cluster, topic, 1, ["s", "t"])
        topics.consume(self.cluster, topic, "s", 5)
        topics.delete_subscription(self.cluster, topic, "s")


@dataclass
class WatcherProcess:
    """Starts `ledger-reaper watch`, and starts it again after each end."""

    config: Path
    log: Path
    is_wanted: bool = True
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0

    def run(self, stop: threading.Event) -> None:
        """Keep it running until stop is set."""
        while not stop.wait(0.3):
            if self.is_wanted and (self.process is None or self.process.poll() is not None):
                self.starts += 1
                self.process = started(self.config, self.log, "watch")

    def send(self, number: int) -> None:
        """Send it a signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


def started(config: Path, log: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a command in a process group of its own."""
    command = [sys.executable, "-m", "streaming", *arguments, "--config", str(config)]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)


def harm_watcher(watcher: WatcherProcess, chance: random.Random) -> str:
    """Inject one of several faults into the watcher, and return its name."""

    def freeze() -> None:
        watcher.send(signal.SIGSTOP)
        time.sleep(20)
        watcher.send(signal.SIGCONT)

    def killed_twice() -> None:
        watcher.send(signal.SIGKILL)
        time.sleep(chance.uniform(2, 8))
        watcher.send(signal.SIGKILL)

    def away() -> None:
        watcher.is_wanted = False
        watcher.send(signal.SIGKILL)
        time.sleep(chance.uniform(30, 60))
        watcher.is_wanted = True

    harms: dict[str, Callable[[], None]] = {
        "watcher killed": lambda: watcher.send(signal.SIGKILL),
        "watcher killed twice": killed_twice,
        "watcher frozen": freeze,
        "watcher away": away,
    }
    what = chance.choice(sorted(harms))
    harms[what]()
    return what


def harm_brokers(cluster: Cluster, chance: random.Random) -> str:
    """Refuse deletes for some seconds, kill the broker, or both."""
    kind = chance.choice(["both", "both", "both", "killed", "refused"])
    if kind == "killed":
        cluster_faults.kill_brokers(cluster)
        cluster_faults.restart_brokers(cluster)
    elif kind == "refused":
        with cluster_faults.metadata_fault(cluster):
            time.sleep(chance.uniform(3, 15))
    else:
        with cluster_faults.crash_with_metadata_fault(cluster):
            time.sleep(chance.uniform(3, 15))
    return f"broker {kind}"


def audited(config: Path, out: Path) -> tuple[Counter[str], dict[str, Any]]:
    """Run the audit; return orphans and missing data by class and component, and its last line."""
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "streaming", "audit", "--json", "--recheck-seconds", "5", "--out", str(out)]
    done = subprocess.run([*command, "--config", str(config)], stdout=subprocess.PIPE, check=False, timeout=900)
    *findings, last = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    (out / "findings.jsonl").write_bytes(done.stdout)
    ours = [finding for finding in findings if NAMESPACE in json.dumps(finding)]
    return Counter(
        f"{finding.get('class')} {finding.get('component')} {finding.get('reason') or ''}" for finding in ours
    ), last


def sent_by_watcher(settings: Settings) -> Iterator[tuple[str, int]]:
    """Return the number and the ledger of each request that the watcher sent."""
    topic = settings.topics.watch
    with admin_for(settings) as admin:
        last = admin.last_positions(topic)
    for message in read(settings.pulsar, last):
        if number := message.properties.get(WATCH_ID):
            yield number, json.loads(message.payload)["ledgerId"]


def account(settings: Settings, leaked: Set[int]) -> list[str]:
    """Print the results of the requests, and return the faults."""
    sent = list(sent_by_watcher(settings))
    twice = [number for number, n in Counter(number for number, _ledger in sent).items() if n > 1]
    ids = Counter(ledger for _number, ledger in sent)
    outcomes = Counter((row["outcome"], row["reason"]) for row in receipts_of(settings) if row["outcome"] != "RETRY")
    shown: dict[str, object] = {
        "requests sent": len(sent),
        "ledgers requested more than once": sum(n > 1 for n in ids.values()),
        "requests for leaked ledgers": len(leaked & ids.keys()),
        "leaks that no request named": sorted(leaked - ids.keys()),
        "needed / sent": f"{len(leaked & ids.keys()) / max(1, len(sent)):.3f}",
        "final receipts": dict(outcomes),
    }
    for name, value in shown.items():
        print(f"{name:36} {value}", flush=True)
    wrong = [f"{len(twice)} requests were sent twice, such as {twice[:3]}"] * bool(twice)
    return wrong + [f"no request names these leaked ledgers: {sorted(leaked - ids.keys())[:5]}"] * bool(
        leaked - ids.keys()
    )


def orphans_of(cluster: Cluster, names: list[str]) -> dict[int, LedgerMetadata]:
    """Return data ledgers whose metadata name a topic that does not list them, by the broker's own lists."""
    made = ledger_list.every_ledger(cluster)  # read before the lists, so that ledgers created later are listed
    owners = {managed_ledger_name(topic).encode() for topic in names}
    listed = {ledger_id for topic in names for ledger_id in topics.data_ledgers(cluster, topic)}
    return {
        ledger_id: metadata
        for ledger_id, metadata in made.items()
        if metadata.custom_metadata.get("pulsar/managed-ledger") in owners
        and "pulsar/cursor" not in metadata.custom_metadata
        and ledger_id not in listed
    }


def configured(cluster: Cluster, config: Path) -> Settings:
    """Write the configuration of the watcher and of the service, with waits of seconds."""
    text = merged(cluster.home.config.read_text()).replace("[zookeeper]\n", f"[zookeeper]{SESSION}")
    text = text.replace("[safety]", f"[safety]{QUIET_PERIOD}")
    config.write_text(text.replace("send_delay_seconds = 0", "send_delay_seconds = 5") + WATCH)
    return load(config)


def trouble(cluster: Cluster, watcher: WatcherProcess, names: list[str], options: argparse.Namespace) -> None:
    """Use the topics, and inject faults into the brokers and the watcher, for some minutes."""
    chance, stop, broke = random.Random(options.seed), threading.Event(), Counter[str]()
    traffic = [Traffic(cluster, names[start::5], random.Random(options.seed + start), stop) for start in range(5)]
    comings = Comings(cluster, random.Random(options.seed + 9), stop)
    threads = [*(threading.Thread(target=work.run) for work in traffic), threading.Thread(target=comings.run)]
    for thread in threads:
        thread.start()
    began_s = time.monotonic()
    try:
        while time.monotonic() - began_s < options.minutes * 60:
            time.sleep(options.every * chance.uniform(0.5, 1.5))
            harm = threading.Thread(target=lambda: broke.update([harm_watcher(watcher, chance)]))
            if chance.random() < WATCHER_HARMED and not options.without_watcher:
                harm.start()
            broke[harm_brokers(cluster, chance)] += 1
            if harm.ident is not None:
                harm.join()
            total = sum(part.sent.total() for part in traffic)
            print(f"{time.monotonic() - began_s:6.0f} s  {total} messages, broken: {dict(broke)}", flush=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    # deletes that a broker still repeats from its memory would otherwise count as leaks
    cluster_faults.kill_brokers(cluster)
    cluster_faults.restart_brokers(cluster)
    print(f"short-lived: {dict(comings.done)}; watcher started {watcher.starts} times", flush=True)


def measure(home: Path, options: argparse.Namespace) -> int:
    """Run the benchmark, and return the exit code."""
    cluster = clusters.up(home)
    with suppress(ReaperError):
        topics.admin(cluster, "PUT", f"namespaces/{NAMESPACE}", {})
    config = home / "leaks.toml"
    settings = configured(cluster, config)
    names = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(options.topics)]
    print(f"seed {options.seed}, {options.minutes:g} minutes, cluster {home}", flush=True)
    kept = {}
    for topic in (f"persistent://{NAMESPACE}/kept-{number}" for number in range(KEPT_TOPICS)):
        topics.fill(cluster, topic, 5, ["nobody"])
        kept[topic] = topics.read_all(cluster, topic)
    watcher, watch_stop = (
        WatcherProcess(config, home / "watch.log", is_wanted=not options.without_watcher),
        threading.Event(),
    )
    watch_thread = threading.Thread(target=watcher.run, args=(watch_stop,))
    watch_thread.start()
    service = None
    try:
        time.sleep(FIRST_LOOK_SECONDS)
        trouble(cluster, watcher, names, options)
        time.sleep(options.rest)
        orphans_of(
            cluster, names
        )  # a request for a list loads its topic, and the broker then drops ledgers that were read
        time.sleep(SETTLE_SECONDS)
        orphans = orphans_of(cluster, names)
        leaked = orphans.keys()
        states = dict(Counter(str(metadata.state) for metadata in orphans.values()))
        print(f"data ledgers leaked without a service, by the brokers' own lists: {len(leaked)}, {states}", flush=True)
        before, last = audited(config, home / "before")
        print(f"audit before: {dict(sorted(before.items()))}\n  {last}", flush=True)
        service = started(config, home / "run.log", "run")
        time.sleep(options.work)
    finally:
        watch_stop.set()
        watch_thread.join()
        for process in (watcher.process, service):
            if process is not None:
                process.send_signal(signal.SIGTERM)
                process.wait(90)
    after, last = audited(config, home / "after")
    print(f"audit after: {dict(sorted(after.items()))}\n  {last}", flush=True)
    left = orphans_of(cluster, names)
    if options.without_watcher:
        print(
            f"left of {len(leaked)} after {options.work:.0f} s of the service: {len(leaked & left.keys())}", flush=True
        )
        return 0 if leaked <= left.keys() else 1
    wrong = account(settings, leaked)
    wrong += [f"{len(left)} leaked data ledgers are left: {sorted(left.items())[:5]}"] * bool(left)
    wrong += [f"the audit finds {n} of {name}" for name, n in after.items() if name.startswith("ORPHAN")]
    wrong += [f"missing: {name}" for name in after if name.startswith("MISSING")]
    changed = [topic for topic, messages in kept.items() if topics.read_all(cluster, topic) != messages]
    wrong += [f"topics without readers have other messages: {changed}"] * bool(changed)
    print(f"WRONG {wrong}", flush=True)
    return 1 if wrong else 0


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--every", type=float, default=25, help="average seconds between two faults")
    parser.add_argument("--rest", type=float, default=30, help="seconds for the broker to settle at the end")
    parser.add_argument("--work", type=float, default=600, help="seconds for the service at the end")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--without-watcher", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leaks-") as scratch:
        home = (options.home or Path(scratch)).absolute()
        try:
            return measure(home, options)
        finally:
            clusters.down(home)


if __name__ == "__main__":
    sys.exit(main())
