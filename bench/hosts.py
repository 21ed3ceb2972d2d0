"""Measures how fast a Spark cluster of one host, and of two, deletes leaked ledgers, and the CPU time of executors.

    .venv/bin/python -m bench.hosts --built DIR [--leaked 20000] [--owners 20] [--workers 1 2]

The hosts are namespaces of this machine (tests/integration/hosts.py), so the script needs root. State and checkpoints
are on S3, each executor has one core, and the rate is not limited. --built: a folder with the results of
deploy/install.sh (`ledger-reaper/`) and deploy/dist.sh (`dist/`). For each number of workers the script prints ledgers
a second between a tenth and nine tenths, and CPU seconds of executors per 1,000 ledgers. The cluster, the driver and
all executors share the machine's cores, so a second worker adds nothing if they are busy.
"""

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from streaming.sandbox import cluster as clusters
from streaming.sandbox import topics
from tests.integration.conftest import leak, new_topic, payload
from tests.integration.host_scenes import Field, Gone
from tests.integration.hosts import separate, until
from tests.integration.spark_hosts import SparkHosts

_KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
_LIMITS = "max_deletes_per_batch = 10_000_000"


def measured(workers: int, leaked: int, owners: int, built: Path) -> str:
    """Run on so many workers, and return a line of text."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        here = Path(folder)
        hosts = stack.enter_context(separate(here))
        stack.callback(clusters.down, here / "pulsar")
        cluster = clusters.up(here / "pulsar", listen=hosts.address)
        spark = SparkHosts(
            hosts=hosts,
            here=here,
            installed=built / "ledger-reaper",
            dist=built / "dist",
            environment=_KEYS,
            stack=stack,
        )
        spark.start(f"worker{number}" for number in range(workers))
        service = Field(cluster, spark, here).service(rate=0, limits=_LIMITS)
        requests = []
        for _ in range(owners):
            owner = new_topic("bench")
            topics.fill(cluster, owner, 1, ["s"])
            requests += [payload(owner, ledger_id) for ledger_id in leak(cluster, owner, leaked // owners)]
        service.request(requests)
        with Gone(service) as gone:
            began_s = time.monotonic()
            driver = spark.drive(spark.add_driver("driver", service.config), service.config, "run")
            used_s: list[tuple[int, float]] = []

            def is_done() -> bool:
                used_s.append((gone.now, spark.executor_seconds()))
                return gone.now >= len(requests)

            until(is_done, driver.log, 900)
            all_s = time.monotonic() - began_s
        first, last = (next(at for at, n in gone.seen if n >= share * len(requests)) for share in (0.1, 0.9))
        busy = [(n, used) for n, used in used_s if 0.1 <= n / len(requests) <= 0.9]
        (n0, cpu0), (n1, cpu1) = busy[0], busy[-1]
        per_thousand = f"{(cpu1 - cpu0) / (n1 - n0) * 1000:.2f}" if n1 > n0 else "?"
        rate = 0.8 * len(requests) / (last - first)
        return (
            f"{workers} worker(s): {rate:.0f} ledgers a second from a tenth to nine tenths; all {len(requests)} gone "
            f"{all_s:.1f} s after the driver's start; executors used {per_thousand} CPU seconds per 1,000 ledgers; "
            f"load {psutil.getloadavg()[0]:.1f}"
        )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", type=Path, required=True)
    parser.add_argument("--leaked", type=int, default=20_000)
    parser.add_argument("--owners", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    chosen = parser.parse_args()
    os.environ.update(_KEYS)
    for workers in chosen.workers:
        print(measured(workers, chosen.leaked, chosen.owners, chosen.built.absolute()), flush=True)


if __name__ == "__main__":
    main()
