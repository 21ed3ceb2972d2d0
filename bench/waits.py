"""Measures waits for the service (at its start, for one request, for many), and the CPU time of an idle service.

    .venv/bin/python -m bench.waits [--starts 3] [--requests 60] [--idle-seconds 60] [--ledgers 100000] [--owners 100]

It runs on a new cluster on the same machine, with the JVM options of production and a trigger of one second.

1. start: seconds from the start of `run` to the commit of the first receipt, for a request that waits in the topic.
2. lone: seconds from the publication of a request to the commit of its receipt, while the service is otherwise idle;
   requests follow each other after random pauses.
3. idle: cores that an idle service uses.
4. many: leaked ledgers (metadata in ZooKeeper, no entries on a bookie) of many owners, whose requests wait when `run`
   starts: deletes a second between the first and the last tenth, and the time until all are gone.

Before that, an unmeasured start creates the archive of Java classes if there is none (streaming/spark/classes.py).

A receipt counts once Delta's log has its commit. "cpu" is the CPU time of the service's processes, which is a better
measure than seconds on a busy machine. The script fails unless each request has one final receipt and each leaked
ledger is gone.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import Popen

import psutil

from bench.backlog import configured
from bench.session import command_line, scratch_cluster
from bench.supervisor import Supervisor, payload
from streaming.adapters.pulsar.publish import OutgoingRequest, send_all
from streaming.clients import admin_for
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts.part_clients import pulsar_client, zookeeper
from streaming.sandbox.reckoning import reckon
from streaming.spark.classes import FOLDER
from streaming.spark.ivy import default_cache
from streaming.state.receipts import TABLE
from streaming.topics.setup import ensure_topics

CHUNK_ROWS = 50_000  # as in conf/default.toml
FIRST_LONE, FIRST_MANY = 1_000_000, 2_000_000
_SETTLE_S = 20.0
_PATIENCE_S = 240.0
_STOP_S = 60.0
_CLASSES_S = 900.0


def _topic(number: int) -> str:
    return f"persistent://public/default/waits-{number}"


class Cpu:
    """The CPU seconds of a service's processes, including sampled processes that have ended."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._seen: dict[tuple[int, float], float] = {}

    def seconds(self) -> float:
        """Sample the processes, and return their CPU seconds."""
        with suppress(psutil.NoSuchProcess):
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._seen[process.pid, process.create_time()] = times.user + times.system
        return sum(self._seen.values())


class Commits:
    """The commits of the receipts, which are files of Delta's log."""

    def __init__(self, settings: Settings) -> None:
        self._log = Path(settings.state.dir, TABLE, "_delta_log")

    def has_more_than(self, before: int) -> bool:
        """Whether there are more commits."""
        return self.count() > before

    def count(self) -> int:
        """Return how many commits there are; the first creates the table."""
        with suppress(FileNotFoundError):
            return sum(1 for file in self._log.iterdir() if file.suffix == ".json" and file.stem.isdigit())
        return 0


def _wait(until: Callable[[], bool], service: "Popen[bytes]", look_s: float = 0.01) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not until():
        if service.poll() is not None or time.monotonic() > deadline_s:
            sys.exit(f"the service has ended, or takes too long: {service.poll()}")
        time.sleep(look_s)


def _stop(service: "Popen[bytes]") -> None:
    service.terminate()
    service.wait(_STOP_S)


def wait_for_classes() -> None:
    """Wait until the service that ended last has created its archive of Java classes."""
    deadline_s = time.monotonic() + _CLASSES_S
    while list((default_cache() / FOLDER).glob("making-*")) and time.monotonic() < deadline_s:
        time.sleep(1)


def _told(name: str, values: Sequence[float], unit: str = "s") -> None:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    middle = statistics.median(ordered)
    print(f"{name}: {middle:.2f} {unit} ({ordered[0]:.2f} to {ordered[-1]:.2f}; p99 {p99:.2f})", flush=True)


