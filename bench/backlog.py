"""Measures how long the service takes for a backlog: requests that are in the topic when it starts, all in one batch.

    .venv/bin/python -m bench.backlog [--requests 200000] [--leaked 50000] [--chunk-rows 50000] [--large 0]

It runs on a new cluster. --leaked of the requests name existing ledgers that no topic uses (metadata in ZooKeeper, no
entries on a bookie); the others name ledgers that never existed. The connector does not limit a batch, so the first
batch contains all requests. The script prints the seconds from the start of the process to the first and the last
receipts, and the highest resident memory. It fails unless each request has one final receipt and each leaked ledger is
gone. --large adds messages of 5 MiB, which cost their sender kilobytes because they are compressed.
"""

import re
import sys
import time
from collections.abc import Iterator

from pulsar import CompressionType

from bench.sampler import Sampler
from bench.session import command_line, scratch_cluster
from bench.supervisor import NOWHERE, Supervisor, payload, rows_in
from streaming.adapters.pulsar.publish import OutgoingRequest, client, send_all
from streaming.clients import admin_for
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.reckoning import reckon
from streaming.state.receipts import TABLE
from streaming.topics.setup import ensure_topics

TOPIC = "persistent://public/default/backlog"
FIRST = 1_000_000
LIMITS = ("batch", "hour", "hour_per_tenant", "hour_per_owner")
_LOT = 10_000
_JAVA_OPTIONS = re.compile(r"^java_options = .*\n", re.MULTILINE)
_LOOK_S = 0.5
_LARGE_BYTES = 5 * 1024 * 1024


def messages(leaked: range, count: int) -> Iterator[OutgoingRequest]:
    """Return the requests, those for leaked ledgers spread evenly among the others."""
    every = max(1, count // max(1, len(leaked)))
    gone = iter(leaked)
    for number in range(count):
        ledger_id = next(gone, None) if number % every == 0 else None
        yield OutgoingRequest(None, payload(TOPIC, NOWHERE + number if ledger_id is None else ledger_id))


def drain(settings: Settings, service: Supervisor) -> None:
    """Process the backlog and print how long it took."""
    began_s = time.monotonic()
    running = service.start("--until-idle")
    seen: list[tuple[float, int]] = []  # seconds since the start, receipts
    with Sampler(running.pid) as sampler:
        while running.poll() is None:
            rows = rows_in(settings, TABLE)
            if rows > (seen[-1][1] if seen else 0):
                seen.append((time.monotonic() - began_s, rows))
            time.sleep(_LOOK_S)
    if running.returncode != 0 or not seen:
        sys.exit(f"the service ended with {running.returncode}: {service.log.read_text()[-2000:]}")
    (first_s, first_rows), (last_s, last_rows) = seen[0], seen[-1]
    between = f", {(last_rows - first_rows) / (last_s - first_s):.0f} a second since then" if len(seen) > 1 else ""
    print(f"first {first_rows} receipts after {first_s:.1f} s, all {last_rows} after {last_s:.1f} s{between}")
    print(f"from start to end {time.monotonic() - began_s:.1f} s; resident at most {sampler.peak_mb()}", flush=True)


def send_large(settings: Settings, count: int) -> None:
    """Publish messages of 5 MiB, with each compression that the client has."""
    kinds = (CompressionType.LZ4, CompressionType.ZLib, CompressionType.ZSTD)
    with client(settings.pulsar) as opened:
        for number, kind in enumerate(kinds):
            producer = opened.create_producer(
                settings.topics.requests[0],
                compression_type=kind,
                batching_enabled=False,
                block_if_queue_full=True,
                max_pending_messages=20,
            )
            for _ in range(number, count, len(kinds)):
                producer.send_async(bytes(_LARGE_BYTES), lambda *_: None)
            producer.flush()


def account(cluster: Cluster, settings: Settings, leaked: range, count: int) -> None:
    """Exit with a message if anything is wrong."""
    result = reckon(settings)
    left = set(leaked) & ledger_list.every_ledger(cluster).keys()
    if (result.requests, result.open, result.wrong, left) != (count, 0, [], set()):
        sys.exit(f"{result}, {len(left)} leaked ledgers are still there")
    print(f"{dict(result.outcomes)}, nothing open, nothing wrong")


def configured(text: str, chunk_rows: int) -> str:
    """Return the sandbox's configuration with the JVM options of production, and without limits on deletions."""
    without_limits = "".join(f"max_deletes_per_{scope} = {1 << 40}\n" for scope in LIMITS)
    text = text.replace("[service]\n", f"[service]\nchunk_rows = {chunk_rows}\n")
    return _JAVA_OPTIONS.sub("", text.replace("[limits]\n", f"[limits]\n{without_limits}"))


def run(cluster: Cluster, requests: int, leaked: int, chunk_rows: int, large: int = 0) -> None:
    """Create the backlog, process it, and check the result."""
    config = cluster.home.config
    config.write_text(configured(config.read_text(), chunk_rows))
    settings = load(config)
    topics.fill(cluster, TOPIC, 3, ["s"])
    ids = range(FIRST, FIRST + leaked)
    for lot in range(0, leaked, _LOT):
        ledger_list.make_synthetic(cluster, TOPIC, count=len(ids[lot : lot + _LOT]), first_id=ids[lot])
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
    send_all(settings.pulsar, settings.topics.requests[0], messages(ids, requests))
    send_large(settings, large)
    drain(settings, Supervisor(config, cluster.home.root / "service.log"))
    account(cluster, settings, ids, requests + large)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--leaked", type=int, default=50_000)
    parser.add_argument("--chunk-rows", type=int, default=50_000)
    parser.add_argument("--large", type=int, default=0)
    options = parser.parse_args()
    with scratch_cluster("backlog") as cluster:
        run(cluster, options.requests, options.leaked, options.chunk_rows, options.large)


if __name__ == "__main__":
    main()
