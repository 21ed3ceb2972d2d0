"""Measures lanes: how many idle ones cost what, and how long requests wait on the active ones.

    python -m bench.lanes [--lanes 1000] [--active 10] [--minutes 2] [--batch 200] [--no-odd] [--home DIR]

A sandbox gets one tenant with a lane for each of --lanes. The script measures the time until a service watches them
all, then the CPU seconds of the service and of the broker in a minute without any request, and their memory. Then
--active tenants send a request every few seconds: alone for --minutes, and again for --minutes beside a hostile tenant
that floods its lane with requests, five batches of --batch a second, and sends the odd messages of
tests/integration/drawn_messages.py. Each receipt's time minus the time of sending is a wait. The exit code is 1 if a
request has no receipt or several.
"""

import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.session import command_line
from streaming.adapters.pulsar.publish import client
from streaming.clients import admin_for, open_store
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.ports import Znode
from streaming.sandbox import cluster as clusters
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.parts import launch
from streaming.state import receipts
from tests.integration.drawn_messages import REFUSED, Drawer
from tests.integration.odd_messages import senders
from tests.integration.raw_producer import RawProducer
from udfs import columns as c

_AT_ONCE = 16
_IDLE_S = 60.0
_EVERY_S = 5.0  # an active tenant sends a request so often
_FLOOD_S = 0.2  # between two batches of the flood
HOSTILE = "hostile"
_LANES_OF_A_SMALL_HEAP = 2_000
_LARGE = {
    Part.ZOOKEEPER: "-Xms64m -Xmx1g",
    Part.BOOKIE: "-Xms128m -Xmx1g -XX:MaxDirectMemorySize=512m",
    Part.BROKER: "-Xms256m -Xmx3g -XX:MaxDirectMemorySize=1g",
}
_FIRST = int(time.time()) * 1_000_000_000  # ledger ids that no earlier run has requested


def _lane(tenant: str) -> str:
    return f"persistent://{tenant}/ledger-deletion/__ledger_deletion"


def _payload(tenant: str, number: int) -> bytes:
    fields = {"topicName": f"{tenant}/ns/persistent/x", "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER"}
    return json.dumps({**fields, "ledgerId": _FIRST + number}).encode()


def _create(settings: Settings, tenants: list[str]) -> float:
    """Create the lanes: the first through the admin API, the others as copies of its znodes, which is faster."""
    began_s = time.monotonic()
    first, *others = tenants
    with admin_for(settings) as admin:
        admin.ensure_namespace(_lane(first))
        admin.create_partitioned_topic(_lane(first), 1)
    store = open_store(settings)
    try:
        paths = [
            f"/admin/policies/{first}",
            f"/admin/policies/{first}/ledger-deletion",
            f"/admin/local-policies/{first}/ledger-deletion",
            f"/admin/partitioned-topics/{first}/ledger-deletion/persistent/__ledger_deletion",
        ]
        nodes = zip(paths, store.read_many(paths), strict=True)
        copied = {path: node.data for path, node in nodes if isinstance(node, Znode)}
        # a topic without ledgers
        copied[f"/managed-ledgers/{first}/ledger-deletion/persistent/__ledger_deletion-partition-0"] = b""

        def copy(tenant: str) -> None:
            for path, data in copied.items():
                store.create(path.replace(f"/{first}", f"/{tenant}", 1), data, parents=True)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(copy, others))
    finally:
        store.close()
    return time.monotonic() - began_s


def _cpu_s(pid: int) -> float:
    total = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def _memory_mb(pid: int) -> float:
    root = psutil.Process(pid)
    return sum(process.memory_info().rss for process in (root, *root.children(recursive=True))) / 1e6


@contextmanager
def _service(config: Path, log: Path) -> Iterator[tuple[int, str]]:
    """Run the service; yield its process id and the URL of its metrics."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "streaming", "run", "--config", str(config)], stdout=output, stderr=output
        )
    try:
        while not (found := [line for line in log.read_text().splitlines() if "metrics: http" in line]):
            time.sleep(0.2)
        yield process.pid, found[0].partition("metrics: ")[2].split()[0]
    finally:
        process.terminate()
        process.wait(120)


def _listening(url: str) -> float:
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("ledger_reaper_lanes{") and 'state="listening"' in line:
                return float(line.rpartition(" ")[2])
    return 0.0


def _send(settings: Settings, tenants: list[str], first: int, seconds: float) -> dict[int, float]:
    """Send requests on these tenants' lanes, each every _EVERY_S; return ledger id -> time."""
    sent: dict[int, float] = {}
    ends_s = time.monotonic() + seconds
    with RawProducer(settings.pulsar.service_url) as producer:
        while time.monotonic() < ends_s:
            round_s = time.monotonic()
            for number, tenant in enumerate(tenants):
                ledger = first + len(sent)
                producer.send(f"{_lane(tenant)}-partition-0", _payload(tenant, ledger))
                sent[_FIRST + ledger] = time.time()
                # spread over the round
                time.sleep(max(0.0, round_s + _EVERY_S * (number + 1) / len(tenants) - time.monotonic()))
    return sent


@dataclass(frozen=True)
class Hostile:
    """The messages of the hostile tenant."""

    batch: int  # requests of a batch of the flood
    odd: bool  # odd messages too


