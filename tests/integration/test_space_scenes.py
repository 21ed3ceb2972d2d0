"""`space` on a real cluster: V1 names, facts that can't be read, traffic, and the bookies' entry logs."""

import contextlib
import json
import re
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import CLUSTER_NAME, Part
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import create_tenant, running_cluster
from tests.integration.printed_commands import run_printed
from tests.integration.space_scenes import (
    ENTRY_BYTES,
    FULL,
    PER_LEDGER,
    RUN,
    SUBSCRIPTION,
    World,
    closed_ledgers,
    filled,
    new_namespace,
    service_of,
    set_retention,
    topic_in,
)

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_cluster(tmp_path_factory.mktemp("scenes"), counts={Part.BOOKIE: 3}) as cluster:
        yield World(cluster, service_of(cluster, tmp_path_factory.mktemp("service")))


def test_what_a_broker_with_500_partitions_does_not_answer_is_not_guessed(world: World, tmp_path: Path) -> None:
    cluster = world.cluster
    namespace = new_namespace(cluster, "many")
    partitioned = topic_in(namespace, "many")
    topics.create_partitioned(cluster, partitioned, 500)
    for number in (0, 7, 499):
        topics.fill(cluster, f"{partitioned}-partition-{number}", 1, [SUBSCRIPTION], entry_bytes=ENTRY_BYTES)

    document = world.space("--topic", f"{namespace}/many", "--by", "topic")

    assert document["complete"], document["unknown"]
    assert document["topics"] >= 500
    assert len({row["topic"] for row in document["rows"]}) == 500
    expected = [
        sizes
        for number in (0, 7, 499)
        for sizes in closed_ledgers(cluster, f"{partitioned}-partition-{number}").values()
    ]
    backlog = sum(row["stored_by_cause"].get("backlog", 0) for row in document["rows"])
    assert backlog == sum(stored for _, stored in expected) > 0
    assert sum(row["stored"] for row in document["rows"]) == document["totals"]["stored"]

    # a cursor's znode is out of date once the cursor has a ledger
    for number in (0, 7):
        topics.consume(cluster, f"{partitioned}-partition-{number}", SUBSCRIPTION, 1)
    with _answers_500(cluster.serving.admin, r"internalStats") as admin, _advertised(cluster, admin):
        document = service_of(cluster, tmp_path, admin).document("space", "--namespace", namespace, code=4)
    *held, known = (one_copy for one_copy, _ in expected)
    assert _cause(document, "backlog")["one_copy"] == known
    assert _cause(document, "held_or_retained")["one_copy"] == sum(held)
    assert document["unknown"]
    assert {fix["frees_one_copy"] for fix in document["fixes"] if fix["frees_stored"]} <= {known}


def test_v1_names_have_the_retention_of_their_namespace(world: World) -> None:
    cluster, tenant = world.cluster, f"property-{RUN}"
    create_tenant(cluster, tenant, "ns")  # whose schemas have the same ids
    set_retention(cluster, f"{tenant}/ns", 0)
    namespace = f"{tenant}/{CLUSTER_NAME}/ns"
    topic = f"persistent://{namespace}/old"
    unlimited = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    _ask_v1(cluster, "PUT", f"namespaces/{namespace}")
    _ask_v1(cluster, "POST", f"namespaces/{namespace}/retention", unlimited)
    part_clients.subscribe(cluster.serving.pulsar, topic, [SUBSCRIPTION])
    # a broker accepts this policy, and never applies it
    own = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    topics.admin(cluster, "POST", f"{topics.resource(topic)}/retention", own)
    sent = topics.fill(cluster, topic, FULL, [SUBSCRIPTION], entry_bytes=ENTRY_BYTES)
    held = world.space("--tenant", tenant)
    topics.consume(cluster, topic, SUBSCRIPTION, sent)
    kept = world.space("--tenant", tenant)
    closed = closed_ledgers(cluster, topic)

    assert len(closed) == FULL
    one_copy, stored = (sum(each) for each in zip(*closed.values(), strict=True))
    assert _cause(held, "backlog")["one_copy"] == _cause(kept, "retention")["one_copy"] == one_copy
    assert _cause(kept, "retention")["stored"] == stored

    _ask_v1(cluster, "PUT", f"persistent/{namespace}/old/unload")
    (fix,) = [each for each in kept["fixes"] if each["cause"] == "retention"]
    run_printed(cluster, fix["commands"][0])
    idle = world.space("--tenant", tenant)
    assert _cause(idle, "trimmable")["one_copy"] == one_copy
    (fix,) = [each for each in idle["fixes"] if each["cause"] == "trimmable"]
    run_printed(cluster, fix["commands"][0])
    topics.wait_for(lambda: not closed.keys() & closed_ledgers(cluster, topic).keys(), "the broker to drop the ledgers")
    assert fix["frees_stored"] == stored


def _ask_v1(cluster: Cluster, method: str, path: str, body: object = None) -> None:
    reply = part_clients.http_any(method, cluster.serving.admin, f"admin/{path}", body=body)
    assert reply.ok, reply


