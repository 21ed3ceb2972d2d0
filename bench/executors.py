"""Measures how many ledgers concurrent executors delete a second.

    python -m bench.executors [--executors 1 2 4] [--ledgers 20000]

Each executor is a process with its own ZooKeeper session that runs the service's sweep (read in bulk, judge, write the
journal, delete under guard, check again), like a Spark task but without Spark. All delete at the same time, each the
ledgers of its own owner, in chunks of --chunk-rows. The sandbox's ZooKeeper runs on the same cores, so the wall time
depends on this machine; docs/scaling.md uses the CPU seconds of executors and of ZooKeeper for 1,000 ledgers.
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psutil

from bench.session import command_line, scratch_cluster
from streaming.clients import clients_for
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.in_use.loader import InUseLoader
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.state.journal import ParquetJournal
from streaming.sweep.jobs import Job, SweepRules
from streaming.sweep.ledgers import Sweeper
from udfs.paths import managed_ledger_name
from udfs.records import LedgerComponent, LedgerType, Outcome, PendingDelete
from udfs.verdicts.judge import Policy

FIRST = 1_000_000
EPOCH = "/bench-epoch"
_ROOM = 10_000_000  # ids of one executor
_LOT = 10_000


def sweep(config: Path, topic: str, ids: Sequence[int], chunk_rows: int, ready: Barrier) -> float:
    """Delete these ledgers like an executor, and return the CPU seconds used."""
    settings, clock = load(config), SystemClock()
    store = clients_for(settings).store
    rules = SweepRules(
        ledger_list.LAYOUT,
        "/ledgers",
        (EPOCH, 0),
        Policy(min_age_ms=0, above_newest_quarantine_ms=0, absence_interval_ms=0),
    )
    owner = managed_ledger_name(topic)
    jobs = [
        Job(
            PendingDelete(
                managed_ledger=owner,
                component=LedgerComponent.MANAGED_LEDGER,
                ledger_type=LedgerType.LEDGER,
                ledger_id=ledger_id,
            )
        )
        for ledger_id in ids
    ]
    store.read_many([EPOCH])
    ready.wait()
    began = os.times()
    for chunk, at in enumerate(range(0, len(jobs), chunk_rows)):
        journal = ParquetJournal(settings.state.dir, topic.rpartition("/")[2], chunk, clock)
        sweeper = Sweeper(store, InUseLoader(store, None, clock), journal, clock, rules)
        for swept in sweeper.sweep(jobs[at : at + chunk_rows], {}):
            if swept.verdict.outcome is not Outcome.DELETED:
                raise RuntimeError(f"not deleted: {swept.verdict}")
    ended = os.times()
    return (ended.user - began.user) + (ended.system - began.system)


def measure(cluster: Cluster, executors: int, count: int, chunk_rows: int, first: int) -> str:
    """Create ledgers, let so many executors delete them, and return a line of the table."""
    names = [f"persistent://public/default/bench-{number}" for number in range(executors)]
    shares = [range(first + _ROOM * number, first + _ROOM * number + count // executors) for number in range(executors)]
    for name, ids in zip(names, shares, strict=True):
        for at in range(0, len(ids), _LOT):
            ledger_list.make_synthetic(cluster, name, count=len(ids[at : at + _LOT]), first_id=ids[at])
    context = multiprocessing.get_context("spawn")
    ready = context.Manager().Barrier(executors + 1)
    servers = [process for process in psutil.process_iter() if _is_zookeeper(process, cluster)]
    with context.Pool(executors) as pool:
        config = cluster.home.config
        tasks = [
            pool.apply_async(sweep, (config, name, ids, chunk_rows, ready))
            for name, ids in zip(names, shares, strict=True)
        ]
        ready.wait(120)
        began_s, servers_began_s = time.monotonic(), _cpu_s(servers)
        used_s = sum(task.get(900) for task in tasks)
        took_s, servers_used_s = time.monotonic() - began_s, _cpu_s(servers) - servers_began_s
    done = sum(len(ids) for ids in shares)
    per_s, per_executor, per_server = done / took_s, used_s / done * 1000, servers_used_s / done * 1000
    return f"{executors:9} {done:8} {took_s:8.2f} {per_s:10.0f} {per_executor:15.3f} {per_server:16.3f}"


def _is_zookeeper(process: psutil.Process, cluster: Cluster) -> bool:
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return str(cluster.home.root) in words and "QuorumPeerMain" in words


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(process.cpu_times().user + process.cpu_times().system for process in processes)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--ledgers", type=int, default=20_000, help="in all, for each line of the table")
    parser.add_argument("--chunk-rows", type=int, default=5_000)
    options = parser.parse_args()
    with scratch_cluster("executors") as cluster:
        clients_for(load(cluster.home.config)).store.create(EPOCH, b"")
        for number in range(max(options.executors)):
            topics.fill(cluster, f"persistent://public/default/bench-{number}", 1, ["s"])
        print("executors  ledgers  seconds  ledgers/s  CPU ms/ledger  ZooKeeper's CPU ms/ledger")
        for turn, executors in enumerate(options.executors):
            first = FIRST + turn * _ROOM * max(options.executors)
            print(measure(cluster, executors, options.ledgers, options.chunk_rows, first), flush=True)


if __name__ == "__main__":
    main()
