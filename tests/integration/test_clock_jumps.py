"""This machine's clock jumps by a year while the service runs: no request is lost, stuck, forgotten or early."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from streaming.clients import admin_for, clients_for, reader_for
from streaming.clock import ManualClock, SystemClock
from streaming.coordination.agreed_clock import AgreedClock
from streaming.deletion.fair_lock import FairLock
from streaming.deletion.supervision.upkeep import tidy_up
from streaming.errors import UnavailableError
from streaming.ports import Pulsar
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.reckoning import reckon
from streaming.state import journal
from streaming.state.receipts import Receipts
from tests.builders import DAY_MS
from tests.integration.conftest import Deploy, Deployment, leak, load_hook, new_topic, payload

pytestmark = [pytest.mark.cluster, pytest.mark.long]

YEAR_MS = 366 * DAY_MS


@pytest.mark.parametrize("first_ms", [pytest.param(YEAR_MS, id="ahead first"), pytest.param(-YEAR_MS, id="back first")])
def test_retries_wait_their_delay_despite_jumps_of_this_machines_clock(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_ms: int
) -> None:
    topic = new_topic("jumps")
    topics.fill(cluster, topic, 3, ["s"])
    listed = topics.data_ledgers(cluster, topic)
    service, ahead, log = deploy(), tmp_path / "ahead", tmp_path / "run.log"
    load_hook(monkeypatch, "clock", CLOCK_AHEAD=ahead)
    requested = 0
    running = service.start("run", log=log)
    try:
        for ahead_ms in (0, first_ms, 0, -first_ms, 0):
            ahead.write_text(str(ahead_ms))
            # while the clock is slow, no ledger is old enough to be deleted
            leaked = leak(cluster, topic, 5) if ahead_ms >= 0 else []
            service.request([payload(topic, ledger_id) for ledger_id in (*leaked, *listed)])
            requested += len(leaked) + len(listed)
            topics.wait_for(lambda: _final(service) == requested, f"answers, {ahead_ms} ms ahead", seconds=240)  # noqa: B023
    except UnavailableError as error:
        pytest.fail(f"{error}\n{log.read_text(errors='replace')[-6000:]}")
    finally:
        running.terminate()
        running.wait(60)

    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (requested, 0, [])
    assert set(listed) <= ledger_list.listed_by_bookie(cluster)


def test_a_clock_that_is_a_year_ahead_expires_neither_journal_nor_receipts(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic("expiry")
    topics.fill(cluster, topic, 1, ["s"])
    service, ahead = deploy(), tmp_path / "ahead"
    leaked = leak(cluster, topic, 3)
    for ahead_ms, ledger_ids in ((YEAR_MS, leaked[:2]), (0, leaked[2:])):
        with monkeypatch.context() as wrong:
            load_hook(wrong, "clock", CLOCK_AHEAD=ahead)
            ahead.write_text(str(ahead_ms))
            service.request([payload(topic, ledger_id) for ledger_id in ledger_ids])
            service.run("run", "--until-idle")
    settings, count = service.settings, len(service.receipts())
    root, name = settings.zookeeper.own_root, settings.service.name
    table = cast("Receipts", SimpleNamespace(sync=lambda: None))
    with admin_for(settings) as admin:
        for ahead_ms in (YEAR_MS, 0, -YEAR_MS):
            machine = ManualClock(SystemClock().now_ms() + ahead_ms)
            agreed = AgreedClock(clients_for(settings).store, root, name, clock=machine)
            tidy_up(settings, Pulsar(admin, reader_for(settings)), table, FairLock(), agreed)
            assert sorted(row["ledger_id"] for row in journal.entries(settings.state_dir)) == sorted(leaked)
            assert len(service.receipts()) == count


def _final(service: Deployment) -> int:
    """Count the requests with a final receipt."""
    return len(service.final())
