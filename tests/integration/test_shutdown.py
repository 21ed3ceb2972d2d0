"""SIGTERM and SIGINT end a batch between two effects; the next start continues, however the service is started."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.reckoning import reckon
from tests.integration.conftest import (
    Deploy,
    Deployment,
    gone_owner,
    killed_at_the_end,
    leak,
    new_topic,
    payload,
    wait_until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.long]

LEDGERS = 250


class Stop(NamedTuple):
    """How the service is started and stopped."""

    submitted: bool  # through spark-submit
    number: signal.Signals
    to_all: bool  # the signal goes to all processes of the service, not only to the first


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(Stop(True, signal.SIGTERM, False), id="SIGTERM to spark-submit"),
        pytest.param(Stop(True, signal.SIGTERM, True), id="spark-submit by systemd"),
        pytest.param(Stop(False, signal.SIGTERM, True), id="run by systemd"),
        pytest.param(Stop(True, signal.SIGINT, True), id="spark-submit by Ctrl-C"),
        pytest.param(Stop(False, signal.SIGINT, True), id="run by Ctrl-C"),
    ],
)
def test_a_signal_during_a_batch_stops_between_two_effects_and_names_what_runs_again(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: Stop
) -> None:
    topic = new_topic("stop")
    topics.fill(cluster, topic, 3, ["s"])
    leaked = leak(cluster, topic, LEDGERS)
    service, log = deploy(chunk_rows=100), tmp_path / "run.log"
    service.request(payload(topic, ledger_id) for ledger_id in leaked)

    monkeypatch.setenv("LEDGER_REAPER__LIMITS__DELETES_PER_SECOND", "20")
    with killed_at_the_end(service.start("run", log=log, submitted=stop.submitted)) as running:
        wait_until(lambda: bool(service.receipts()), running, log, seconds=240)  # the first of three chunks
        if stop.to_all:
            os.killpg(running.pid, stop.number)
        else:
            running.send_signal(stop.number)
        code = running.wait(60)

    text = log.read_text()
    assert code == 0, text[-4000:]
    assert f"{stop.number.name}: stopping" in text
    assert "stopped; abandoned, runs again: requests" in text
    assert "Traceback" not in text, text[-6000:]
    assert 0 < len(service.final()) < LEDGERS

    monkeypatch.delenv("LEDGER_REAPER__LIMITS__DELETES_PER_SECOND")
    gone = _ledgers_of_a_gone_owner(cluster, service)
    if stop.submitted:
        service.submit("run", "--until-idle")
    else:
        service.run("run", "--until-idle")
    assert len(service.final()) == LEDGERS + len(gone)
    reckoning = reckon(service.settings)
    assert (reckoning.open, reckoning.wrong) == (0, [])
    gone_outcomes = Counter((row["outcome"], row["reason"]) for row in service.receipts() if row["ledger_id"] in gone)
    assert gone_outcomes == {("RETRY", "OWNER_ABSENT_ONCE"): len(gone), ("DELETED", "OWNER_GONE"): len(gone)}


def _ledgers_of_a_gone_owner(cluster: Cluster, service: Deployment) -> tuple[int, ...]:
    """Request ledgers that need two checks, and so a retry that becomes due."""
    topic, owned = gone_owner(cluster)
    service.request(payload(topic, ledger_id) for ledger_id in owned)
    return owned
