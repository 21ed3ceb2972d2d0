"""State on the embedded cluster's S3, with checkpoints on a disk, so that Spark needs no S3A."""

import json
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from streaming.sandbox import shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import REGION
from streaming.sandbox.parts import part_clients
from streaming.state import journal
from tests.integration.conftest import Deploy, Deployment, leak, wait_until
from tests.integration.s3_scenes import kill_repeatedly, survive_an_outage_of_s3

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SECRET = f"secret{uuid.uuid4().hex}"  # must appear nowhere


@pytest.fixture
def deploy_on_s3(cluster: Cluster, deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Return a factory of a deployment with its state in a new bucket."""

    def make(*, chunk_rows: int = 50_000) -> Deployment:
        service = deploy(chunk_rows=chunk_rows)  # first: deploy may run another service, on a disk
        endpoint, bucket = cluster.addresses.s3, f"state-{uuid.uuid4().hex[:12]}"
        part_clients.make_bucket(endpoint, bucket, REGION)
        monkeypatch.setenv("LEDGER_REAPER__STATE__DIR", f"s3://{bucket}/of/this-service")
        monkeypatch.setenv("LEDGER_REAPER__S3__ENDPOINT", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"id{SECRET}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        return service

    return make


def test_kill_9_and_a_restart_with_state_on_s3_lose_and_double_nothing(
    cluster: Cluster, deploy_on_s3: Deploy, tmp_path: Path
) -> None:
    service = deploy_on_s3(chunk_rows=100)
    log = tmp_path / "run.log"
    leaked, listed = kill_repeatedly(cluster, service, log, kills=2)
    left = shell.list_ledgers(cluster)
    assert not left & set(leaked)
    assert set(listed) <= left
    assert {row["ledger_id"] for row in journal.entries(service.settings.state_dir)} == set(leaked)
    assert SECRET not in log.read_text()
    assert list(Path(service.config.parent).glob("state*")) == []

    output = " ".join(service.run("check").split())
    assert "refuses to overwrite when asked" in output
    assert "entries read and accounted for" in output
    assert json.loads(service.run("backlog", "--json").splitlines()[-1])["messages"] == 0


def test_while_s3_is_down_nothing_is_deleted_lost_or_processed_twice(
    cluster: Cluster, deploy_on_s3: Deploy, tmp_path: Path
) -> None:
    log = tmp_path / "run.log"

    def during_the_outage(running: subprocess.Popen[bytes], unprocessed: Sequence[int]) -> None:
        wait_until(lambda: "can't be" in log.read_text(), running, log)
        assert set(unprocessed) <= shell.list_ledgers(cluster), "deleted without a journal entry"

    survive_an_outage_of_s3(cluster, deploy_on_s3(), log, during_the_outage)


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
    service.run("audit", "--last", "--publish", "--yes", *scope)
    service.run("run", "--until-idle")
    assert not shell.list_ledgers(cluster) & set(leaked)
    assert "ORPHAN" in service.run("explain", "--ledger", str(leaked[0]))
