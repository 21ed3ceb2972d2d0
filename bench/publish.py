"""Measures the way of leaked ledgers from an audit to their deletion: audit, publication, and the service's run.

    .venv/bin/python -m bench.publish [--runs 3] [--small 400] [--medium 1000] [--large 10000]

It runs on a new cluster on the same machine, with the JVM options of production. Ledgers are leaked in three
namespaces (metadata in ZooKeeper, no entries on a bookie), each command is a process of its own, and "cpu" is the CPU
time of its processes, without the cluster's.

1. --small leaks, again in each run: `audit --publish`, then `run --until-idle`. Before that, an unmeasured `run`
   creates the archive of Java classes if there is none (streaming/spark/classes.py).
2. --medium and --large leaks: `audit --last` of their namespace, without and with `--publish --publish-per-second 0`.
   A different --older-than makes each run a publication of its own.

The script fails unless the request topic has exactly one request of each publication for each of its leaks, and each
of the small leaks is gone.
"""

import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

from bench.backlog import configured
from bench.sampler import Sampler
from bench.session import command_line, scratch_cluster
from bench.waits import wait_for_classes
from streaming.adapters.pulsar.readers.read import read
from streaming.clients import admin_for
from streaming.config.load import load
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from udfs.records import PendingDelete
from udfs.requests.request_format import decode

CHUNK_ROWS = 50_000  # as in conf/default.toml
OWNERS = 20
FIRST_ID = 1_000_000
_AUDIT = ("audit", "--recheck-seconds", "0")


class Bench:
    """A cluster, its configuration, and the requests that the topic must have."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.config = cluster.home.config
        self.config.write_text(configured(self.config.read_text(), CHUNK_ROWS))
        self.expected: Counter[int] = Counter()
        self._next_id = FIRST_ID

    def leak(self, namespace: str, count: int) -> list[int]:
        """Leak ledgers of a namespace's topics, and wait until they are old enough; return their ids."""
        ids: list[int] = []
        for number in range(OWNERS):
            topic = f"persistent://{namespace}/t{number}"
            share = len(range(number, count, OWNERS))
            ids += ledger_list.make_synthetic(self.cluster, topic, count=share, first_id=self._next_id)
            self._next_id += share
        time.sleep(load(self.config).safety.min_age_seconds + 1)
        return ids

    def create(self, namespace: str) -> None:
        """Create a namespace and its topics."""
        topics.admin(self.cluster, "PUT", f"namespaces/{namespace}")
        for number in range(OWNERS):
            topics.fill(self.cluster, f"persistent://{namespace}/t{number}", 2, ["s"])

    def run(self, *arguments: str) -> tuple[float, float]:
        """Run a command; return its seconds and CPU seconds."""
        started_s = time.monotonic()
        command = [sys.executable, "-m", "streaming", *arguments, "--config", str(self.config)]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with Sampler(running.pid) as sampler:
            output, _ = running.communicate()
        if running.returncode:
            sys.exit(f"{arguments} ended with {running.returncode}: {output.decode()[-3000:]}")
        return time.monotonic() - started_s, sampler.cpu_seconds()

    def whole(self, namespace: str, count: int, runs: int) -> None:
        """Audit, publish and delete new leaks in each run."""
        audits, services = [], []
        for _ in range(runs):
            leaked = self.leak(namespace, count)
            audits.append(self.run(*_AUDIT, "--namespace", namespace, "--publish", "--yes"))
            services.append(self.run("run", "--until-idle"))
            self.expected.update(leaked)
            if left := set(leaked) & ledger_list.every_ledger(self.cluster).keys():
                sys.exit(f"{len(left)} of {count} leaked ledgers are still there")
        told(f"audit and publish {count}", audits)
        told(f"run for {count}", services)

    def publish(self, namespace: str, leaked: Sequence[int], runs: int) -> None:
        """Load the last audit, without and with a publication."""
        last = ("audit", "--last", "--namespace", namespace)
        told(f"audit --last, {len(leaked)}", [self.run(*last) for _ in range(runs)])
        publish = (*last, "--publish", "--yes", "--publish-per-second", "0")
        told(
            f"audit --last --publish, {len(leaked)}",
            [self.run(*publish, "--older-than", f"{number}s") for number in range(1, runs + 1)],
        )
        for _ in range(runs):
            self.expected.update(leaked)

    def check(self) -> None:
        """Exit with a message unless the topic has the expected requests."""
        settings = load(self.config)
        with admin_for(settings) as admin:
            last = admin.last_positions(settings.topics.requests[0])
        requests = [decode(message.payload) for message in read(settings.pulsar, last)]
        found = Counter(request.ledger_id for request in requests if isinstance(request, PendingDelete))
        if found != self.expected or len(requests) != found.total():
            sys.exit(f"the topic has {len(requests)} requests, not {self.expected.total()}, or for other ledgers")
        print(f"the topic has the {found.total()} requests", flush=True)


def told(what: str, taken: Sequence[tuple[float, float]]) -> None:
    """Print the median of the seconds and of the CPU seconds, with their ranges."""
    texts = []
    for name, values in zip(("s", "cpu s"), zip(*taken, strict=True), strict=True):
        texts.append(f"{statistics.median(values):.2f} {name} ({min(values):.2f} to {max(values):.2f})")
    print(f"{what}: {', '.join(texts)}", flush=True)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", type=int, default=400)
    parser.add_argument("--medium", type=int, default=1_000)
    parser.add_argument("--large", type=int, default=10_000)
    options = parser.parse_args()
    with scratch_cluster("publish") as cluster:
        bench = Bench(cluster)
        if options.small:
            bench.create("public/small")
            bench.run("run", "--until-idle")
            wait_for_classes()
            bench.whole("public/small", options.small, options.runs)
        sizes = {"public/medium": options.medium, "public/large": options.large}
        leaked = {}
        for namespace, size in sizes.items():
            if size:
                bench.create(namespace)
                leaked[namespace] = bench.leak(namespace, size)
        if leaked:
            told("audit of all", [bench.run(*_AUDIT)])
        for namespace, ids in leaked.items():
            bench.publish(namespace, ids, options.runs)
        bench.check()


if __name__ == "__main__":
    main()
