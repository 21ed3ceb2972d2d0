"""Kill -9 at each effect of the service, on the real cluster: the end state is that of an undisturbed run."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.clients import admin_for
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.reckoning import reckon
from tests.integration.conftest import Deploy, Deployment, leak, load_hook, new_topic, payload

pytestmark = [pytest.mark.cluster, pytest.mark.long]

STARTING_AND_SWEEPING = (
    "before:streaming.coordination.epoch:Epoch.bump",
    "after:streaming.coordination.epoch:Epoch.bump",
    "after:streaming.coordination.identity:hold_state",
    "before:streaming.state.journal:ParquetJournal.write",
    "after:streaming.state.journal:ParquetJournal.write",
    "after:streaming.adapters.zookeeper.store:ZooKeeperStore.delete_guarded",
    "after:streaming.adapters.pulsar.publish:_send",
    "before:streaming.adapters.pulsar.publish:_Answers.check",
    "after:streaming.adapters.pulsar.publish:_Answers.check",
)
RECORDING_AND_PUBLISHING = (
    "before:streaming.state.receipts:Receipts.append",
    "after:streaming.state.receipts:Receipts.append",
    "after:streaming.state.receipts:Receipts.append#1",
    "after:streaming.deletion.chunks.outbox:PulsarCopies.send",
    "after:streaming.deletion.service:LedgerDeletionService._chunk",
    "after:streaming.deletion.service:LedgerDeletionService.process",
)
WAITING = (
    "before:streaming.state.waiting:Waiting.append",
    "after:streaming.state.waiting:Waiting.append",
    "after:streaming.state.waiting:Waiting.start_pass",
    "before:streaming.state.waiting:Waiting.end_pass",
    "after:streaming.state.waiting:Waiting.end_pass",
)
BROKER_FORGETS = (
    "after:streaming.adapters.pulsar.publish:_send#5",
    "before:streaming.adapters.pulsar.publish:_Answers.check",
)
BATCH = 12
# 10 rounds are two hundred kills, in an hour and a half
ROUNDS = int(os.environ.get("LEDGER_REAPER_CRASH_ROUNDS", "1"))


@pytest.mark.parametrize(
    "effects",
    [
        pytest.param(STARTING_AND_SWEEPING, id="starting, sweeping, publishing"),
        pytest.param(RECORDING_AND_PUBLISHING, id="recording, and committing the batch"),
        pytest.param(WAITING, id="keeping retries until they are due"),
    ],
)
def test_a_kill_at_any_effect_loses_and_repeats_nothing(
    cluster: Cluster,
    deploy: Deploy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    effects: tuple[str, ...],
) -> None:
    topic = new_topic("crash")
    topics.fill(cluster, topic, 3, ["s"])
    listed = topics.data_ledgers(cluster, topic)
    service = deploy(chunk_rows=100)
    leaked: list[int] = []
    unreached = []
    load_hook(monkeypatch, "crash", CRASH_PIDS=tmp_path / "pid")
    effects *= ROUNDS
    for effect in effects:
        batch = leak(cluster, topic, BATCH)
        leaked += batch
        service.request(
            [*(payload(topic, ledger_id) for ledger_id in batch), payload(topic, listed[0]), b"\xff no request"]
        )
        monkeypatch.setenv("CRASH_AT", effect)
        running = service.start("run", "--until-idle", log=tmp_path / "run.log")
        if running.wait(200) != -signal.SIGKILL:
            unreached.append((effect, running.returncode))
        monkeypatch.delenv("CRASH_AT")
        reckoning = reckon(service.settings)
        assert reckoning.wrong == [] or all("differ from the receipts" in sentence for sentence in reckoning.wrong), (
            effect
        )
    service.run("run", "--until-idle", seconds=900)  # the backlog of all rounds, possibly on a busy machine

    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (len(effects) * (BATCH + 2), 0, [])
    assert unreached == []
    left = ledger_list.listed_by_bookie(cluster)
    assert not left & set(leaked)
    assert set(listed) <= left


@pytest.mark.parametrize(
    "effect",
    [
        pytest.param(BROKER_FORGETS[0], id="some copies are sent"),
        pytest.param(BROKER_FORGETS[1], id="a partition's copies are stored"),
    ],
)
def test_a_broker_that_forgot_a_killed_publisher_stores_no_copy_twice(
    cluster: Cluster,
    deploy: Deploy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    effect: str,
) -> None:
    service = _with_requests(cluster, deploy)
    with monkeypatch.context() as killing:
        load_hook(killing, "crash", CRASH_PIDS=tmp_path / "pid", CRASH_AT=effect)
        assert service.start("run", "--until-idle", log=tmp_path / "run.log").wait(200) == -signal.SIGKILL
    before = reckon(service.settings)
    assert before.retries + before.dead_letters > 0

    _let_brokers_forget_producers(service)
    service.run("run", "--until-idle")

    after = reckon(service.settings)
    assert (after.open, after.wrong) == (0, [])
    assert after.retries > before.retries


def test_a_publication_that_outlives_the_brokers_memory_stores_no_copy_twice(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over a weekend, the brokers refuse copies during a chunk, and the service waits."""
    service = _with_requests(cluster, deploy)
    fail_file, log = tmp_path / "fails", tmp_path / "run.log"
    fail_file.touch()
    with monkeypatch.context() as failing:
        load_hook(failing, "crash", CRASH_FAILS=fail_file, CRASH_AT=BROKER_FORGETS[0])
        running = service.start("run", "--until-idle", log=log)
    # brokers forget producers that are silent, so not between the question what they remember and the next copy
    pause = "waiting 30 s: broken off by a test"
    topics.wait_for(lambda: pause in log.read_text(), "an interrupted publication", seconds=300)
    before = reckon(service.settings)
    assert before.retries + before.dead_letters > 0
    _let_brokers_forget_producers(service)
    fail_file.unlink()
    assert log.read_text().count(pause) == 1, "the service tried again while brokers forgot"
    assert running.wait(300) == 0, log.read_text()[-5000:]

    after = reckon(service.settings)
    assert (after.open, after.wrong) == (0, [])
    assert after.retries > before.retries


def _with_requests(cluster: Cluster, deploy: Deploy) -> Deployment:
    """Return a service that has run once, with new requests that become retries or dead letters."""
    topic = new_topic("crash")
    topics.fill(cluster, topic, 3, ["s"])
    service = deploy()
    service.run("run", "--until-idle")
    service.request(
        [*(payload(topic, ledger_id) for ledger_id in topics.data_ledgers(cluster, topic) * 20), b"\xff no request"]
    )
    return service


def _let_brokers_forget_producers(service: Deployment) -> None:
    """Disable and enable deduplication: brokers forget producers, as they do after hours of silence."""
    copies = (service.settings.topics.retry, service.settings.topics.dead_letter)
    with admin_for(service.settings) as admin:
        for enabled in (False, True):
            for name in copies:
                admin.set_deduplication(name, enabled=enabled)
            topics.wait_for(partial(_follow, admin, copies, enabled=enabled), "deduplication", seconds=120)


def _follow(admin: PulsarAdmin, names: tuple[str, ...], *, enabled: bool) -> bool:
    return all(admin.deduplicates(name) == enabled for name in names)
