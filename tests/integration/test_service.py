"""The whole service against the real cluster: what it deletes, what it refuses, and what a crash can't change."""

import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.sandbox import clients, ledgers, shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.reckoning import reckon
from streaming.state.tables import opened
from tests.integration.conftest import Deployment, kill, payload, stop, wait_until
from udfs.paths import managed_ledger_name, managed_ledger_path

pytestmark = pytest.mark.cluster

Deploy = Callable[..., Deployment]


def _topic() -> str:
    return f"persistent://public/default/it-{uuid.uuid4().hex[:8]}"


def _synthetic(cluster: Cluster, topic: str, count: int) -> list[int]:
    first = int(time.time() * 1000) % 1_000_000_000 + 1_000_000
    return list(ledgers.make_synthetic(cluster, topic, count=count, first_id=first))


def test_leaks_are_deleted_and_everything_else_is_refused_with_its_reason(cluster: Cluster, deploy: Deploy) -> None:
    topic, other = _topic(), _topic()
    topics.fill(cluster, topic, 4, ["s"])
    topics.fill(cluster, other, 2, ["s"])
    leaked = _synthetic(cluster, topic, 30)
    listed = topics.data_ledgers(cluster, topic)
    messages = topics.read_all(cluster, topic)
    service = deploy()

    service.request(
        [
            *(payload(topic, ledger_id) for ledger_id in leaked),
            *([payload(topic, leaked[0])] * 2),
            payload(topic, listed[0]),
            payload(topic, topics.data_ledgers(cluster, other)[0]),
            payload(topic, 987_654_321),
            payload(topic, leaked[1], ledgerComponent="MANAGED_CURSOR", cursorName="s"),
            payload(topic, -5),
            b"\xff\x00 no json",
        ]
    )
    service.run("run", "--until-idle")

    assert service.outcomes() == Counter(
        {
            ("DELETED", "UNREFERENCED"): 30,
            ("ALREADY_GONE", "DUPLICATE"): 2,
            ("DEAD_LETTER", "IN_USE"): 1,
            ("DEAD_LETTER", "OTHER_OWNER"): 1,
            ("ALREADY_GONE", "NOT_FOUND"): 1,
            ("DEAD_LETTER", "OTHER_COMPONENT"): 1,
            ("DEAD_LETTER", "BAD_LEDGER_ID"): 1,
            ("DEAD_LETTER", "NOT_JSON"): 1,
        }
    ) or service.outcomes() == Counter(
        # the cursor request may meet its ledger after the data request deleted it
        {
            ("DELETED", "UNREFERENCED"): 30,
            ("ALREADY_GONE", "DUPLICATE"): 2,
            ("DEAD_LETTER", "IN_USE"): 1,
            ("DEAD_LETTER", "OTHER_OWNER"): 1,
            ("ALREADY_GONE", "NOT_FOUND"): 2,
            ("DEAD_LETTER", "BAD_LEDGER_ID"): 1,
            ("DEAD_LETTER", "NOT_JSON"): 1,
        }
    )
    assert all(len(some) == 1 for some in service.final().values())
    left = shell.list_ledgers(cluster)
    assert not left & set(leaked)
    assert set(listed) <= left
    assert topics.read_all(cluster, topic) == messages


def test_a_gone_owner_needs_a_second_look_also_by_spark_submit(cluster: Cluster, deploy: Deploy) -> None:
    topic = _topic()
    topics.fill(cluster, topic, 3, ["s"])
    topics.unload(cluster, topic)
    owned = ledgers.owned(cluster, topic).data
    clients.delete_znode(cluster.addresses.zookeeper, managed_ledger_path(managed_ledger_name(topic)))
    service = deploy()

    service.request(payload(topic, ledger_id) for ledger_id in owned)
    service.submit("run", "--until-idle")

    assert service.outcomes() == Counter({("DELETED", "OWNER_GONE"): len(owned)})
    first = [row for row in service.receipts() if row["outcome"] == "RETRY"]
    assert {row["reason"] for row in first} == {"OWNER_ABSENT_ONCE"}
    assert len(first) == len(owned)


