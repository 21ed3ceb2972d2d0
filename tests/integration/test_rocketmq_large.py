"""A real broker's store of millions of units is converted within the expected time, disk and memory."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.sampler import Sampler
from streaming.sandbox.rocketmq.broker_home import StoreMode
from streaming.sandbox.rocketmq.server import down, up
from tests.integration.rocket_client import Queue, RocketClient
from tests.integration.test_rocketmq import ledger_reaper

pytestmark = [pytest.mark.cluster, pytest.mark.long]
UNITS = int(os.environ.get("LEDGER_REAPER_ROCKETMQ_UNITS", "2000000"))
QUEUES: list[Queue] = [("Large", number) for number in range(8)]
SENT_AT_ONCE = 20_000
FILES = {"mappedFileSizeCommitLog": str(64 << 20), "mappedFileSizeConsumeQueue": "6000000"}


@pytest.mark.timeout(3600)
def test_millions_of_units_are_converted_within_the_plans_figures(tmp_path: Path) -> None:
    server = up(tmp_path, "5.3.3", mode=StoreMode.FILE, broker_settings=FILES)
    try:
        with RocketClient(server) as client:
            client.topic("Large", len(QUEUES))
            for number in range(UNITS // SENT_AT_ONCE):
                client.send("Large", f"m{number}", SENT_AT_ONCE, queues=len(QUEUES), batch=500, tags=["a", "b", None])
            client.take("readers", [QUEUES[3]], each=1)  # a broker sets no offset for an unknown group
            client.commit("readers", QUEUES[3], 77_777)
            ends = client.ends(QUEUES)
            client.close()
            server.stop_broker()
            store = str(server.store)
            plan = json.loads(ledger_reaper("rocketmq", "plan", "--store", store, "--json"))
            used = _used(server.store)
            start = time.monotonic()
            result, memory = _sampled("backfill", "--store", store, "--yes", "--json")
            took = time.monotonic() - start
            check_start = time.monotonic()
            *_, checked = map(json.loads, ledger_reaper("rocketmq", "check", "--store", store, "--json").splitlines())
            check_seconds = time.monotonic() - check_start
            figures = {
                "units": result["units"],
                "seconds": result["seconds"],
                "with_start_seconds": round(took, 1),
                "disk_bytes": _used(server.store) - used,
                "check_seconds": round(check_seconds, 1),
                "planned_seconds": plan["seconds_expected"],
                "planned_seconds_if_busy": plan["seconds_if_busy"],
                "planned_disk_bytes": plan["disk_needed_bytes"],
                **memory,
            }
            print(json.dumps(figures))  # noqa: T201
            assert checked["ok"], checked
            assert result["units"] == plan["live_units"] >= UNITS
            assert took <= 3 * plan["seconds_if_busy"]  # this machine may become busier
            assert figures["disk_bytes"] <= plan["disk_needed_bytes"]
            assert memory["all_mb"] < 2_500
            server.start_broker(StoreMode.ROCKSDB)
            assert client.ends(QUEUES) == ends
            assert client.offsets("readers", QUEUES)[QUEUES[3]] == 77_777
            (taken, *_) = client.take("readers", [QUEUES[3]], each=1)
            assert taken.read.offset == 77_777
            sent = client.send("Large", "new", 8, queues=8)
            assert {(("Large", queue), offset) for queue, offset in sent.values()} == {
                (queue, end) for queue, (_first, end) in ends.items()
            }
    finally:
        down(tmp_path)


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_long_queues_are_read_as_before(tmp_path: Path, version: str) -> None:
    """Our own writer, which leaves short queues to RocksDB's writer, writes complete files here."""
    server = up(tmp_path, version, mode=StoreMode.FILE, broker_settings=FILES)
    queues: list[Queue] = [("Long", number) for number in range(3)]
    try:
        with RocketClient(server) as client:
            client.topic("Long", len(queues))
            for number in range(5):
                client.send("Long", f"m{number}", 6_000, queues=len(queues), batch=100, tags=["a", "b", None])
            before = client.dump(queues)
            stored = sorted(each.stored_ms for each in before[queues[0]].messages)
            stamps = [stored[0] - 1, *stored[:: len(stored) // 20], stored[-1] + 1]
            times = client.times(queues, stamps)
            client.close()
            server.stop_broker()
            store = str(server.store)
            ledger_reaper("rocketmq", "backfill", "--store", store, "--yes", "--rows-per-file", "7000")
            files = list((server.store / "consumequeue").glob("*.sst"))
            ours = [file for file in files if b"session.identity" not in file.read_bytes()]
            ledger_reaper("rocketmq", "check", "--store", store)
            for number in range(2):
                server.start_broker(StoreMode.ROCKSDB)
                after = client.dump(queues)
                assert {queue: after[queue].messages[: len(before[queue].messages)] for queue in queues} == {
                    queue: each.messages for queue, each in before.items()
                }
                assert number or client.times(queues, stamps) == times
                assert all(each.end == len(each.messages) for each in after.values())
                client.send("Long", f"new{number}", 30, queues=len(queues))
                client.close()
                server.stop_broker()
            assert len(ours) == 5
            ledger_reaper("rocketmq", "check", "--store", store)
    finally:
        down(tmp_path)


def _sampled(*words: str) -> tuple[dict[str, float], dict[str, int]]:
    """Run a command; return its JSON output, and the peak memory of its processes."""
    command = [sys.executable, "-m", "streaming", "rocketmq", *words]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        Sampler(process.pid) as sampler,
    ):
        out, error = process.communicate(timeout=1800)
        assert process.returncode == 0, error
    return json.loads(out.splitlines()[-1]), sampler.peak_mb()


def _used(folder: Path) -> int:
    """Return the bytes on the disk; holes of sparse files do not count."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
