"""Measures how many offloaded objects the service deletes a second, beside plain loops over delete_object.

    .venv/bin/python -m bench.tiered [--pairs 4000] [--loop-pairs 400] [--latency-ms 0] [--keys-per-second 0]

A moto server in its own process has objects of the same kind for each of three methods, which run in succession. "loop"
deletes without checks. "proof" works like a careful script, object by object: read the index, delete both objects,
check both. "sweep" is the service's own code: read the indexes, read the owner (in memory here), write the journal with
fsync, delete in bulk, check all. With --keys-per-second the server answers SlowDown above that rate, like S3 above
3,500 writes a second. --latency-ms is added to each answer. moto itself can do about 9,000 deletes a second.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3

from bench.session import command_line
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import S3Objects
from streaming.clock import SystemClock
from streaming.in_use.loader import InUseLoader
from streaming.state.journal import ParquetJournal
from streaming.sweep.jobs import Job
from streaming.sweep.tiered_storage.buckets import OffloadBuckets
from streaming.sweep.tiered_storage.offload_jobs import OffloadRules
from streaming.sweep.tiered_storage.offloads import OffloadSweeper
from udfs.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, serialize_managed_ledger
from udfs.formats.offload_index import IndexEntry, index_name, object_name, parse_offload_index, serialize_offload_index
from udfs.offload_drivers import Bucket
from udfs.paths import LEDGERS_ROOT, Layout, managed_ledger_path
from udfs.records import (
    LedgerComponent,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    OffloadContext,
    Outcome,
    PendingDelete,
)
from udfs.verdicts.judge import Policy
from udfs.verdicts.judge_offload import OffloadPolicy

HOST = "127.0.0.1"
TOPIC = "public/default/persistent/bench"
SIGNED = {"pulsarclustername": "bench", "managedledgername": TOPIC, "s3managedledgeroffloaderformatversion": "1"}
CUSTOM = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": TOPIC.encode()}
WAYS = ("loop", "proof", "sweep")
EPOCH = "/epoch"


def uuid_of(number: int) -> str:
    """Return a UUID; the UUIDs are spread over the key space like random ones."""
    return str(UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835) & ((1 << 128) - 1)))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--pairs", type=int, default=4_000)
    parser.add_argument("--loop-pairs", type=int, default=400)
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument("--keys-per-second", type=float, default=0)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "bench.tiered", "--serve", str(port), *sys.argv[1:]])
    try:
        await_answer(port)
        run(f"http://{HOST}:{port}", options)
    finally:
        server.terminate()
        server.wait(10)


def run(endpoint: str, options: argparse.Namespace) -> None:
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="bench", aws_secret_access_key="bench"
    )
    ways: dict[str, tuple[int, Callable[[], None]]] = {
        "loop": (options.loop_pairs, lambda: plain_loop(client, options.loop_pairs)),
        "proof": (options.loop_pairs, lambda: loop_with_proof(client, options.loop_pairs)),
        "sweep": (options.pairs, lambda: sweep(endpoint, options.pairs)),
    }
    rates: dict[str, float] = {}
    print(f"{options.pairs} pairs, {options.latency_ms:g} ms, limit {options.keys_per_second:g} keys/s")
    print(f"{'way':8} {'objects':>8} {'seconds':>8} {'objects/s':>10} {'requests/object':>16} {'SlowDown':>9}")
    for way in WAYS:
        pairs, work = ways[way]
        before = counts(endpoint)
        begun_s = time.monotonic()
        work()
        took_s = time.monotonic() - begun_s
        after = counts(endpoint)
        left = client.list_objects_v2(Bucket=way)["KeyCount"]
        if left:
            raise SystemExit(f"{way}: {left} objects are left")
        objects, requests = 2 * pairs, after["requests"] - before["requests"]
        rates[way] = objects / took_s
        slow = after["slow"] - before["slow"]
        print(f"{way:8} {objects:8} {took_s:8.2f} {rates[way]:10.0f} {requests / objects:16.3f} {slow:9}")
    print(f"sweep against loop: {rates['sweep'] / rates['loop']:.1f}x; against loop with proof: ", end="")
    print(f"{rates['sweep'] / rates['proof']:.1f}x")


def plain_loop(client: Any, pairs: int) -> None:
    for number in range(pairs):
        client.delete_object(Bucket="loop", Key=object_name(uuid_of(number), number))
        client.delete_object(Bucket="loop", Key=index_name(uuid_of(number), number))


def loop_with_proof(client: Any, pairs: int) -> None:
    for number in range(pairs):
        data, index = object_name(uuid_of(number), number), index_name(uuid_of(number), number)
        content = client.get_object(Bucket="proof", Key=index)["Body"].read()
        if parse_offload_index(content).metadata.custom_metadata != CUSTOM:
            raise SystemExit(f"{index} is not ours")
        for key in (data, index):
            client.delete_object(Bucket="proof", Key=key)
        for key in (data, index):
            try:
                client.head_object(Bucket="proof", Key=key)
            except client.exceptions.ClientError:
                continue
            raise SystemExit(f"{key} is still there")


def sweep(endpoint: str, pairs: int) -> None:
    bucket = Bucket(endpoint=endpoint, name="sweep", region="us-east-1", exclusive=True)
    named = {"bucket": bucket.name, "serviceEndpoint": endpoint}
    jobs = [
        Job(
            PendingDelete(
                managed_ledger=TOPIC,
                component=LedgerComponent.MANAGED_LEDGER,
                ledger_type=LedgerType.OFFLOAD_LEDGER,
                ledger_id=number,
                offload_context=OffloadContext(uuid=uuid_of(number), driver_name="S3", driver_properties=named),
            )
        )
        for number in range(pairs)
    ]
    with tempfile.TemporaryDirectory() as state:
        credentials = Path(state, "credentials")
        credentials.write_text("[default]\naws_access_key_id = bench\naws_secret_access_key = bench\n")
        swept = sweeper(bucket, state, pairs, str(credentials)).sweep(jobs, {})
    wrong = [result for result in swept if result.verdict.outcome is not Outcome.DELETED]
    if wrong:
        raise SystemExit(f"{len(wrong)} were not deleted, the first: {wrong[0].verdict}")


def sweeper(bucket: Bucket, state: str, pairs: int, credentials: str) -> OffloadSweeper:
    clock = SystemClock()
    tree = MemoryTree(clock)
    owner = managed_ledger_path(TOPIC)
    for depth in range(2, owner.count("/") + 1):
        tree.create("/".join(owner.split("/")[:depth]), b"")
    tree.create(owner, serialize_managed_ledger(ManagedLedgerInfo((LedgerInfo(ledger_id=pairs + 1),))))
    tree.create(EPOCH, b"")
    loader = InUseLoader(MemoryStore(tree), None, clock)
    policy = OffloadPolicy(
        Policy(min_age_ms=0, above_newest_quarantine_ms=0, absence_interval_ms=0), offload_grace_ms=0, cluster="bench"
    )
    store = S3Objects(S3Settings(endpoint=bucket.endpoint, bucket=bucket.name, credentials_file=credentials))
    places = OffloadBuckets(
        loader=loader,
        configuration=NoConfiguration(),
        allowed=(bucket,),
        open_store=lambda _bucket: store,
        patience_seconds=60.0,
    )
    journal = ParquetJournal(state, "bench", 0, clock)
    rules = OffloadRules((EPOCH, 0), policy, Layout.HIERARCHICAL, LEDGERS_ROOT)
    return OffloadSweeper(places, loader, journal, clock, rules)


class NoConfiguration:
    """Is not used, because every request names its bucket."""

    def cluster_name(self) -> str:
        return "bench"

    def offload_policies(self, namespace: str) -> dict[str, str]:
        raise AssertionError(namespace)


def serve(options: argparse.Namespace) -> None:
    """Run moto's S3, filled without HTTP, which counts requests and can limit them."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import run_simple

    from streaming.sandbox.parts.s3_server import s3_app

    class Quiet(MotoRequestHandler):
        def log_request(self, *_: object, **__: object) -> None:
            return

    for way in WAYS:
        fill(way, options.pairs if way == "sweep" else options.loop_pairs)
    app = Throttled(s3_app(), options.latency_ms / 1000, options.keys_per_second)
    run_simple(HOST, options.serve, app, threaded=True, request_handler=Quiet)