@pytest.mark.slow
def test_kill_9_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    topic = _topic()
    topics.fill(cluster, topic, 3, ["s"])
    listed = topics.data_ledgers(cluster, topic)
    leaked = _synthetic(cluster, topic, 300)
    service = deploy(chunk_rows=100)
    payloads = [payload(topic, ledger_id) for ledger_id in leaked] + [payload(topic, listed[0])] * 5
    service.request(payloads)

    for _ in range(2):
        _kill_once_it_has_got_on(service, tmp_path / "run.log")
    service.run("run", "--until-idle")

    final = service.final()
    assert len(final) == len(payloads)
    assert all(len(some) == 1 for some in final.values())
    outcomes = Counter(row["outcome"] for some in final.values() for row in some)
    assert outcomes["DEAD_LETTER"] == 5
    assert outcomes["DELETED"] + outcomes["ALREADY_GONE"] == len(leaked)
    left = shell.list_ledgers(cluster)
    assert not left & set(leaked)
    assert set(listed) <= left
    reckoning = reckon(service.settings)
    assert (reckoning.wrong, reckoning.open, reckoning.dead_letters) == ([], 0, 5)
    _assert_a_lost_receipt_is_an_alarm(service)


def _kill_once_it_has_got_on(service: Deployment, log: Path) -> None:
    before = len(service.receipts())
    running = service.start("run", "--until-idle", log=log)
    try:
        wait_until(lambda: len(service.receipts()) > before, running, log)
    finally:
        kill(running)


def _assert_a_lost_receipt_is_an_alarm(service: Deployment) -> None:
    assert "entries read and accounted for" in service.run("check")
    table = opened(service.settings.state.dir, "receipts")
    assert table is not None
    row = next(row for row in service.receipts() if row["outcome"] == "DELETED")
    table.delete(f"message_id = '{row['message_id']}'")
    position = ":".join(row["message_id"].split(":")[:2])
    said = service.run("check", code=1)
    assert f"1 messages were read and have no receipt, such as {position}" in " ".join(said.split())
    assert "ALARM" in service.run("run", "--until-idle", code=1)


def test_a_second_instance_is_refused_and_names_the_first(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> None:
    service = deploy()
    log = tmp_path / "first.log"
    first = service.start("run", log=log)
    try:
        wait_until(lambda: "reading persistent" in log.read_text(), first, log)
        said = service.run("run", "--until-idle", code=4)
        assert f"pid {first.pid}" in said
        stop(first)
    finally:
        kill(first)


def test_another_cluster_behind_the_same_checkpoint_is_refused(deploy: Deploy) -> None:
    service = deploy()
    service.run("run", "--until-idle")
    known = Path(service.settings.checkpoints.dir, "cluster.json")
    known.write_text(known.read_text().replace('"instance_id": "', '"instance_id": "another-'))
    said = service.run("run", "--until-idle", code=4)
    assert "belongs to another cluster" in said


def test_requests_that_are_none_are_named_by_line_and_the_others_are_sent(deploy: Deploy) -> None:
    service = deploy()
    lines = [payload("public/default/persistent/t", 10**12), b"{", b'{"ledgerId": true}']
    said = service.run("request", stdin=b"\n".join(lines), code=2)
    assert "1 requests published" in said
    assert "line 2: NOT_JSON" in said
    assert "line 3" in said


def test_a_flood_above_the_limit_deletes_nothing_more_until_a_person_resumes(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    topic = _topic()
    topics.fill(cluster, topic, 2, ["s"])
    leaked = _synthetic(cluster, topic, 60)
    service = deploy(limits="max_deletes_per_hour_per_owner = 40")
    service.request(payload(topic, ledger_id) for ledger_id in leaked)
    log = tmp_path / "run.log"
    running = service.start("run", "--until-idle", log=log)
    try:
        wait_until(lambda: "LIMIT REACHED" in log.read_text(), running, log)
        assert "max_deletes_per_hour_per_owner is 40" in log.read_text()
        assert set(leaked) <= shell.list_ledgers(cluster)
        assert "LIMIT REACHED, nothing more is deleted: 60 deletes" in service.run("check", code=4)
        assert "LIMIT REACHED" in service.run("receipts").rpartition("held since")[2]
        assert "limit that held it: 60 deletes" in service.run("resume")
        assert running.wait(120) == 0, log.read_text()[-3000:]
    finally:
        kill(running)
    assert service.outcomes() == Counter({("DELETED", "UNREFERENCED"): 60})
