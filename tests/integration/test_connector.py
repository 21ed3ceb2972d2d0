"""Traps of the pulsar-spark connector or of our source on a real cluster, and a Java consumer on our topics."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.readers.read import read
from streaming.clients import admin_for, reader_for
from streaming.clock import SystemClock
from streaming.ports import Pulsar, StoredMessage
from streaming.queries.checkpoints import committed_positions
from streaming.reconcile.accounting import reconcile
from streaming.reconcile.markers import Markers
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts.distribution import pulsar_home
from streaming.sandbox.reckoning import reckon
from streaming.spark.ivy import java
from streaming.topics.setup import ensure_topics
from tests.combinations import with_connector
from tests.integration.conftest import Deploy, Deployment, add_request_topics, kill, leak, payload, stop, wait_until
from udfs.formats.message_id import MessagePosition, serialize_message_id
from udfs.paths import partition_index

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NOWHERE = "public/default/persistent/nowhere"
FIRST = 4 * 10**15  # above every id of a real cluster
INTEROP = Path(__file__).parent.parent / "data" / "java" / "Interop.java"
KEPT = Path(__file__).parent.parent / "data" / "checkpoint-v1"
BULK = 200_000


@pytest.fixture
def service(deploy: Deploy) -> Deployment:
    """A service with two empty request topics."""
    deployed = deploy()
    add_request_topics(deployed, "-other")
    return deployed


def _java(service: Deployment, *arguments: str) -> list[list[str]]:
    """Run the Java application; return the fields of each line that it printed for the test."""
    command = [java(), "-cp", f"{pulsar_home()}/lib/*", str(INTEROP), arguments[0], service.settings.pulsar.service_url]
    completed = subprocess.run([*command, *arguments[1:]], capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-2000:]
    return [line.split("\t") for line in completed.stdout.splitlines() if line.count("\t") == 4]


def _send(service: Deployment, topic: str, ledger_ids: range, *, batched: bool = False) -> None:
    with client(service.settings.pulsar) as opened:
        producer = opened.create_producer(
            topic, batching_enabled=batched, block_if_queue_full=True, batching_max_messages=1000
        )
        for ledger_id in ledger_ids:
            producer.send_async(payload(NOWHERE, ledger_id), lambda *_: None)
        producer.flush()


def test_null_payloads_producers_batches_and_new_partitions_are_read_once_across_restarts(
    cluster: Cluster, service: Deployment, tmp_path: Path
) -> None:
    log, (first, other) = tmp_path / "run.log", service.settings.topics.requests
    _send(service, first, range(FIRST, FIRST + 30), batched=True)
    _java(service, "null", first)
    _send(service, first, range(FIRST + 30, FIRST + 31))
    running = service.start("run", log=log)
    try:
        wait_until(lambda: len(service.receipts()) >= 32, running, log)
        topics.admin(cluster, "POST", f"{topics.resource(first)}/partitions", body=6)
        _send(service, f"{first}-partition-5", range(FIRST + 31, FIRST + 34))
        _send(service, other, range(FIRST + 34, FIRST + 36))
        wait_until(lambda: len(service.receipts()) >= 37, running, log)
        stop(running)
    finally:
        kill(running)
    service.run("run", "--until-idle")

    assert service.outcomes() == {("ALREADY_GONE", "NOT_FOUND"): 36, ("DEAD_LETTER", "EMPTY_PAYLOAD"): 1}
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (37, 0, [])
    assert "PROBLEM" not in service.run("check")


def test_many_requests_of_one_topic_do_not_delay_ten_of_another_and_a_kill_loses_nothing(
    service: Deployment, tmp_path: Path
) -> None:
    """Two hundred thousand requests: as many as the machine of the tests can process."""
    service.config.write_text(service.config.read_text().replace("chunk_rows = 50000", "chunk_rows = 10000"))
    log, (first, other) = tmp_path / "run.log", service.settings.topics.requests
    _send(service, first, range(FIRST, FIRST + BULK), batched=True)
    running = service.start("run", log=log)
    try:
        wait_until(lambda: len(service.receipts()) >= 20_000, running, log)
        kill(running)
        running = service.start("run", log=log)
        before = len(service.receipts())
        wait_until(lambda: len(service.receipts()) > before, running, log)
        _send(service, other, range(FIRST - 10, FIRST))
        wait_until(lambda: sum(row["ledger_id"] < FIRST for row in service.receipts()) == 10, running, log)
        done_before = len(service.receipts())
        memory = sum(
            process.memory_info().rss
            for process in (psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True))
        )
        stop(running)
    finally:
        kill(running)
    assert done_before < BULK, "the ten requests came after the rest of the bulk"
    assert memory < 4 << 30
    service.run("run", "--until-idle", seconds=500)
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (BULK + 10, 0, [])


def test_a_pause_interrupts_a_chunk_and_its_deletes_count_towards_the_hourly_limit(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    topic = f"persistent://public/default/paused-{time.time_ns()}"
    topics.fill(cluster, topic, 2, ["s"])
    leaked = leak(cluster, topic, 120)
    service, log = deploy(limits="max_deletes_per_hour = 120"), tmp_path / "run.log"
    service.config.write_text(service.config.read_text().replace("deletes_per_second = 0", "deletes_per_second = 3"))
    service.request(payload(topic, ledger_id) for ledger_id in leaked)
    running = service.start("run", log=log)
    try:
        wait_until(lambda: len(set(leaked) & ledger_list.every_ledger(cluster).keys()) < len(leaked) - 10, running, log)
        service.run("pause")  # a hundred deletes are one transaction; the rate limit delays the next by half a minute
        wait_until(lambda: "paused in the middle of a chunk" in log.read_text(), running, log)
        left = set(leaked) & ledger_list.every_ledger(cluster).keys()
        time.sleep(3)
        assert set(leaked) & ledger_list.every_ledger(cluster).keys() == left != set()
        service.run("resume")
        wait_until(lambda: len(service.receipts()) == 120, running, log)
        assert {row["outcome"] for row in service.receipts()} == {"DELETED", "ALREADY_GONE"}
        more = leak(cluster, topic, 20)
        service.request(payload(topic, ledger_id) for ledger_id in more)
        wait_until(lambda: "LIMIT REACHED" in log.read_text(), running, log)
        assert "limits.max_deletes_per_hour is 120" in log.read_text()
        assert set(more) <= ledger_list.every_ledger(cluster).keys()
    finally:
        kill(running)
        service.run("resume", "--limit")
    running = service.start("run", "--until-idle", log=log)
    try:
        assert running.wait(150) == 0
    finally:
        kill(running)
    assert not {*leaked, *more} & ledger_list.every_ledger(cluster).keys()
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (140, 0, [])


def _stored(service: Deployment, topic: str) -> list[StoredMessage]:
    with admin_for(service.settings) as admin:
        last = admin.last_positions(topic)
    return list(read(service.settings.pulsar, last))


def test_a_java_consumer_and_the_service_continue_each_others_retries(service: Deployment) -> None:
    settings = service.settings.topics
    java_retry, java_dlq = f"{settings.retry}-JAVA", f"{settings.dead_letter}-JAVA"
    _send(service, f"{settings.requests[0]}-partition-0", range(FIRST, FIRST + 2))
    _send(service, f"{settings.requests[0]}-partition-0", range(FIRST + 2, FIRST + 5), batched=True)
    # Java retries our requests into our RETRY topic: the service processes them as the same requests
    retried_by_java = _java(service, "put-off", settings.requests[0], settings.retry, java_dlq, "5", "5")
    assert {line[1] for line in retried_by_java} == {"0"}
    assert len(_stored(service, settings.retry)) == 5
    service.run("run", "--until-idle")
    retried = [row for row in service.receipts() if row["attempt"] == 1]
    assert len(retried) == 5
    origins = {row["message_id"] for row in retried}
    assert origins == {row["message_id"] for row in service.receipts() if row["attempt"] == 0}

    # a request that the service always retries: Java reads our retries, continues the count, and writes a dead letter
    live = f"persistent://public/default/live-{FIRST % 997}-{time.time_ns()}"
    with client(service.settings.pulsar) as opened:
        opened.subscribe(live, "s").close()
        opened.create_producer(live).send(b"live")
    with admin_for(service.settings) as admin:
        ledger_id = admin.internal_stats(live).ledgers[0][0]
    service.request([payload(live, ledger_id)])
    service.run("run", "--until-idle")
    ours = [retry for retry in _stored(service, settings.retry) if str(ledger_id).encode() in retry.payload]
    assert [retry.properties["RECONSUMETIMES"] for retry in ours] == ["1", "2"]
    read_by_java = _java(service, "put-off", settings.retry, java_retry, java_dlq, "13", "2")
    of_our_request = [line for line in read_by_java if line[2] == ours[0].properties["ORIGIN_MESSAGE_ID"]]
    assert sorted(line[1] for line in of_our_request) == ["1", "2", "2"]
    letters = _stored(service, java_dlq)
    assert {letter.properties["ORIGIN_MESSAGE_ID"] for letter in letters} >= {ours[0].properties["ORIGIN_MESSAGE_ID"]}


@with_connector  # its first version's checkpoint
def test_a_v1_checkpoint_is_resumed(deploy: Deploy) -> None:
    service, first, checkpoints = _with_topics(deploy)
    _send(service, f"{first}-partition-3", range(FIRST, FIRST + 2))
    service.run("run", "--until-idle")
    positions = committed_positions(str(checkpoints / "requests" / "v1"))
    _put_kept(checkpoints / "requests" / "v1", first, positions)
    _send(service, f"{first}-partition-3", range(FIRST + 2, FIRST + 5))
    _send(service, f"{first}-partition-0", range(FIRST + 5, FIRST + 6))
    service.run("run", "--until-idle")
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (6, 0, [])
    assert (checkpoints / "requests" / "v1" / "commits" / "1").exists(), "did not continue after the kept batch 0"


def test_a_lost_checkpoint_is_started_from_scratch_and_a_lost_state_refused(deploy: Deploy) -> None:
    service, first, checkpoints = _with_topics(deploy)
    _send(service, f"{first}-partition-3", range(FIRST, FIRST + 5))
    _send(service, f"{first}-partition-0", range(FIRST + 5, FIRST + 6))
    service.run("run", "--until-idle")

    shutil.rmtree(checkpoints)
    _send(service, f"{first}-partition-3", range(FIRST + 6, FIRST + 7))
    service.run("run", "--until-idle")
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (7, 0, [])

    shutil.rmtree(service.settings.state.dir)
    assert "retries that waited beside those receipts would be lost" in service.run("run", "--until-idle", code=4)
    shutil.rmtree(checkpoints)  # the remedy that the message names
    service.call("release", "--state", "--yes")
    service.run("run", "--until-idle")
    assert len(service.final()) == 7


def _with_topics(deploy: Deploy) -> tuple[Deployment, str, Path]:
    """Return a service whose topics exist, its first request topic, and the folder of its checkpoints."""
    service = deploy()
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    return service, service.settings.topics.requests[0], Path(service.settings.checkpoints.dir)


def _put_kept(checkpoint: Path, topic: str, positions: dict[str, tuple[int, int]]) -> None:
    """Replace the checkpoint by the kept version 1, with the names and positions of this run."""
    shutil.rmtree(checkpoint)
    shutil.copytree(KEPT / "requests" / "v1", checkpoint)
    for file in (checkpoint / "offsets" / "0", checkpoint / "sources" / "0" / "0"):
        *head, last = file.read_text().replace("persistent://pulsar/system/kept", topic).splitlines()
        offsets = json.loads(last)
        for partition, (ledger, entry) in positions.items():
            written = serialize_message_id(MessagePosition(ledger, entry, partition_index(partition), -1))
            offsets[partition] = [byte - 256 if byte > 127 else byte for byte in written]
        file.write_text("\n".join([*head, json.dumps(offsets)]))


def test_messages_deleted_unread_and_topics_created_again_are_alarms(cluster: Cluster, service: Deployment) -> None:
    """A tenant's administrator sets a TTL and skips messages, and a topic is deleted while the service uses it."""
    first, other = service.settings.topics.requests
    partition = f"{other}-partition-1"
    _send(service, first, range(FIRST + 30, FIRST + 31))  # our source writes no checkpoint over empty topics
    service.run("run", "--until-idle")
    service.run("pause")
    log = service.config.with_name("paused.log")
    running = service.start("run", log=log)
    try:
        _send(service, partition, range(FIRST, FIRST + 30))  # a ledger of the sandbox holds ten
        accounts = Path(service.settings.state.dir, "accounts.json")
        accounts.unlink(missing_ok=True)
        wait_until(lambda: "paused" in log.read_text(), running, log)
        stop(running)
    finally:
        kill(running)
        service.run("resume")
    with admin_for(service.settings) as admin:
        reconcile(
            service.settings, Pulsar(admin, reader_for(service.settings)), SystemClock().now_ms(), service=Markers()
        )
        admin.set_message_ttl(other, seconds=3600)
        assert "message TTL" in service.run("run", "--until-idle", code=2)
        admin.set_message_ttl(other, seconds=0)
        admin.set_retention(other, minutes=0, megabytes=0)
    subscription = service.settings.topics.subscription
    topics.admin(cluster, "POST", f"{topics.resource(partition)}/subscription/{subscription}/skip_all")
    with admin_for(service.settings) as admin:
        admin.trim(other)
        deadline = time.monotonic() + 60
        while len(admin.internal_stats(partition).ledgers) > 1 and time.monotonic() < deadline:
            time.sleep(0.5)
    output = " ".join(service.run("check", code=4).split())
    assert "vanished with unread messages in them" in output
    service.run("check", code=4)  # a check does not end the alarm, only the operator's command does
    assert f"{partition}: ledgers" in service.run("accept", "--gaps")
    service.run("check")

    with admin_for(service.settings) as admin:
        admin.delete_topic(first, force=True)
        admin.create_partitioned_topic(first, 1)
    assert "was deleted and created again" in service.run("run", "--until-idle", code=2)
