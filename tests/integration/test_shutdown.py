"""SIGTERM and SIGINT end a batch between two effects, say which, and the next start goes on, however it was started."""

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

pytestmark = [pytest.mark.cluster]

LEDGERS = 250


class Way(NamedTuple):
    """How the service was started, and who gets which signal: its first process, or all of them."""

    submitted: bool
    number: signal.Signals
    to_all: bool


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(Way(True, signal.SIGTERM, False), id="spark-submit told to stop"),
        pytest.param(Way(True, signal.SIGTERM, True), id="spark-submit by systemd", marks=pytest.mark.long),
        pytest.param(Way(False, signal.SIGTERM, True), id="run by systemd", marks=pytest.mark.long),
        pytest.param(Way(True, signal.SIGINT, True), id="spark-submit by Ctrl-C", marks=pytest.mark.long),
        pytest.param(Way(False, signal.SIGINT, True), id="run by Ctrl-C", marks=pytest.mark.long),
    ],
)
def test_a_signal_in_mid_batch_stops_between_two_effects_and_says_what_runs_again(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    topic = new_topic("stop")
    topics.fill(cluster, topic, 3, ["s"])
    leaked = leak(cluster, topic, LEDGERS)
    service, log = deploy(chunk_rows=100), tmp_path / "run.log"
    service.request(payload(topic, each) for each in leaked)

    monkeypatch.setenv("LEDGER_REAPER__LIMITS__DELETES_PER_SECOND", "20")
    with killed_at_the_end(service.start("run", log=log, submitted=way.submitted)) as running:
        wait_until(lambda: bool(service.receipts()), running, log, seconds=240)  # the first of three chunks
        if way.to_all:
            os.killpg(running.pid, way.number)
        else:
            running.send_signal(way.number)
        code = running.wait(60)

    said = log.read_text()
    assert code == 0, said[-4000:]
    assert f"{way.number.name}: stopping" in said
    assert "stopped; abandoned, runs again: requests" in said
    assert "Traceback" not in said, said[-6000:]
    assert 0 < len(service.final()) < LEDGERS

    monkeypatch.delenv("LEDGER_REAPER__LIMITS__DELETES_PER_SECOND")
    gone = _ledgers_of_a_gone_owner(cluster, service)
    if way.submitted:
        service.submit("run", "--until-idle")
    else:
        service.run("run", "--until-idle")
    assert len(service.final()) == LEDGERS + len(gone)
    found = reckon(service.settings)
    assert (found.open, found.wrong) == (0, [])
    of_gone = Counter((row["outcome"], row["reason"]) for row in service.receipts() if row["ledger_id"] in gone)
    assert of_gone == {("RETRY", "OWNER_ABSENT_ONCE"): len(gone), ("DELETED", "OWNER_GONE"): len(gone)}


def _ledgers_of_a_gone_owner(cluster: Cluster, service: Deployment) -> tuple[int, ...]:
    """Ask for them: they need two looks, and so a retry that comes due."""
    topic, owned = gone_owner(cluster)
    service.request(payload(topic, ledger_id) for ledger_id in owned)
    return owned
