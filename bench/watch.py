"""Measures the cost of the watcher with 100,000 topics, while 100 lists change per second.

    .venv/bin/python -m bench.watch [--topics 100000] [--ledgers 10] [--changes 100] [--seconds 180]

It runs the watcher in this process on a new ZooKeeper (PySpark's, without fsync), on topics that exist only there, with
a list and a cursor each. Requests are dropped. It prints the time of the first scan, which records everything, and of a
later scan, which compares. Then another process changes lists at random (each change drops a ledger and adds one), and
the script prints events and reads a second, memory and CPU of the watcher, and CPU of ZooKeeper, with and without
hints. Finally it measures marks ahead: the retention of every topic is over and its cursor is at the end, so that every
topic that is checked is marked, in ZooKeeper. The answers of brokers are simulated in memory and cost nothing.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Event

import psutil
from kazoo.client import KazooClient

from bench.session import command_line
from streaming.adapters.memory.store import MemoryBroker
from streaming.adapters.zookeeper.changes import ZooKeeperChanges
from streaming.adapters.zookeeper.store import ZooKeeperStore
from streaming.adapters.zookeeper.zookeeper_client import ZooKeeperClientSettings
from streaming.audit.walk.suspects import LedgerReader
from streaming.clock import SystemClock
from streaming.in_use.loader import InUseLoader
from streaming.phase_one.deletable_ledgers import DeletableLedgers, SweepAccess
from streaming.phase_one.watcher.marks.mark_removal import Tools
from streaming.phase_one.watcher.marks.marking import Marking
from streaming.phase_one.watcher.marks.marking_thread import MarkingThread
from streaming.phase_one.watcher.marks.signs import SignCollector
from streaming.phase_one.watcher.request_outbox import Knows, RequestOutbox, Send
from streaming.phase_one.watcher.scan import ZnodeScan
from streaming.phase_one.watcher.unlisted import UnlistedLedgers
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.phase_one.watcher.watcher import Parts, StillNames, Watcher
from streaming.prometheus.registry import Registry
from streaming.sandbox.home import LEDGERS_ROOT
from streaming.sandbox.ledger_list import LAYOUT
from streaming.state.watched import Watched
from streaming.sweep.pace import Pace
from tests.contract.zookeeper_server import ZooKeeperServer, zookeeper_running
from udfs.formats.internal_stats import InternalStats, Position
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    parse_managed_ledger,
    serialize_cursor,
    serialize_managed_ledger,
)
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, managed_ledger_path
from udfs.phase_one.marks import Upload
from udfs.phase_one.trim_forecast import NO_LIMIT, Retention
from udfs.records import PendingDelete

FIRST_ID = 10**12
PARENT = f"{MANAGED_LEDGERS_ROOT}/bench/many/persistent"
AT_ONCE = 100
DELAY_MS = 60_000


class Znodes:
    """Writes topic properties to ZooKeeper like a broker, and counts the calls."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self.calls = 0

    def update(self, topic: str, properties: Mapping[str, str]) -> None:
        """Write these properties and keep the others."""
        self._change(topic, lambda before: {**before, **properties})

    def remove(self, topic: str, key: str) -> bool:
        """Remove a property."""
        self._change(topic, lambda before: {name: value for name, value in before.items() if name != key})
        return True

    def close(self) -> None:
        """Do nothing: the caller closes the client."""

    def _change(self, topic: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        self.calls += 1
        path = managed_ledger_path(topic)
        info = parse_managed_ledger(self._client.get(path)[0])
        self._client.set(path, serialize_managed_ledger(replace(info, properties=change(info.properties))))


class Answers:
    """Answers like brokers that have all topics loaded, with cursors at the end."""

    def __init__(self) -> None:
        self.calls = 0

    def is_loaded(self, _topic: str) -> bool:
        """Return True."""
        self.calls += 1
        return True

    def retention(self, _topic: str) -> Retention:
        """Return a minute."""
        self.calls += 1
        return Retention(1, NO_LIMIT)

    def internal_stats(self, _topic: str) -> InternalStats:
        """Return a cursor at the end."""
        self.calls += 1
        newest = 1 << 40
        return InternalStats(
            ledgers=((newest, 0),), cursors={"worker": (newest, -1)}, pending_adds=0, sizes={newest: 0}
        )

    def close(self) -> None:
        """Do nothing: there is no connection."""


class Nowhere:
    """A request topic that accepts and drops all requests."""

    topic = "persistent://pulsar/ledger-deletion/nowhere"
    sent = 0

    def ends(self) -> dict[str, Position]:
        """Return two partitions that are empty."""
        return {f"{self.topic}-partition-{number}": (0, -1) for number in range(2)}

    def send(self, _partition: str, _sender: str, sends: Sequence[Send], _after: Position | None, _knows: Knows) -> int:
        """Count the requests."""
        self.sent += len(sends)
        return len(sends)


def list_of(topic: int, changes: int, ledgers: int) -> bytes:
    """Return a topic's list after so many changes."""
    first = FIRST_ID + topic * 1_000_000 + changes
    infos = [LedgerInfo(ledger_id=first + n, entries=50_000, size_bytes=10**9, timestamp_ms=1) for n in range(ledgers)]
    return serialize_managed_ledger(ManagedLedgerInfo(tuple(infos)))


def make_topics(hosts: str, count: int, ledgers: int) -> None:
    """Create topics with a cursor each, only in ZooKeeper."""
    client = KazooClient(hosts)
    client.start()
    client.ensure_path(PARENT)
    cursor = serialize_cursor(
        ManagedCursorInfo(cursors_ledger_id=FIRST_ID - 1, mark_delete_ledger_id=FIRST_ID, mark_delete_entry_id=1)
    )
    answers = []
    for start in range(0, count, AT_ONCE):
        transaction = client.transaction()
        for number in range(start, min(start + AT_ONCE, count)):
            transaction.create(f"{PARENT}/topic-{number:06d}", list_of(number, 0, ledgers))
            transaction.create(f"{PARENT}/topic-{number:06d}/worker", cursor)
        answers.append(transaction.commit_async())
        if len(answers) > AT_ONCE:
            answers.pop(0).get()
    for answer in answers:
        answer.get()
    client.stop()
    client.close()


def change_lists(hosts: str, count: int, ledgers: int, per_second: int) -> None:
    """Change lists at random until killed; a list's ledgers show how often it changed."""
    client = KazooClient(hosts)
    client.start()
    chance = random.Random(1)
    changes: dict[int, int] = {}
    began_s, done = time.monotonic(), 0
    while True:
        topic = chance.randrange(count)
        changes[topic] = changes.get(topic, 0) + 1
        client.set_async(f"{PARENT}/topic-{topic:06d}", list_of(topic, changes[topic], ledgers))
        done += 1
        time.sleep(max(0.0, began_s + done / per_second - time.monotonic()))


def watcher_on(hosts: str, state: Path, hints_roots: Sequence[str]) -> tuple[Watcher, Parts]:
    """Open a watcher on a state directory."""
    settings = ZooKeeperClientSettings(hosts=hosts)
    store, clock, pace = ZooKeeperStore(settings), SystemClock(), Pace(0)
    watched = Watched(str(state))
    named = StillNames(watched)
    made = UnlistedLedgers(
        store,
        LedgerReader(store, LAYOUT, LEDGERS_ROOT, pace),
        InUseLoader(store, MemoryBroker(), clock),
        named,
        3_600_000,
    )
    outbox = RequestOutbox(watched, Nowhere(), named, DELAY_MS)
    parts = Parts(
        watched=watched,
        scan=ZnodeScan(store, pace, lambda: False),
        hints=ZooKeeperChanges(settings, hints_roots),
        unlisted=made,
        outbox=outbox,
        metrics=WatchMetrics(Registry()),
        clock=clock,
    )
    return Watcher(parts, 60.0, Event()), parts


def timed(what: str, call: Callable[[], object], zookeeper: psutil.Process) -> None:
    """Make a call, and print the time that it took here and in ZooKeeper."""
    here = psutil.Process()
    began_s, mine_s, theirs_s = time.monotonic(), cpu_s(here), cpu_s(zookeeper)
    call()
    print(
        f"{what:34} {time.monotonic() - began_s:7.1f} s; CPU {cpu_s(here) - mine_s:.1f} s here, "
        f"{cpu_s(zookeeper) - theirs_s:.1f} s in ZooKeeper; {here.memory_info().rss >> 20} MiB resident",
        flush=True,
    )


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def counted(parts: Parts, name: str) -> float:
    """Return a counter of the watcher."""
    for metric in parts.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == f"ledger_reaper_watcher_{name}":
                return float(sample.value)
    return 0.0


def run_for(what: str, seconds: float, watcher: Watcher, parts: Parts, zookeeper: psutil.Process) -> None:
    """Run the watcher, a turn a second, and print its work and its cost."""
    here = psutil.Process()
    names = ("events_total", "znodes_read_total", "changes_total", "requests_noticed_total", "scans_total")
    before = {name: counted(parts, name) for name in names}
    began_s, mine_s, theirs_s = time.monotonic(), cpu_s(here), cpu_s(zookeeper)
    turns: list[float] = []
    while time.monotonic() - began_s < seconds:
        turn_s = time.monotonic()
        watcher.turn()
        turns.append(time.monotonic() - turn_s)
        time.sleep(1.0)
    took_s = time.monotonic() - began_s
    rates = {name: (counted(parts, name) - before[name]) / took_s for name in names}
    turns.sort()
    print(
        f"{what}: over {took_s:.0f} s, a second: "
        + ", ".join(f"{name.removesuffix('_total')} {rate:.1f}" for name, rate in rates.items())
        + f"; a turn {turns[len(turns) // 2] * 1000:.0f} ms (median), {turns[-1] * 1000:.0f} ms (longest); CPU "
        f"{(cpu_s(here) - mine_s) / took_s:.3f} cores here, {(cpu_s(zookeeper) - theirs_s) / took_s:.3f} in ZooKeeper; "
        f"{here.memory_info().rss >> 20} MiB resident",
        flush=True,
    )


def idle_cost(seconds: float, zookeeper: psutil.Process) -> None:
    """Print ZooKeeper's cost of the changes alone."""
    theirs_s = cpu_s(zookeeper)
    time.sleep(seconds)
    print(f"ZooKeeper without a watcher: {(cpu_s(zookeeper) - theirs_s) / seconds:.3f} cores", flush=True)


@contextlib.contextmanager
def marking_on(hosts: str, parts: Parts, answers: Answers) -> Iterator[Parts]:
    """Mark ahead for this watcher in a thread until the with block ends."""
    client = KazooClient(hosts)
    client.start()
    store = ZooKeeperStore(ZooKeeperClientSettings(hosts=hosts))

    def send(_pending: PendingDelete) -> "Future[str]":
        done: Future[str] = Future()
        done.set_result("nowhere")
        return done

    def uploads(_uploads: Collection[Upload], _since_ms: int) -> set[Upload]:
        return set()

    sweep = SweepAccess(send, lambda: None, lambda *_: {}, uploads, SystemClock().now_ms)
    marks = DeletableLedgers(store, Znodes(client), sweep, LAYOUT, LEDGERS_ROOT)

    @contextlib.contextmanager
    def tools() -> Iterator[Tools]:
        yield Tools(marks, answers, lambda: frozenset({"broker"}))

    marking = Marking(60, DELAY_MS // 1000, parts.metrics)
    try:
        with MarkingThread(marking, tools, parts.metrics, SystemClock().now_ms, 10.0) as thread:
            yield replace(parts, signs=SignCollector(thread.hand_over))
    finally:
        client.stop()
        client.close()
        store.close()


def measure(home: Path, server: ZooKeeperServer, options: argparse.Namespace) -> None:
    """Run the benchmark."""
    assert server.process is not None
    hosts, zookeeper = server.hosts, psutil.Process(server.process.pid)
    print(f"before: {psutil.Process().memory_info().rss >> 20} MiB resident", flush=True)
    timed(f"creating {options.topics} topics", lambda: make_topics(hosts, options.topics, options.ledgers), zookeeper)
    state = home / "watch-state"
    watcher, parts = watcher_on(hosts, state, (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT))
    timed("the first scan, recorded", watcher.turn, zookeeper)
    parts.hints.close()
    opened: list[tuple[Watcher, Parts]] = []
    timed(
        "opening the recorded state",
        lambda: opened.append(watcher_on(hosts, state, (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT))),
        zookeeper,
    )
    watcher, parts = opened[0]
    timed("the scan after a restart, compared", watcher.turn, zookeeper)
    watcher.scan_soon()
    timed("a scan without changes", watcher.turn, zookeeper)
    changer = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.watch", "--change", hosts, "--topics", str(options.topics)),
            *("--ledgers", str(options.ledgers), "--changes", str(options.changes)),
        ]
    )
    try:
        idle_cost(30, zookeeper)
        run_for("with hints", options.seconds, watcher, parts, zookeeper)
        parts.hints.close()
        run_for("without hints", options.seconds, watcher, parts, zookeeper)
        watcher, parts = watcher_on(hosts, state, (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT))
        answers = Answers()
        with marking_on(hosts, parts, answers) as parts:
            watcher = Watcher(parts, 60.0, Event())
            watcher.turn()  # the changes that the first scan finds are not measured
            run_for("with hints and marks ahead", options.seconds, watcher, parts, zookeeper)
        print(
            f"marks ahead: {answers.calls / options.seconds:.1f} requests to brokers a second, "
            f"{counted(parts, 'marks_set_total') / options.seconds:.1f} marks set, "
            f"{counted(parts, 'marks_worked_off_total') / options.seconds:.1f} worked off, "
            f"{counted(parts, 'marking_failures_total'):.0f} failures",
            flush=True,
        )
    finally:
        changer.kill()
        changer.wait()
    files = [file.stat().st_size for file in (state / "watched").rglob("*") if file.is_file()]
    print(f"state: {sum(files) >> 20} MiB in {len(files)} files", flush=True)


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--ledgers", type=int, default=10)
    parser.add_argument("--changes", type=int, default=100, help="lists that change a second")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--change", help=argparse.SUPPRESS)  # the process that changes lists; the value: ZooKeeper
    options = parser.parse_args()
    if options.change:
        change_lists(options.change, options.topics, options.ledgers, options.changes)
    with tempfile.TemporaryDirectory(prefix="watch-") as scratch:
        home = Path(scratch).absolute()
        with zookeeper_running(home) as server:
            measure(home, server, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