class Bench:
    """A cluster, its configuration, and the requests that were sent."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        config = cluster.home.config
        config.write_text(configured(config.read_text(), CHUNK_ROWS))  # the sandbox's trigger is one second
        self.settings = load(config)
        self.service = Supervisor(config, cluster.home.root / "service.log")
        self.commits = Commits(self.settings)
        self.sent = 0
        self.lone = iter(range(0))

    def prepare(self, lone: int) -> None:
        """Create the topics, an owner, and a ledger that it lost for each lone request."""
        topics.fill(self.cluster, _topic(0), 3, ["s"])
        ledger_list.make_synthetic(self.cluster, _topic(0), count=lone, first_id=FIRST_LONE)
        self.lone = iter(range(FIRST_LONE, FIRST_LONE + lone))
        with admin_for(self.settings) as admin:
            ensure_topics(admin, self.settings)

    def starts(self, count: int) -> None:
        """Start repeatedly with a waiting request; the first start only creates the archive of Java classes."""
        took, cpu = [], []
        for number in range(count + 1):
            messages = [OutgoingRequest(None, payload(_topic(0), next(self.lone)))]
            send_all(self.settings.pulsar, self.settings.topics.requests[0], messages)
            self.sent += 1
            before = max(1, self.commits.count())
            began_s = time.monotonic()
            service = self.service.start()
            used = Cpu(service.pid)
            _wait(partial(self.commits.has_more_than, before), service)
            took.append(time.monotonic() - began_s)
            cpu.append(used.seconds())
            time.sleep(2)
            _stop(service)
            if not number:
                wait_for_classes()
        took, cpu = took[1:], cpu[1:]
        _told("start to first receipt", took)
        _told("cpu of that", cpu)

    def alone(self, count: int, idle_s: float) -> None:
        """Send requests to an otherwise idle service, and then measure it while it is idle."""
        pauses = random.Random(14)  # the same pauses in each run
        service = self.service.start()
        used = Cpu(service.pid)
        _wait(lambda: "reading " in self.service.log.read_text()[-2000:], service, 0.2)
        time.sleep(_SETTLE_S)
        took = []
        with pulsar_client(self.settings.pulsar.service_url) as opened:
            producer = opened.create_producer(self.settings.topics.requests[0])
            cpu_s = used.seconds()
            for _ in range(count):
                time.sleep(pauses.uniform(1, 2.5))
                before = self.commits.count()
                began_s = time.monotonic()
                producer.send(payload(_topic(0), next(self.lone)))
                _wait(partial(self.commits.has_more_than, before), service)
                took.append(time.monotonic() - began_s)
                self.sent += 1
            cpu_s = used.seconds() - cpu_s
        _told("lone request", took)
        print(
            f"  in their order: {' '.join(f'{seconds:.1f}' for seconds in took)}", flush=True
        )  # the first request may meet a cold service
        print(f"cpu of that: {cpu_s / count:.2f} s for each, with the pauses", flush=True)
        time.sleep(_SETTLE_S)
        cpu_s, began_s = used.seconds(), time.monotonic()
        time.sleep(idle_s)
        print(f"idle: {(used.seconds() - cpu_s) / (time.monotonic() - began_s):.3f} cores", flush=True)
        _stop(service)

    def many(self, count: int, owners: int) -> None:
        """Leak ledgers of many owners, request all of them, start the service, and count those that are left."""
        each = count // owners
        for number in range(owners):
            topics.fill(self.cluster, _topic(number), 1, ["s"])
            ledger_list.make_synthetic(self.cluster, _topic(number), count=each, first_id=FIRST_MANY + number * each)
        ids = range(FIRST_MANY, FIRST_MANY + owners * each)
        requests = (
            OutgoingRequest(None, payload(_topic(number % owners), ids[number % owners * each + number // owners]))
            for number in range(len(ids))
        )
        send_all(self.settings.pulsar, self.settings.topics.requests[0], requests)
        self.sent += len(ids)
        parents = sorted({ledger_list.path_of(number).rpartition("/")[0] for number in ids})
        with zookeeper(self.cluster.addresses.zookeeper) as client:
            began_s = time.monotonic()
            service = self.service.start("--until-idle")
            used = Cpu(service.pid)
            seen = [(0.0, len(ids))]

            def are_gone() -> bool:
                stats = [client.exists(parent) for parent in parents]
                left = sum(int(stat.numChildren) for stat in stats if stat is not None)
                if left != seen[-1][1]:
                    seen.append((time.monotonic() - began_s, left))
                    used.seconds()
                return not left

            _wait(are_gone, service, 0.05)
        tenth_s, nine_tenths_s = (next(at for at, left in seen if left <= share * len(ids)) for share in (0.9, 0.1))
        print(
            f"many: {0.8 * len(ids) / (nine_tenths_s - tenth_s):.0f} a second between a tenth ({tenth_s:.1f} s) and "
            f"nine tenths ({nine_tenths_s:.1f} s), all {len(ids)} of {owners} owners gone after {seen[-1][0]:.1f} s",
            flush=True,
        )
        print(f"cpu of that: {used.seconds():.1f} s", flush=True)
        if service.wait(_PATIENCE_S):
            sys.exit(f"the service ended with {service.returncode}")

    def account(self) -> None:
        """Exit with a message if anything is wrong."""
        result = reckon(self.settings)
        left = [number for number in ledger_list.every_ledger(self.cluster) if number >= FIRST_LONE]
        if (result.requests, result.open, result.wrong) != (self.sent, 0, []) or len(left) > len(list(self.lone)):
            sys.exit(f"{result}, {len(left)} leaked ledgers are still there")
        print(f"{dict(result.outcomes)}, nothing open, nothing wrong")
        print("".join(line for line in self.service.log.read_text().splitlines(True) if " chunk " in line)[-2000:])


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--owners", type=int, default=100)
    options = parser.parse_args()
    with scratch_cluster("waits") as cluster:
        bench = Bench(cluster)
        bench.prepare(options.starts + 1 + options.requests)
        if options.starts:
            bench.starts(options.starts)
        if options.requests:
            bench.alone(options.requests, options.idle_seconds)
        if options.ledgers:
            bench.many(options.ledgers, options.owners)
        bench.account()


if __name__ == "__main__":
    main()
