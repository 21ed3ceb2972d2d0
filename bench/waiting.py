"""Measures the cost of a service that only waits: all its retries are due in a week.

    .venv/bin/python -m bench.waiting [--retries 100000] [--seconds 60]

It runs on a new cluster. After the service has read all retries, the script measures the CPU time of its processes
(driver, JVM, Python workers) over --seconds and prints it in cores, with their resident bytes at the end. Then it stops
the service and prints how long that took.
"""

import time

import psutil

from bench.session import command_line, scratch_cluster
from bench.supervisor import Supervisor, payload, rows_in
from streaming.adapters.pulsar.publish import client
from streaming.clients import admin_for
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.state.waiting import TABLE
from streaming.topics.setup import ensure_topics

NOWHERE = "public/default/persistent/nowhere"
FIRST = 3 * 10**15  # above the ledger ids of any cluster
WEEK_MS = 7 * 24 * 3600 * 1000


def publish(settings: Settings, count: int) -> None:
    """Publish retries like a consumer's reconsumeLater."""
    with client(settings.pulsar) as connected:
        producer = connected.create_producer(
            settings.topics.retry, batching_enabled=True, block_if_queue_full=True, batching_max_messages=1000
        )
        for ledger_id in range(FIRST, FIRST + count):
            producer.send_async(
                payload(NOWHERE, ledger_id),
                lambda *_: None,
                properties={"RECONSUMETIMES": "1", "DELAY_TIME": str(WEEK_MS)},
            )
        producer.flush()


def used(process: psutil.Process) -> tuple[float, int]:
    """Return the CPU seconds and resident bytes of a process and all its descendants."""
    seconds, resident = 0.0, 0
    for measured in [process, *process.children(recursive=True)]:
        times = measured.cpu_times()
        seconds += times.user + times.system
        resident += measured.memory_info().rss
    return seconds, resident


def run(cluster: Cluster, retries: int, seconds: float) -> None:
    """Start everything, wait until the service is idle, measure, and print."""
    config = cluster.home.config
    settings = load(config)
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
    publish(settings, retries)
    running = Supervisor(config, cluster.home.root / "service.log").start()
    try:
        topics.wait_for(lambda: rows_in(settings, TABLE) >= retries, "the end of the retries", seconds=600)
        process = psutil.Process(running.pid)
        before_s, _ = used(process)
        time.sleep(seconds)
        after_s, resident = used(process)
        cores = (after_s - before_s) / seconds
        print(f"{retries} retries waiting: {cores:.2f} cores over {seconds:g} s, {resident // 1_000_000} MB resident")
        began_s = time.monotonic()
        running.terminate()
        ended = running.wait(60)
        print(f"stopped by SIGTERM in {time.monotonic() - began_s:.1f} s, exit code {ended}")
    finally:
        running.kill()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--retries", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    with scratch_cluster("waiting") as cluster:
        run(cluster, options.retries, options.seconds)


if __name__ == "__main__":
    main()
