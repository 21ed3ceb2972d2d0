"""Measures a whole audit, from listing to report, and `space`, for several numbers of ledgers.

    .venv/bin/python -m bench.audit_memory [--ledgers 1000000 5000000 11000000] [--without-space] [--beside]

The audit is the product's own code on a simulated ZooKeeper (bench/simulated_zookeeper.py), so that millions of ledgers
need no znodes, and asks no brokers. Each size runs in a process of its own, on two cores. Twice a second, the script
samples the resident bytes of the audit's process and of its workers. It fails unless the findings are exactly those
expected. After the audit, the same process measures where the bytes are, as `space` does, and prints which part of its
own CPU time the simulated ZooKeeper took for its answers; the processes that read ledgers do not count theirs.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench import simulated_zookeeper
from bench.sampler import Sampler
from bench.session import command_line

CONFIG = """
[zookeeper]
hosts = "simulated:2181"
[safety]
ask_broker = false
[spark]
local_dir = "{here}/spark"
[state]
dir = "{here}/state"
[checkpoints]
dir = "{here}/checkpoints"
"""


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--ledgers", type=int, nargs="+", default=[1_000_000, 5_000_000, 11_000_000])
    parser.add_argument("--without-space", action="store_true")
    parser.add_argument("--beside", action="store_true", help="with the memory of an audit beside the service")
    parser.add_argument("--single", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.single:
        run(options.ledgers[0] // simulated_zookeeper.LEDGERS, is_beside_service=options.beside)
        if not options.without_space:
            measure_space(options.ledgers[0])
        return
    further = ["--without-space"] * options.without_space + ["--beside"] * options.beside
    for ledgers in options.ledgers:
        with started(ledgers, *further) as running:
            if running.wait():
                sys.exit(running.returncode)


@contextlib.contextmanager
def started(ledgers: int, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the measurement of one size in a process of its own, over a simulated ZooKeeper of that size."""
    with tempfile.TemporaryDirectory() as site:
        (Path(site) / "sitecustomize.py").write_text(simulated_zookeeper.SITE)
        path = os.pathsep.join([site, str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {
            simulated_zookeeper.TOPICS: str(ledgers // simulated_zookeeper.LEDGERS),
            "PYTHONPATH": path,
        }
        command = [sys.executable, "-m", "bench.audit_memory", "--single", *options, "--ledgers", str(ledgers)]
        with subprocess.Popen(command, env=environment) as running:
            yield running


def run(topics: int, *, is_beside_service: bool) -> None:
    """Run one audit in this process and print a line."""
    from streaming.audit import command
    from streaming.audit import ledger_audit as phases
    from streaming.audit.audit_options import AuditOptions
    from streaming.audit.output import output_of
    from streaming.config.load import load
    from streaming.errors import SafetyError

    phases.newest_zxid = lambda _settings: 1  # type: ignore[attr-defined, assignment]
    with tempfile.TemporaryDirectory() as folder, Sampler() as sampler:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG.format(here=folder))
        started_s = time.monotonic()
        options = AuditOptions(recheck_seconds=0, reads_per_second=0)
        with contextlib.suppress(SafetyError):  # some data is missing on purpose
            settings, request = load(config), command.AuditRequest(options=options, config=str(config))
            output = output_of(settings, None)
            command.run_again(settings, request, output, threading.Event(), is_beside_service=is_beside_service)
        seconds = time.monotonic() - started_s
        totals = json.loads((Path(folder) / "state" / "audit" / "summary.json").read_text())["totals"]
    counts = {name: totals[name]["count"] for name in ("ORPHAN", "MISSING")}
    cpu = {"cpu_seconds": round(sampler.cpu_seconds(), 1)}
    result = {"ledgers": totals["ledgers"], **counts, "seconds": round(seconds, 1), **cpu, **sampler.peak_mb()}
    print(json.dumps(result), flush=True)
    expected = {"ORPHAN": topics, "MISSING": -(-topics // simulated_zookeeper.LOST_EVERY)}
    if counts != expected or totals["ledgers"] != topics * simulated_zookeeper.LEDGERS:
        sys.exit(f"expected {expected} among {topics * simulated_zookeeper.LEDGERS} ledgers")


def measure_space(ledgers: int) -> None:
    """Run `space` in this process and print a line."""
    from streaming.config.load import load
    from streaming.space.reading.measure import space_of

    before_s = simulated_zookeeper.SimulatedStore.cpu_seconds
    with tempfile.TemporaryDirectory() as folder, Sampler() as sampler:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG.format(here=folder))
        started_s, started_cpu_s = time.monotonic(), sum(os.times()[:4])
        report = space_of(load(config), reads_per_second=0)
        seconds, cpu_s = time.monotonic() - started_s, sum(os.times()[:4]) - started_cpu_s  # with ended processes
    store_s = simulated_zookeeper.SimulatedStore.cpu_seconds - before_s
    result = {"space_ledgers": report.ledgers, "topics": report.topics, "seconds": round(seconds, 1)}
    result |= {"cpu_seconds": round(cpu_s, 1), "zookeeper_cpu_seconds": round(store_s, 1), **sampler.peak_mb()}
    print(json.dumps(result), flush=True)
    if report.ledgers != ledgers:
        sys.exit(f"expected {ledgers} ledgers")


if __name__ == "__main__":
    main()