def _cause(document: dict[str, Any], cause: str) -> dict[str, Any]:
    (found,) = [each for each in document["causes"] if each["cause"] == cause]
    assert isinstance(found, dict)
    return found


def test_a_policy_that_nobody_may_read_is_unknown(world: World, tmp_path: Path) -> None:
    cluster = world.cluster
    namespace = new_namespace(cluster, "hidden", retention=-1)
    topic = filled(cluster, namespace, consumed=True)
    topics.unload(cluster, topic)  # so that its broker does not know the policy either
    with _answers_500(cluster.serving.admin, rf"namespaces/{namespace}/retention") as admin:
        document = service_of(cluster, tmp_path, admin).document("space", "--namespace", namespace, code=4)
    causes = {each["cause"]: each for each in document["causes"]}
    assert not {"retention", "trimmable"} & {*causes}
    assert causes["held_or_retained"]["one_copy"] == sum(each for each, _ in closed_ledgers(cluster, topic).values())
    assert any(namespace in each["what"] or namespace in each["detail"] for each in document["unknown"])


@contextlib.contextmanager
def _advertised(cluster: Cluster, admin: str) -> Iterator[None]:
    """Let the only broker advertise another address of its admin API."""
    with part_clients.zookeeper(cluster.addresses.zookeeper) as client:
        (name,) = client.get_children("/loadbalance/brokers")
        path = f"/loadbalance/brokers/{name}"
        data = client.get(path)[0]
        client.set(path, json.dumps({**json.loads(data), "webServiceUrl": admin}).encode())
        try:
            yield
        finally:
            client.set(path, data)


@contextlib.contextmanager
def _answers_500(admin: str, pattern: str) -> Iterator[str]:
    """Serve the brokers' admin API, and answer 500 to the requests whose path has the pattern."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if re.search(pattern, self.path):
                status, body = 500, b'{"reason": "a fault"}'
            else:
                answer = httpx.get(f"{admin}{self.path}", follow_redirects=True, trust_env=False, timeout=30)
                status, body = answer.status_code, answer.content
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def _traffic(cluster: Cluster, topic: str) -> Iterator[list[int]]:
    """Publish and consume until the with block ends; yield the numbers of messages sent and consumed."""
    counts, ends = [0, 0], threading.Event()

    def run() -> None:
        while not ends.is_set():
            counts[0] += topics.fill(cluster, topic, 2, [SUBSCRIPTION], entry_bytes=ENTRY_BYTES)
            counts[1] += len(topics.consume(cluster, topic, SUBSCRIPTION, PER_LEDGER))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield counts
    finally:
        ends.set()
        thread.join()


def test_totals_add_up_under_traffic(world: World) -> None:
    namespace = new_namespace(world.cluster, "traffic")
    with _traffic(world.cluster, topic_in(namespace)) as counts:
        topics.wait_for(lambda: counts[1] > 0, "traffic")
        for by in ("cause", "tenant", "namespace", "topic"):
            document = world.service.document("space", "--by", by)
            rows = document["rows"] if by != "cause" else document["causes"]
            for field in ("stored", "one_copy"):
                assert sum(row[field] for row in rows) == document["totals"][field], (by, field)
            assert sum(bookie["live"] for bookie in document["bookies"]) == document["totals"]["stored"]
        assert counts[0] > counts[1] > 0


def _records(folder: Path) -> dict[int, dict[int, int]]:
    """Return ledger -> entry -> bytes of its record, with the length before it, in the entry logs of a bookie."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for log in folder.glob("*.log"):
        if not re.fullmatch(r"[0-9a-f]+\.log", log.name) or log.read_bytes()[:4] != b"BKLO":
            continue  # RocksDB's
        data, position = log.read_bytes(), 1024
        while position + 20 <= len(data):
            size, ledger_id, entry_id = struct.unpack_from(">iqq", data, position)
            if size <= 0:
                break
            if ledger_id >= 0:  # else it is the log's own map of ledgers
                found[ledger_id][entry_id] = size + 4
            position += size + 4
    return found


def test_each_bookies_bytes_are_those_of_its_entry_logs(world: World) -> None:
    cluster = world.cluster
    namespace = new_namespace(cluster, "disks")
    filled(cluster, namespace)
    time.sleep(4)  # bookies flush every second

    document = world.space()

    existing = set(ledger_list.every_ledger(cluster))
    by_id = {each["bookie"]: each for each in document["bookies"]}
    for part in cluster.spec.all_of(Part.BOOKIE):
        folder = cluster.home.data(part) / "ledgers" / "current"
        records = _records(folder)
        live = sum(sum(records[each].values()) for each in existing & records.keys())
        # as `du` counts
        logs = sum(log.stat().st_blocks * 512 for log in folder.glob("*.log") if log.read_bytes()[:4] == b"BKLO")
        bookie = by_id[f"bookie-{part.number - 1}"]
        assert bookie["live"] == pytest.approx(live, abs=0.01 * logs)
        assert live <= logs
