"""State on an object store: the embedded cluster's S3, with checkpoints on a disk, so that Spark needs no S3A."""

import json
import uuid
from collections import Counter
from pathlib import Path

import pytest

from streaming.sandbox import clients, shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import REGION, Part
from streaming.sandbox.reckoning import reckon
from streaming.state import journal
from tests.integration.conftest import Deploy, Deployment, killed_at_the_end, leak, new_topic, payload, stop, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SECRET = f"secret{uuid.uuid4().hex}"  # looked for where it must not be


@pytest.fixture
def deploy_on_s3(cluster: Cluster, deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Factory of one deployment with its state in a bucket of its own."""

    def make(*, chunk_rows: int = 50_000) -> Deployment:
        service = deploy(chunk_rows=chunk_rows)  # first: it may have to run another service, on a disk
        endpoint, bucket = cluster.addresses.s3, f"state-{uuid.uuid4().hex[:12]}"
        clients.make_bucket(endpoint, bucket, REGION)
        monkeypatch.setenv("LEDGER_REAPER__STATE__DIR", f"s3://{bucket}/of/this-service")
        monkeypatch.setenv("LEDGER_REAPER__S3__ENDPOINT", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"id{SECRET}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        return service

    return make


def _leaked(cluster: Cluster, count: int) -> tuple[str, list[int]]:
    topic = new_topic("s3")
    topics.fill(cluster, topic, 3, ["s"])
    return topic, leak(cluster, topic, count)


def test_kill_9_and_a_restart_with_state_on_s3_lose_and_double_nothing(
    cluster: Cluster, deploy_on_s3: Deploy, tmp_path: Path
) -> None:
    topic, leaked = _leaked(cluster, 600)
    listed = topics.data_ledgers(cluster, topic)
    service = deploy_on_s3(chunk_rows=100)
    service.request([payload(topic, ledger_id) for ledger_id in leaked] + [payload(topic, listed[0])] * 5)

    log = tmp_path / "run.log"
    for _ in range(2):
        before = len(service.receipts())
        with killed_at_the_end(service.start("run", log=log)) as running:
            wait_until(lambda before=before: len(service.receipts()) > before, running, log)  # type: ignore[misc]
    service.run("run", "--until-idle")

    outcomes = Counter(row["outcome"] for some in service.final().values() for row in some)
    assert outcomes["DELETED"] + outcomes["ALREADY_GONE"] == len(leaked)
    assert outcomes["DEAD_LETTER"] == 5
    found = reckon(service.settings)
    assert (found.requests, found.open, found.wrong) == (605, 0, [])
    left = shell.list_ledgers(cluster)
    assert not left & set(leaked)
    assert set(listed) <= left
    assert {row["ledger_id"] for row in journal.entries(service.settings.state_dir)} == set(leaked)
    assert SECRET not in log.read_text()
    assert list(Path(service.config.parent).glob("state*")) == []

    said = " ".join(service.run("check").split())
    assert "refuses to overwrite when asked" in said
    assert "entries read and accounted for" in said
    assert json.loads(service.run("backlog", "--json").splitlines()[-1])["messages"] == 0


def test_while_s3_is_away_nothing_is_deleted_lost_or_worked_off_twice(
    cluster: Cluster, deploy_on_s3: Deploy, tmp_path: Path
) -> None:
    topic, leaked = _leaked(cluster, 60)
    service = deploy_on_s3()
    log = tmp_path / "run.log"
    service.request(payload(topic, ledger_id) for ledger_id in leaked[:20])
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: len(service.final()) == 20, running, log)
        cluster.stop(Part.S3)
        try:
            service.request(payload(topic, ledger_id) for ledger_id in leaked[20:40])
            wait_until(lambda: "can't be" in log.read_text(), running, log)
            assert set(leaked[20:]) <= shell.list_ledgers(cluster), "what has no journal stays"
        finally:
            cluster.start(Part.S3)
        service.request(payload(topic, ledger_id) for ledger_id in leaked[40:])
        wait_until(lambda: len(service.final()) == 60, running, log)
        stop(running)

    assert service.outcomes() == Counter({("DELETED", "UNREFERENCED"): 60})
    found = reckon(service.settings)
    assert (found.requests, found.open, found.wrong) == (60, 0, [])


def test_an_audit_keeps_its_findings_on_s3_and_publishes_from_there(cluster: Cluster, deploy_on_s3: Deploy) -> None:
    namespace = f"public/s3-{uuid.uuid4().hex[:8]}"
    topics.admin(cluster, "PUT", f"namespaces/{namespace}")
    topic = f"persistent://{namespace}/t"
    topics.fill(cluster, topic, 3, ["s"])
    leaked = leak(cluster, topic, 5)
    service = deploy_on_s3()
    scope = ("--namespace", namespace)
    audited = service.run("audit", "--recheck-seconds", "1", "--json", *scope)
    orphans = [json.loads(line) for line in audited.splitlines() if '"class":"ORPHAN"' in line]
    assert {row["ledger_id"] for row in orphans} >= set(leaked)
    service.run("audit", "--last", "--publish", *scope)
    service.run("run", "--until-idle")
    assert not shell.list_ledgers(cluster) & set(leaked)
    assert "ORPHAN" in service.run("explain", "--ledger", str(leaked[0]))
