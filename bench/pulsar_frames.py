"""Measures the Spark source "pulsar-frames" on the sandbox, with ledgers of 50,000 entries.

    .venv-spark4/bin/python -m bench.pulsar_frames [--messages 1000000] [--seconds 60] [--wait 1]

Two topics get the messages of 150 bytes: one in batches of 100, one alone. The script prints for each how many messages
a second the driver counts, one task turns into record batches, and a query that writes nothing reads, all in batches of
100,000. Then a query with a trigger of one second and three topics of four partitions runs for so many seconds without
a message, and as long again with a lone message every three seconds: the CPU time of the JVM and of the driver's Python
process, the memory of both, and how long after its publication a message is in the function of foreachBatch.
--wait: the source's waitSeconds.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pulsar

from bench.session import command_line
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.source.batch_read import read_batch
from streaming.adapters.pulsar.source.broker import PulsarSourceBroker
from streaming.adapters.pulsar.source.options import parse_options
from streaming.adapters.pulsar.source.stream import PulsarStream
from streaming.sandbox import cluster as clusters
from streaming.sandbox.cluster import Cluster
from tests.integration.spark4_jobs import Jobs, jobs
from udfs.pulsar_source.admission import Limits

_LEDGERS = {"managedLedgerMaxEntriesPerLedger": "50000", "managedLedgerCacheSizeMB": "64"}
_PAYLOAD = b"x" * 150
_BATCH = Limits(100_000, 1 << 28)
_SUBSCRIPTION = "bench"


def main(arguments: list[str]) -> None:
    """Print the figures."""
    parser = command_line(__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--wait", type=int, default=1)
    given = parser.parse_args(arguments)
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="pulsar-frames-") as folder:
        home = Path(folder) / "cluster"
        try:
            cluster = clusters.up(home, broker_settings=_LEDGERS)
            with jobs(Path(folder) / "spark") as opened:
                for in_batch in (100, 1):
                    topic = _topic(cluster, 4)
                    _publish(cluster, topic, given.messages, in_batch)
                    _measure_backlog(cluster, opened, Path(folder), topic, in_batch)
                _measure_lone(cluster, opened, Path(folder), given.seconds, given.wait)
        finally:
            clusters.down(home)
    print(f"load {os.getloadavg()[0]:.1f}")


def _topic(cluster: Cluster, partitions: int) -> str:
    topic = f"persistent://public/default/bench-{uuid.uuid4().hex[:10]}"
    with PulsarAdmin(PulsarAdminSettings(admin_url=cluster.addresses.admin)) as admin:
        admin.create_partitioned_topic(topic, partitions)
        admin.ensure_subscription(topic, _SUBSCRIPTION)  # otherwise closed ledgers are deleted unread
    return topic


def _client(cluster: Cluster) -> Any:
    return closing(pulsar.Client(cluster.addresses.pulsar, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)))


def _publish(cluster: Cluster, topic: str, messages: int, in_batch: int) -> None:
    with _client(cluster) as client:
        producer = client.create_producer(
            topic,
            batching_enabled=in_batch > 1,
            batching_max_messages=max(in_batch, 2),
            batching_max_publish_delay_ms=1000,
            block_if_queue_full=True,
        )
        for _ in range(messages):
            producer.send_async(_PAYLOAD, None, {"name": "value"}, "a-key")
        producer.flush()


def _options(cluster: Cluster, topics: Sequence[str], **more: str) -> dict[str, str]:
    where = {"serviceUrl": cluster.addresses.pulsar, "adminUrl": cluster.addresses.admin}
    return {**where, "topics": ",".join(topics), "subscription": _SUBSCRIPTION, **more}


def _measure_backlog(cluster: Cluster, opened: Jobs, folder: Path, topic: str, in_batch: int) -> None:
    options = parse_options(_options(cluster, [topic]))
    stream = PulsarStream(options, PulsarSourceBroker(options.pulsar, ""))
    offset = stream.initial()
    stream.set_target()
    started_s, batches = time.perf_counter(), []
    while (end := stream.latest_offset(offset, _BATCH)) != offset:
        batches += stream.partitions(offset, end)
        offset = end
    counted_s = time.perf_counter() - started_s
    stream.close()
    started_s = time.perf_counter()
    messages = sum(read.num_rows for batch in batches for read in read_batch(options, batch))
    read_s = time.perf_counter() - started_s
    answer = opened.run(folder / f"query-{in_batch}", _options(cluster, [topic]), writes=False)
    rows = sum(progress["numInputRows"] for progress in answer["progress"])
    print(
        f"{messages:,} messages in batches of {in_batch}: counted {messages / counted_s:,.0f}/s, read by a task "
        f"{messages / read_s:,.0f}/s, by a query {rows / answer['seconds']:,.0f}/s ({answer['seconds']:.0f} s)"
    )


def _measure_lone(cluster: Cluster, opened: Jobs, folder: Path, seconds: int, wait: int) -> None:
    topics = [_topic(cluster, 4) for _ in range(3)]
    options = _options(cluster, topics, waitSeconds=str(wait))
    query: dict[str, Any] = {"trigger": "1 second", "seconds": 20 + 2 * seconds}
    runner = threading.Thread(target=lambda: opened.run(folder / "lone", options, **query))
    runner.start()
    time.sleep(15)
    idle = _cpu_of(opened)
    time.sleep(seconds)
    for name, used_s in _cpu_of(opened).items():
        print(f"idle, CPU of {name}: {(used_s - idle.get(name, 0.0)) / seconds:.4f} cores")
    published: dict[bytes, float] = {}
    with _client(cluster) as client:
        producer = client.create_producer(topics[0])
        for number in range(seconds // 3):
            published[b"%d" % number] = time.time()
            producer.send(b"%d" % number)
            time.sleep(2 + number % 7 / 7)
    runner.join()
    delays = sorted(_arrivals(folder / "lone", published))
    p99 = delays[int(len(delays) * 0.99)]
    print(f"{len(delays)} lone messages: p50 {statistics.median(delays):.2f} s, p99 {p99:.2f} s")
    for process in _processes(opened):
        print(f"memory of {process.name()}: {process.memory_info().rss / 1e6:.0f} MB")


def _arrivals(folder: Path, published: Mapping[bytes, float]) -> list[float]:
    """Return how long each message took. A file of the job is written as soon as a batch is in foreachBatch."""
    import pyarrow as pa

    arrived = []
    for path in folder.glob("*.arrow"):
        with pa.ipc.open_file(path) as file:
            values = file.read_all()["value"].to_pylist()
        arrived += [path.stat().st_mtime - published[value] for value in values]
    return arrived


def _processes(opened: Jobs) -> list[psutil.Process]:
    own = psutil.Process(opened.process.pid)
    return [each for each in (own, *own.children(recursive=True)) if each.status() != psutil.STATUS_ZOMBIE]


def _cpu_of(opened: Jobs) -> dict[str, float]:
    """Return the CPU seconds of the processes so far, by what they are."""
    used: dict[str, float] = {}
    for process in _processes(opened):
        command = " ".join(process.cmdline())
        name = (
            "the JVM"
            if process.name() == "java"
            else "the source's driver process"
            if "python_streaming_source_runner" in command
            else "Python workers and the job"
        )
        times = process.cpu_times()
        used[name] = used.get(name, 0.0) + times.user + times.system
    return used


if __name__ == "__main__":
    main(sys.argv[1:])
