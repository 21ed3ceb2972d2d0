"""Further kinds of queues, consumers and hosts on a real RocketMQ."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.rocketmq.store.inventory import inventory_of
from streaming.rocketmq.store.store_paths import store_paths
from streaming.sandbox.home import HOST
from streaming.sandbox.rocketmq import network
from streaming.sandbox.rocketmq.broker_home import StoreMode
from streaming.sandbox.rocketmq.server import RocketMQ, down, up
from tests.integration.rocket_client import Queue, RocketClient
from tests.integration.test_rocketmq import ledger_reaper
from tests.unit.rocketmq.converted import files_below

pytestmark = [pytest.mark.cluster, pytest.mark.long]
SECONDS = 300


@pytest.fixture(params=["5.3.3", "5.5.0", "5.5.1"], ids=lambda version: f"v{version}")
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(version: str, tmp_path: Path) -> Iterator[RocketMQ]:
    try:
        yield up(tmp_path, version, mode=StoreMode.FILE, broker_settings={"reviveInterval": "500"})
    finally:
        down(tmp_path)


@pytest.fixture
def client(server: RocketMQ) -> Iterator[RocketClient]:
    with RocketClient(server) as opened:
        yield opened


def run(command: str, store: Path, *words: str, code: int = 0) -> str:
    return ledger_reaper("rocketmq", command, "--store", str(store), *words, code=code)


def converted(server: RocketMQ, client: RocketClient) -> None:
    """Stop the broker, convert and check its store, and start the broker in RocksDB mode."""
    client.close()
    server.stop_broker()
    run("backfill", server.store, "--yes")
    *_, summary = map(json.loads, run("check", server.store, "--json").splitlines())
    assert summary["ok"], summary
    server.start_broker(StoreMode.ROCKSDB)


def test_a_store_with_batch_queues_is_refused(server: RocketMQ, client: RocketClient) -> None:
    client.topic("Batched", 2, queue_type="BatchCQ")
    client.topic("Orders", 1)
    client.send("Batched", "batched", 40, queues=2, batch=10)
    client.send("Orders", "orders", 5)
    client.close()
    server.stop_broker()
    written = [path for path in (server.store / "batchconsumequeue").rglob("*") if path.is_file()]
    assert written
    before = files_below(server.store)

    plan = json.loads(run("plan", server.store, "--json", code=4))
    run("backfill", server.store, "--yes", code=4)

    assert [each["code"] for each in plan["refusals"]] == ["BATCH_QUEUES"]
    assert "batchconsumequeue" in plan["refusals"][0]["text"]
    assert files_below(server.store) == before


def _retry_queue(server: RocketMQ) -> Queue:
    """Return the queue of messages that a pop consumer could not process; an empty name if there is none."""
    names = [path.parent.name for path in (server.store / "consumequeue").glob("%RETRY%poppers*/0")]
    assert len(names) <= 1
    return (names[0], 0) if names else ("", 0)


def test_messages_that_pop_consumers_could_not_process_arrive_again_once(
    server: RocketMQ, client: RocketClient
) -> None:
    client.topic("Popped", 2)
    client.send("Popped", "fail", 4, queues=2)
    client.send("Popped", "done", 6, queues=2)
    first = client.push("poppers", "Popped", 6, failing="fail", seconds=240, pop=True)
    assert Counter(each.read.name for each in first) == Counter(f"done-{number}" for number in range(6))
    deadline = time.monotonic() + SECONDS
    while not (name := _retry_queue(server))[0] or client.ends([name])[name][1] < 4:
        assert time.monotonic() < deadline, "no retry topic has got the four messages"
        time.sleep(0.5)
    before = client.dump([name, ("Popped", 0), ("Popped", 1)])
    converted(server, client)

    assert client.dump(before) == before
    client.send("Popped", "later", 4, queues=2)
    taken = client.push("poppers", "Popped", 8, seconds=240, pop=True)

    expected = [f"{prefix}-{number}" for prefix in ("fail", "later") for number in range(4)]
    assert Counter(each.read.name for each in taken) == Counter(expected)


IPV6 = {"brokerIP1": "::1", "bindAddress": "::"}


def test_messages_of_ipv6_hosts_are_converted(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "make", lambda *_words: HOST)  # our network namespaces have no IPv6 address
    try:
        server = up(tmp_path, version, mode=StoreMode.FILE, broker_settings=IPV6)
        with RocketClient(server) as client:
            (*queues,) = client.topic("Orders", 2)
            client.send("Orders", "six", 40, queues=2, tags=["red", None])
            client.take("readers", queues, each=5)
            before, committed = client.dump(queues), client.offsets("readers", queues)
            log = inventory_of(store_paths(server.store, None)).log
            flags = {log.record_at(each.physical).sys_flag for queue in queues for each in before[queue].messages}  # type: ignore[union-attr]
            assert all(flag & 0x30 == 0x30 for flag in flags), flags  # both hosts are IPv6
            converted(server, client)
            assert client.dump(queues) == before
            assert client.offsets("readers", queues) == committed
            names = Counter(each.read.name for each in client.take("readers", queues))
            assert len(names) == names.total() == 40 - sum(committed.values())
    finally:
        down(tmp_path)
