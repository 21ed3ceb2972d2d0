"""A real RocketMQ moves to RocksDB with a stop of seconds: `follow` works beside it, and is killed, while it writes."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.sandbox.rocketmq.broker_home import StoreMode
from streaming.sandbox.rocketmq.server import RocketMQ, down, up
from tests.integration import rocket_load as load
from tests.integration.rocket_client import Queue, RocketClient
from tests.integration.rocket_compare import check_delayed, content_once, differences
from tests.integration.rocket_follow import Following
from tests.integration.test_rocketmq import ledger_reaper

pytestmark = [pytest.mark.cluster, pytest.mark.long]
QUEUES: list[Queue] = [("Orders", number) for number in range(4)]
LMQ: list[Queue] = [("%LMQ%left", 0)]
ALIVE_SECONDS = (6, 9, 12, 15)


@pytest.fixture(params=["5.3.3", "5.5.0"], ids=lambda version: f"v{version}")
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMQ]:
    try:
        yield up(tmp_path, request.param, mode=StoreMode.FILE)
    finally:
        down(tmp_path)


def sent(client: RocketClient, number: int) -> set[str]:
    """Send a small load, over several files of the log."""
    names = client.send("Orders", f"load{number}", 120, queues=4, bytes=2500)
    client.send("Orders", f"light{number}", 5, queue=0, lmq=LMQ[0][0])
    return set(names) | {f"light{number}-{each}" for each in range(5)}


def follow(server: RocketMQ, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "streaming", "rocketmq", "follow", "--store", str(server.store), "--json", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_a_broker_that_was_followed_under_load_has_all_its_messages_in_rocksdb(server: RocketMQ) -> None:
    with RocketClient(server) as client:
        client.topic("Orders", 4)
        names = sent(client, 0)
        client.take("readers", QUEUES, each=11)
        for number, seconds in enumerate(ALIVE_SECONDS, 1):
            with follow(server) as process:
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    names |= sent(client, number * 1000 + len(names))
                process.kill()  # kill -9 at any point
        names |= sent(client, 9)
        with follow(server, "--until-caught-up") as process:
            output, _ = process.communicate(timeout=1200)
        assert process.returncode == 0, output
        assert json.loads(output.splitlines()[-1])["bytes_behind"] == 0
        before, offsets = client.dump([*QUEUES, *LMQ]), client.offsets("readers", QUEUES)
        client.close()
        server.stop_broker()

        result = json.loads(ledger_reaper("rocketmq", "backfill", "--yes", "--json", "--store", str(server.store)))
        *_, checked = map(
            json.loads, ledger_reaper("rocketmq", "check", "--json", "--store", str(server.store)).splitlines()
        )
        server.start_broker(StoreMode.ROCKSDB)

        assert result["resumed"], result
        assert checked["ok"], checked
        assert client.dump([*QUEUES, *LMQ]) == before
        assert client.offsets("readers", QUEUES) == offsets
        assert Counter(each.name for queue in QUEUES for each in before[queue].messages) == Counter(names)
        print(f"backfill after follow: {result['seconds']:.1f} s for {result['units']} units")  # noqa: T201


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_delays_transactions_and_deleted_topics_are_followed(tmp_path: Path, version: str) -> None:
    server = up(tmp_path, version, mode=StoreMode.FILE, broker_settings=load.BROKER_SETTINGS)
    try:
        with RocketClient(server) as client:
            with Following(server) as following:  # from an empty store
                following.until(lambda: bool(following.lags))
                recorded = load.fill(server, client)
                following.until_caught_up()
            client.close()
            server.stop_broker()
            result = json.loads(ledger_reaper("rocketmq", "backfill", "--yes", "--json", "--store", str(server.store)))
            assert result["resumed"], result
            ledger_reaper("rocketmq", "check", "--store", str(server.store))
            server.start_broker(StoreMode.ROCKSDB)

            assert differences(recorded.content, client.dump(load.QUIET)) == []
            assert client.times(load.QUIET, recorded.stamps) == recorded.times
            assert {group: client.offsets(group, queues) for group, queues in load.GROUPS.items()} == recorded.offsets
            ends = {f"tx-unknown-{number}": "commit" if number < 3 else "rollback" for number in range(6)}
            client.resolve(ends)
            check_delayed(client, recorded)
            expected = {name for name, end in ends.items() if end == "commit"} | {f"tx-commit-{n}" for n in range(4)}
            (settled,) = content_once(client, load.SETTLED, lambda read: len(read.messages) >= len(expected))
            assert Counter(each.name for each in settled.messages) == Counter(expected)
    finally:
        down(tmp_path)
