"""Checkpoints on the embedded cluster's S3, which Spark reaches as s3a://, and the service directly."""

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from streaming.queries.checkpoints import committed_positions, location_of
from streaming.sandbox import ledger_list
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import REGION
from streaming.sandbox.parts import part_clients
from streaming.sandbox.reckoning import reckon
from tests.contract.s3_server import s3_running
from tests.integration.conftest import Deploy, Deployment, killed_at_the_end, payload, wait_until
from tests.integration.s3_scenes import kill_repeatedly, survive_an_outage_of_s3, topic_with_leaks

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SECRET = f"secret{uuid.uuid4().hex}"  # must appear nowhere


@pytest.fixture
def to_s3(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that moves checkpoints to a new bucket, by default on the cluster's S3."""

    def move(endpoint: str = cluster.addresses.s3) -> None:
        bucket = f"checkpoints-{uuid.uuid4().hex[:12]}"
        part_clients.make_bucket(endpoint, bucket, REGION)
        monkeypatch.setenv("LEDGER_REAPER__CHECKPOINTS__DIR", f"s3a://{bucket}/of/this-service")
        monkeypatch.setenv("LEDGER_REAPER__S3__ENDPOINT", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"id{SECRET}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    return move


@pytest.fixture
def deploy_on_s3(deploy: Deploy, to_s3: Callable[..., None]) -> Deploy:
    """Return a factory of a deployment with checkpoints on S3."""

    def make(*, endpoint: str = "", chunk_rows: int = 50_000) -> Deployment:
        service = deploy(chunk_rows=chunk_rows)  # first: deploy may run another service, on a disk
        to_s3(*[endpoint] * bool(endpoint))
        return service

    return make


def _keys(service: Deployment) -> list[str]:
    bucket = service.settings.checkpoints.dir.split("/")[2]
    return part_clients.bucket_keys(service.settings.s3.endpoint, bucket, REGION)


def test_kill_9_and_a_restart_from_s3_lose_and_double_nothing(
    cluster: Cluster, deploy_on_s3: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = deploy_on_s3(chunk_rows=100)
    leaked, listed = kill_repeatedly(cluster, service, tmp_path / "run.log", kills=3)
    left = ledger_list.listed_by_bookie(cluster)
    assert not left & set(leaked)
    assert set(listed) <= left

    output = " ".join(service.run("check").split())
    assert "checkpoints directory: s3://checkpoints-" in output
    assert "checkpoints as configured: compatible with this configuration" in output
    assert "checkpoints of this cluster: used by this cluster since its first start" in output
    assert "entries read and accounted for" in output
    assert json.loads(service.run("backlog", "--json").splitlines()[-1])["messages"] == 0
    assert {"cluster.json", "state.json"} <= {Path(key).name for key in _keys(service)}
    assert committed_positions(location_of(service.settings, "requests"))

    first = service.settings.topics.requests[0]
    monkeypatch.setenv("LEDGER_REAPER__TOPICS__REQUESTS", json.dumps([f"{first}-other"]))
    assert "the checkpoints do not fit the topics" in service.run("run", "--until-idle", code=2)


def test_no_key_is_seen_in_the_spark_ui_the_log_or_a_command_line(
    cluster: Cluster, deploy_on_s3: Deploy, tmp_path: Path
) -> None:
    service = deploy_on_s3()
    log = tmp_path / "run.log"
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: "reading persistent" in log.read_text(), running, log)
        (ui,) = re.findall(r"Spark UI: (\S+)", log.read_text())
        with httpx.Client(base_url=ui, timeout=60) as http:
            application = http.get("/api/v1/applications").json()[0]["id"]
            environment = http.get(f"/api/v1/applications/{application}/environment").text
            page = http.get("/environment/").text
        commands = str([process.cmdline() for process in psutil.Process(running.pid).children(recursive=True)])

    assert service.settings.s3.endpoint in environment, "the environment shows no options of this run"
    assert "hadoop-aws-" in commands, "the commands contain no command line of Spark"
    for source, text in (("REST", environment), ("UI", page), ("commands", commands), ("log", log.read_text())):
        assert SECRET not in text, source


def test_while_s3_is_down_nothing_is_lost_or_processed_twice(
    cluster: Cluster, deploy_on_s3: Deploy, tmp_path: Path
) -> None:
    survive_an_outage_of_s3(cluster, deploy_on_s3(), tmp_path / "run.log", lambda _running, _open: time.sleep(10))


@pytest.mark.parametrize("log_of", ["offsets", "commits"])
def test_a_batch_whose_checkpoint_file_can_not_be_written_is_processed_once(
    cluster: Cluster, deploy_on_s3: Deploy, log_of: str
) -> None:
    topic, leaked = topic_with_leaks(cluster, 20)

    def writes(environ: dict[str, Any]) -> bool:
        return environ["REQUEST_METHOD"] == "PUT" and f"/requests/v1/{log_of}/0" in environ["PATH_INFO"]

    with s3_running() as server:
        service = deploy_on_s3(endpoint=server.endpoint)
        server.answer("AccessDenied", status="403 Forbidden", match=writes)
        service.request(payload(topic, ledger_id) for ledger_id in leaked[:15])

        output = " ".join(service.run("run", "--until-idle").split())
        assert "is parked, and the other topics continue. Its query failed" in output
        assert "AccessDenied" in output
        assert service.outcomes() == Counter({("DELETED", "UNREFERENCED"): 15})

        service.request(payload(topic, ledger_id) for ledger_id in leaked[15:])
        assert "is parked" not in service.run("run", "--until-idle")

        assert service.outcomes() == Counter({("DELETED", "UNREFERENCED"): 20})
        reckoning = reckon(service.settings)
        assert (reckoning.requests, reckoning.open, reckoning.wrong) == (20, 0, [])


def test_a_checkpoint_is_moved_from_disk_to_s3_and_spark_submit_accepts_the_jars_that_the_command_prints(
    cluster: Cluster, deploy: Deploy, to_s3: Callable[..., None]
) -> None:
    topic, leaked = topic_with_leaks(cluster, 10)
    service = deploy()
    service.request(payload(topic, ledger_id) for ledger_id in leaked[:5])
    service.run("run", "--until-idle")
    on_disk = Path(service.settings.checkpoints.dir)

    to_s3()
    _copy(on_disk, service)
    service.request(payload(topic, ledger_id) for ledger_id in leaked[5:])
    assert "without Hadoop's S3A" in service.submit("run", "--until-idle", code=2)
    service.submit("run", "--until-idle", jars=service.run("jars").strip().splitlines()[-1])

    assert service.outcomes() == Counter({("DELETED", "UNREFERENCED"): 10})
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (10, 0, [])
    assert any(key.endswith("requests/v1/commits/1") for key in _keys(service)), "did not continue after batch 0"


def _copy(folder: Path, service: Deployment) -> None:
    bucket, _, prefix = service.settings.checkpoints.dir.removeprefix("s3a://").partition("/")
    for path in (file for file in folder.rglob("*") if file.is_file()):
        key = f"{prefix}/{path.relative_to(folder)}"
        part_clients.s3(service.settings.s3.endpoint, REGION).put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