def fill(bucket: str, pairs: int) -> None:
    from moto.s3.models import s3_backends

    backend = s3_backends["123456789012"]["aws"]
    backend.create_bucket(bucket, "us-east-1")
    metadata = LedgerMetadata(
        state=LedgerState.CLOSED,
        length_bytes=1_000,
        last_entry_id=9,
        ctime_ms=1_700_000_000_000,
        custom_metadata=CUSTOM,
    )
    index = serialize_offload_index(metadata, 1_208, [IndexEntry(0, 1, 0)])
    for number in range(pairs):
        uuid = uuid_of(number)
        for key, content in ((object_name(uuid, number), b"x" * 1_208), (index_name(uuid, number), index)):
            stored = backend.put_object(bucket, key, content)
            stored.set_metadata({f"x-amz-meta-{name}": value for name, value in SIGNED.items()})


class Throttled:
    """WSGI: counts requests, adds the latency, and answers SlowDown above the limit of deleted keys a second."""

    def __init__(self, app: Any, latency_s: float, keys_per_s: float) -> None:
        self._app = app
        self._latency_s = latency_s
        self._keys_per_s = keys_per_s
        self._lock = threading.Lock()
        self._requests = self._slow = 0
        self._budget, self._at_s = keys_per_s, time.monotonic()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/-/counts":
            return answer(start_response, "200 OK", json.dumps({"requests": self._requests, "slow": self._slow}))
        time.sleep(self._latency_s)
        with self._lock:
            self._requests += 1
            if self._keys_per_s and not self._affords(deleted_keys(environ)):
                self._slow += 1
                return answer(start_response, "503 Slow Down", "<Error><Code>SlowDown</Code></Error>")
            return list(self._app(environ, start_response))

    def _affords(self, keys: int) -> bool:
        now_s = time.monotonic()
        self._budget = min(self._keys_per_s, self._budget + (now_s - self._at_s) * self._keys_per_s)
        self._at_s = now_s
        if self._budget < keys:
            return False
        self._budget -= keys
        return True


def deleted_keys(environ: dict[str, Any]) -> int:
    if environ["REQUEST_METHOD"] == "DELETE":
        return 1
    if environ["REQUEST_METHOD"] != "POST" or not environ["QUERY_STRING"].startswith("delete"):
        return 0
    return round(int(environ["CONTENT_LENGTH"]) / 90)  # approximately the size of <Object><Key>…</Key></Object>


def answer(start_response: Callable[..., Any], status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))])
    return [text.encode()]


def counts(endpoint: str) -> dict[str, int]:
    import httpx

    found: dict[str, int] = httpx.get(f"{endpoint}/-/counts", trust_env=False).json()
    return found


def await_answer(port: int, seconds: float = 120) -> None:
    deadline_s = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main()