def _be_hostile(settings: Settings, hostile: Hostile, stop: threading.Event, counts: Counter[str]) -> None:
    partition = f"{_lane(HOSTILE)}-partition-0"

    def flood() -> None:
        with client(settings.pulsar) as opened:
            producer = opened.create_producer(
                partition,
                batching_enabled=True,
                batching_max_messages=hostile.batch,
                batching_max_allowed_size_in_bytes=4 * 1024 * 1024,
                batching_max_publish_delay_ms=1000,  # flush() sends what is there
                block_if_queue_full=True,
            )
            while not stop.wait(_FLOOD_S):
                for number in range(hostile.batch):
                    producer.send_async(_payload(HOSTILE, 500_000_000 + counts["flood"] + number), lambda *_: None)
                producer.flush()
                counts["flood"] += hostile.batch

    flooding = threading.Thread(target=flood)
    flooding.start()
    if not hostile.odd:
        flooding.join()
        return
    chance = random.Random(7)
    drawer = Drawer(chance, transactions=False)
    with senders(settings.pulsar.service_url) as send:
        while not stop.wait(chance.uniform(0, 0.5)):
            drawn = drawer.draw(drawer.kind(), _payload(HOSTILE, chance.randrange(1000)))
            try:
                drawn.publish(send, partition)
                counts[drawn.kind] += 1
            except REFUSED:
                send.raw.reconnect()
    flooding.join()


def _waits(settings: Settings, sent: dict[int, float]) -> dict[str, object]:
    """Wait for the receipts, and describe the waits in seconds."""
    until_s = time.monotonic() + 120
    while True:
        columns = [c.LEDGER_ID, c.AT_MS]
        ends = [(row[c.LEDGER_ID], row[c.AT_MS]) for row in receipts.rows(settings.state_dir, columns=columns)]
        counts = Counter(ledger for ledger, _at in ends if ledger in sent)
        if len(counts) == len(sent) or time.monotonic() > until_s:
            break
        time.sleep(1)
    waits = sorted(at_ms / 1000 - sent[ledger] for ledger, at_ms in ends if ledger in sent)
    if not waits:
        return {"sent": len(sent), "done": 0, "wrong": True}
    return {
        "sent": len(sent),
        "p50_s": round(waits[len(waits) // 2], 2),
        "p99_s": round(waits[len(waits) * 99 // 100], 2),
        "longest_s": round(waits[-1], 2),
        "without_receipt": len(sent) - len(counts),
        "with_several": sum(count > 1 for count in counts.values()),
    }


def measure(home: Path, lanes: int, active: int, minutes: float, sends: Hostile) -> int:
    """Run all phases and print each; return 1 if a request has no receipt or several."""
    if lanes > _LANES_OF_A_SMALL_HEAP:
        launch._MEMORY.update(_LARGE)
    cluster: Cluster = clusters.up(home)
    config = home / "lanes.toml"
    config.write_text(f'{cluster.home.config.read_text()}\n[topics]\nlanes = "tenant"\n')
    settings = load(config)
    tenants = [f"lane{number}" for number in range(lanes)]
    print(json.dumps({"lanes": lanes, "created_s": round(_create(settings, [*tenants, HOSTILE]), 1)}), flush=True)
    running = cluster.process(cluster.spec.all_of(Part.BROKER)[0])
    if running is None:
        raise SystemExit("the broker does not run")
    broker = running.pid
    print(json.dumps({"broker_before_mb": round(_memory_mb(broker))}), flush=True)
    chosen = random.Random(1).sample(tenants, active)
    results = []
    with _service(config, home / "lanes.log") as (service, url):
        began_s = time.monotonic()
        while _listening(url) < lanes + 1:
            time.sleep(1)
        print(json.dumps({"taken_up_s": round(time.monotonic() - began_s, 1)}), flush=True)
        time.sleep(30)
        before = _cpu_s(service), _cpu_s(broker)
        time.sleep(_IDLE_S)
        idle = {
            "service_cpu_percent": round((_cpu_s(service) - before[0]) / _IDLE_S * 100, 1),
            "broker_cpu_percent": round((_cpu_s(broker) - before[1]) / _IDLE_S * 100, 1),
            "service_mb": round(_memory_mb(service)),
            "broker_mb": round(_memory_mb(broker)),
        }
        print(json.dumps({"idle": idle}), flush=True)
        _waits(settings, _send(settings, chosen, 0, 20))  # warms up
        results.append(_waits(settings, _send(settings, chosen, 1_000_000, minutes * 60)))
        print(json.dumps({"quiet": results[-1]}), flush=True)
        stop, counts = threading.Event(), Counter[str]()
        hostile = threading.Thread(target=_be_hostile, args=(settings, sends, stop, counts))
        hostile.start()
        time.sleep(10)
        results.append(_waits(settings, _send(settings, chosen, 2_000_000, minutes * 60)))
        stop.set()
        hostile.join()
        print(json.dumps({"beside_hostile": results[-1], "hostile_sent": counts}), flush=True)
    return int(any(result["without_receipt"] or result["with_several"] for result in results))


def main() -> int:
    """Run the benchmark with the options of the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--lanes", type=int, default=1000)
    parser.add_argument("--active", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--batch", type=int, default=200, help="requests of a batch of the hostile tenant")
    parser.add_argument("--no-odd", action="store_true", help="let the hostile tenant send no odd messages")
    parser.add_argument("--home", type=Path, help="of the sandbox, which stays; default: a temporary one")
    options = parser.parse_args()
    sends = Hostile(options.batch, odd=not options.no_odd)
    if options.home is not None:
        return measure(options.home, options.lanes, options.active, options.minutes, sends)
    with TemporaryDirectory(prefix="lanes-") as folder:
        try:
            return measure(Path(folder), options.lanes, options.active, options.minutes, sends)
        finally:
            clusters.down(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
