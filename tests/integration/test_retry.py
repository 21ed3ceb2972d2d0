"""The RETRY topic on the real cluster: due times across restarts, mixed delays, and copies that are stored already."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from streaming.adapters.pulsar.publish import client, publish
from streaming.clients import admin_for, command_clients
from streaming.deletion.chunks.outbox import PulsarCopies
from streaming.ports import Copy
from streaming.reconcile.backlog_count import backlog_of
from streaming.topics.setup import ensure_topics
from tests.integration.conftest import Deploy, Deployment, killed_at_the_end, payload, stop
from udfs.requests.retry import COPY_ID

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NOWHERE = "public/default/persistent/nowhere"
FIRST = 3 * 10**15  # above every id of a real cluster
WEEK_MS = 7 * 24 * 3600 * 1000
BULK = 20_000


def _retry(service: Deployment, ledger_ids: range, delay_ms: int, *, tries: int = 1) -> int:
    """Publish retries as a Java consumer's reconsumeLater would; return the latest time (ms) at which they are due."""
    properties = {"RECONSUMETIMES": str(tries), "DELAY_TIME": str(delay_ms)}
    with client(service.settings.pulsar) as opened:
        producer = opened.create_producer(
            service.settings.topics.retry, batching_enabled=True, block_if_queue_full=True, batching_max_messages=1000
        )
        for ledger_id in ledger_ids:
            producer.send_async(payload(NOWHERE, ledger_id), lambda *_: None, properties=properties)
        producer.flush()
    return time.time_ns() // 1_000_000 + delay_ms


def _wait_for_receipt(service: Deployment, running: subprocess.Popen[bytes], ledger_id: int, log: Path) -> int:
    """Wait for the receipt of a ledger; return its time (ms)."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        assert running.poll() is None, log.read_text()[-3000:]
        times = [row["at_ms"] for row in service.receipts() if row["ledger_id"] == ledger_id]
        if times:
            return int(times[0])
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


@pytest.mark.long
def test_retries_are_processed_when_due_across_restarts_also_after_retries_that_still_wait(
    deploy: Deploy, tmp_path: Path
) -> None:
    service, log = deploy(), tmp_path / "run.log"
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    _retry(service, range(FIRST, FIRST + BULK), WEEK_MS)  # published first, and due last
    with killed_at_the_end(service.start("run", log=log)) as running:
        _retry(service, range(FIRST - 1, FIRST), 500)
        _wait_for_receipt(service, running, FIRST - 1, log)
        spread_s = (12, 2, 8, 4, 20)
        due = {FIRST - 10 - s: _retry(service, range(FIRST - 10 - s, FIRST - 9 - s), s * 1000) for s in spread_s}
        for s in (2, 4, 8):
            assert _wait_for_receipt(service, running, FIRST - 10 - s, log) >= due[FIRST - 10 - s] - 100
        status = json.loads(service.call("status", "--json"))
        assert (status["service"]["pid"], status["holds"], status["unknown"]) == (running.pid, [], {})
        assert status["retries"]["waiting"] >= BULK
        assert f"runs: pid {running.pid} on" in service.call("status")
        stop(running)
    # in the meantime the retry of 12 s became due; the retry of 20 s is due now or soon
    with killed_at_the_end(service.start("run", log=log)) as running:
        for s in (12, 20):
            assert _wait_for_receipt(service, running, FIRST - 10 - s, log) >= due[FIRST - 10 - s] - 100
        stop(running)
    finals = service.final()
    assert len(finals) == 6
    assert all(len(rows) == 1 and rows[0]["outcome"] == "ALREADY_GONE" for rows in finals.values())
    with command_clients(service.settings) as opened:
        backlog = backlog_of(service.settings, opened.pulsar)
    assert backlog["topics"][service.settings.topics.retry] == BULK
    status = json.loads(service.call("status", "--json"))
    assert (status["service"], status["retries"]["waiting"], status["waiting"]) == (None, BULK, backlog["topics"])
    assert status["last_hour"]["outcomes"] == {"ALREADY_GONE": 6}


def test_stored_copies_are_found_by_their_table_and_from_their_time_on(deploy: Deploy) -> None:
    settings = deploy().settings
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
        first, second, *_ = sorted(admin.last_positions(settings.topics.retry))

    def send(partition: str, table: str, *numbers: int) -> int:
        copies = [
            Copy(sequence_id=number, key=None, payload=b"{}", properties={COPY_ID: f"{table}/{number}"})
            for number in numbers
        ]
        publish(settings.pulsar, partition, f"test-{table}", copies)
        time.sleep(0.1)
        return time.time_ns() // 1_000_000

    start_ms = time.time_ns() // 1_000_000
    send(first, "ours", 5, 6)
    after_ms = send(first, "another's", 7)
    both = (first, second)
    copies = PulsarCopies(settings, {})
    assert copies.stored(both, "ours", start_ms) == {first: 6}
    assert copies.stored(both, "ours", after_ms) == {}
    send(second, "ours", 8, 9)
    assert copies.stored(both, "ours", start_ms) == {first: 6, second: 9}
    assert copies.stored(both, "ours", after_ms) == {second: 9}
