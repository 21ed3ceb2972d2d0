"""Phase one against the real cluster: requests that are answered, and marks in a real topic's own metadata."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from streaming.errors import RefusedError
from streaming.phase_one.async_client import AsyncLedgerDeletionClient
from streaming.phase_one.client import LedgerDeletionClient
from streaming.phase_one.deletable_ledgers import MOST_ZNODE_BYTES, Removal, deletable_ledgers
from streaming.sandbox import cluster_faults, offloaded_ledgers, part_clients, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import CLUSTER_NAME, Part
from tests.integration.conftest import (
    Deploy,
    Deployment,
    killed_at_the_end,
    leak,
    new_topic,
    payload,
    stop,
    wait_until,
)
from udfs.formats.managed_ledger import parse_managed_ledger
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.phase_one.marks import PREFIX
from udfs.phase_one.pip_186_metrics import Metric
from udfs.phase_one.pip_186_requests import request_for
from udfs.records import LedgerComponent, OffloadContext, Outcome

pytestmark = [pytest.mark.cluster, pytest.mark.long]

DATA = LedgerComponent.MANAGED_LEDGER
PLUGIN = Path(__file__).parents[2] / "docs" / "examples" / "BrokerPlugin.java"
MAIN = """
class Main {
    public static void main(String[] args) throws Exception {
        try (var client = org.apache.pulsar.client.api.PulsarClient.builder().serviceUrl(args[0]).build();
             var producer = client.newProducer().topic(args[1]).enableBatching(false).create()) {
            System.out.println(BrokerPlugin.announce(producer, args[2], Long.parseLong(args[3])));
        }
    }
}
"""
REMOVER = """
import sys
from pathlib import Path
from streaming.config.load import load
from streaming.phase_one.deletable_ledgers import deletable_ledgers
with deletable_ledgers(load(Path(sys.argv[1]))) as marks:
    print("begins", flush=True)
    marks.remove_all_deletable_ledgers(sys.argv[2], timeout_seconds=60)
"""
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "producer.py"


@pytest.fixture
def running(deploy: Deploy, tmp_path: Path) -> Iterator[Deployment]:
    """A service that works off requests while the test makes them."""
    service, log = deploy(), tmp_path / "log"
    with killed_at_the_end(service.start("run", log=log)) as process:
        wait_until(lambda: "reading persistent" in log.read_text(), process, log)
        yield service
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            stop(process)


def test_callers_learn_what_became_of_their_requests(cluster: Cluster, running: Deployment) -> None:
    topic = new_topic("phase")
    topics.fill(cluster, topic, 2, ["s"])
    leaked, listed = leak(cluster, topic, 4), topics.data_ledgers(cluster, topic)[0]
    with LedgerDeletionClient(running.settings) as client:
        first = client.delete_ledger(topic, leaked[0], DATA, timeout_seconds=120)
        assert (first.outcome, first.ledger_id) == (Outcome.DELETED, leaked[0])
        again = client.delete_ledger(topic, leaked[0], DATA, timeout_seconds=120)
        assert again.outcome is Outcome.ALREADY_GONE

    async def scene() -> list[Outcome]:
        async with AsyncLedgerDeletionClient(running.settings) as asked:
            sends = [asked.delete_ledger(topic, each, DATA, timeout_seconds=120) for each in leaked[1:3]]
            return [receipt.outcome for receipt in await asyncio.gather(*sends)]

    assert asyncio.run(scene()) == [Outcome.DELETED] * 2
    lines = b"\n".join(payload(topic, each) for each in (leaked[3], listed))
    said = running.run("request", "--wait", "--json", stdin=lines, code=4)
    receipts = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [(each["ledger_id"], each["outcome"]) for each in receipts] == [
        (leaked[3], "DELETED"),
        (listed, "DEAD_LETTER"),  # in use, and tried too often
    ]
    assert listed in topics.data_ledgers(cluster, topic)
    command = [sys.executable, str(EXAMPLE), str(running.config), topic, str(leaked[0])]
    message_id = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    with LedgerDeletionClient(running.settings) as client:
        topics.wait_for(lambda: message_id in running.final(), "the example's receipt", seconds=120)
        topics.wait_for(lambda: client.estimated_inflight_deletion_ledger_count() == 0, "an empty backlog")


def test_the_count_never_says_that_nothing_waits_while_a_request_does(cluster: Cluster, running: Deployment) -> None:
    """A request for a ledger in use is tried three times; it moves from topic to topic and to the waiting retries."""
    topic = new_topic("counted")
    topics.fill(cluster, topic, 2, ["s"])
    listed = topics.data_ledgers(cluster, topic)[0]
    counts: list[int] = []
    with LedgerDeletionClient(running.settings) as client:
        assert client.estimated_inflight_deletion_ledger_count() == 0
        message_id = client.start_send(request_for(topic, listed, DATA)).result()

        def is_final() -> bool:
            counted = client.estimated_inflight_deletion_ledger_count()
            found = client.newest_receipt(message_id, 0)
            if found is None or found.outcome is Outcome.RETRY:  # it still waited after the count
                counts.append(counted)
                return False
            return True

        topics.wait_for(is_final, "the final receipt", seconds=300)
        topics.wait_for(lambda: client.estimated_inflight_deletion_ledger_count() == 0, "an empty backlog")
    assert len(counts) > 5
    assert 0 not in counts


@pytest.mark.parametrize("kind", ["a topic", "a partition", "an unloaded topic"])
def test_marks_live_in_a_real_topics_metadata(cluster: Cluster, running: Deployment, kind: str) -> None:
    topic = new_topic("marked")
    if kind == "a partition":
        topics.create_partitioned(cluster, topic, 2)
        topic = f"{topic}-partition-1"
    topics.fill(cluster, topic, 4, ["s"])
    leaked = leak(cluster, topic, 2)
    if kind == "an unloaded topic":
        topics.unload(cluster, topic)
    listed = topics.data_ledgers(cluster, topic)
    scattered = range(10**12, 10**12 + 20_000, 2)
    topics.admin(cluster, "PUT", f"{topics.resource(topic)}/properties", {"owner": "a team"})
    with deletable_ledgers(running.settings) as marks:
        marks.mark_deletable_ledgers(topic, [*leaked, *listed[:2], *scattered])
        assert marks.get_all_deletable_ledgers(topic) == {*leaked, *listed[:2], *scattered}
        found = marks.remove_all_deletable_ledgers(topic, timeout_seconds=120)
        assert found == Removal(gone=len(leaked) + len(scattered), listed=2)
        # a broker may have begun its next ledger meanwhile
        assert set(topics.data_ledgers(cluster, topic)) >= set(listed), "a mark costs no ledger that is listed"
        topics.consume(cluster, topic, "s", 4 * topics.ENTRIES_PER_LEDGER)
        topics.trim(cluster, topic)
        topics.wait_for(lambda: listed[1] not in topics.data_ledgers(cluster, topic), "the trim")
        topics.wait_for(lambda: marks.remove_all_deletable_ledgers(topic, timeout_seconds=30).is_done, "the removal")
        assert marks.get_all_deletable_ledgers(topic) == set()
    left = json.loads(topics.admin(cluster, "GET", f"{topics.resource(topic)}/properties"))
    assert left == {"owner": "a team"}


def test_marks_of_offloaded_ledgers_go_when_their_objects_are_gone(cluster: Cluster, running: Deployment) -> None:
    topic = new_topic("uploaded")
    topics.fill(cluster, topic, 4, ["s"])
    topics.offload(cluster, topic)
    uploaded = topics.data_ledgers(cluster, topic)[:2]
    with deletable_ledgers(running.settings) as marks:
        marks.mark_deletable_ledgers(topic, [], uploaded)
        assert marks.get_all_deletable_offloaded_ledgers(topic) == set(uploaded)
        assert marks.remove_all_deletable_ledgers(topic, timeout_seconds=10) == Removal(gone=0, listed=2)
        topics.consume(cluster, topic, "s", 4 * topics.ENTRIES_PER_LEDGER)
        topics.trim(cluster, topic)
        topics.wait_for(lambda: not set(uploaded) & set(topics.data_ledgers(cluster, topic)), "the trim")
        topics.wait_for(
            lambda: marks.remove_all_deletable_ledgers(topic, timeout_seconds=30).is_done, "the removal", seconds=180
        )
        assert marks.get_all_deletable_offloaded_ledgers(topic) == set()
    assert not any(f"-ledger-{each}" in key for key in topics.objects(cluster) for each in uploaded)


def test_two_markers_at_once_lose_nothing(cluster: Cluster, running: Deployment) -> None:
    topic = new_topic("shared")
    topics.fill(cluster, topic, 2, ["s"])
    lots = [range(10**12 + start, 10**12 + start + 40, 2) for start in range(0, 800, 40)]
    with deletable_ledgers(running.settings) as one, deletable_ledgers(running.settings) as other:
        with ThreadPoolExecutor(2) as pool:
            list(
                pool.map(
                    lambda turn: (one, other)[turn % 2].mark_deletable_ledgers(topic, lots[turn]), range(len(lots))
                )
            )
        assert one.get_all_deletable_ledgers(topic) == {each for lot in lots for each in lot}


def keys_of(cluster: Cluster, topic: str) -> int:
    """How many keys of marks the topic has in ZooKeeper."""
    path = managed_ledger_path(topic)
    info = parse_managed_ledger(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path])
    return sum(key.startswith(PREFIX) for key in info.properties)


def test_what_a_killed_caller_leaves_the_next_two_at_once_work_off(cluster: Cluster, running: Deployment) -> None:
    topic = new_topic("cut")
    topics.fill(cluster, topic, 3, ["s"])
    listed, leaked, many = topics.data_ledgers(cluster, topic), leak(cluster, topic, 60), 60
    command = [sys.executable, "-c", REMOVER, str(running.config), topic]
    with deletable_ledgers(running.settings) as one, deletable_ledgers(running.settings) as other:
        for each in leaked:
            one.mark_deletable_ledgers(topic, [each])  # each under a key of its own
        one.mark_deletable_ledgers(topic, listed[:1])
        deadline = time.monotonic() + 120
        with killed_at_the_end(subprocess.Popen(command, start_new_session=True)) as remover:
            while keys_of(cluster, topic) > many - 5:
                assert time.monotonic() < deadline
                assert remover.poll() is None
        left = one.get_all_deletable_ledgers(topic)
        assert 1 < len(left) < many, "it was killed in the middle of its removals"
        assert left >= {listed[0]}
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda marks: marks.remove_all_deletable_ledgers(topic, timeout_seconds=60), (one, other)))
        assert one.remove_all_deletable_ledgers(topic) == Removal(listed=1)
        assert one.get_all_deletable_ledgers(topic) == {listed[0]}
    assert set(topics.data_ledgers(cluster, topic)) >= set(listed)


def test_marks_stop_before_a_znode_that_zookeeper_would_not_take(cluster: Cluster, running: Deployment) -> None:
    topic = new_topic("full")
    topics.fill(cluster, topic, 2, ["s"])
    scattered = range(10**12, 10**12 + 68_000, 2)  # almost half a MiB
    path = managed_ledger_path(topic)
    with deletable_ledgers(running.settings) as marks:
        marks.mark_deletable_ledgers(topic, scattered)
        size = len(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path])
        assert 0.8 * MOST_ZNODE_BYTES < size <= MOST_ZNODE_BYTES
        with pytest.raises(RefusedError, match="mark fewer ledgers"):
            marks.mark_deletable_ledgers(topic, range(2 * 10**12, 2 * 10**12 + 20_000, 2))
        topics.publish(cluster, topic, 2 * topics.ENTRIES_PER_LEDGER)  # new ledgers: the list is written with all marks
        assert marks.remove_all_deletable_ledgers(topic, timeout_seconds=200) == Removal(gone=len(scattered))
    assert keys_of(cluster, topic) == 0


def test_a_topic_with_a_v1_name_takes_no_marks_and_says_so(cluster: Cluster, running: Deployment) -> None:
    space = f"public/{CLUSTER_NAME}/v1"
    made = part_clients.http_any("PUT", cluster.serving.admin, f"admin/namespaces/{space}", body={})
    assert made.ok or made.status == 409, made
    topic = f"persistent://{space}/{new_topic('old').rpartition('/')[2]}"
    part_clients.publish(cluster.serving.pulsar, topic, [b"x"])
    with (
        deletable_ledgers(running.settings) as marks,
        pytest.raises(RefusedError, match=r"can't be marked: it has a V1 name"),
    ):
        marks.mark_deletable_ledgers(topic, [10**12])
    path = f"admin/persistent/{space}/{topic.rpartition('/')[2]}/properties"
    answer = part_clients.http_any("PUT", cluster.serving.admin, path, body={"a": "b"})
    assert answer.status == 404, "brokers have learnt the call: take the refusal away"


def served(url: str) -> dict[Metric, float]:
    """PIP-186's metrics as a service serves them."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return counted(answer.read().decode())


def counted(text: str) -> dict[Metric, float]:
    found = dict(re.findall(r"^ledger_deletion_(\w+)_total (\S+)$", text, re.MULTILINE))
    return {name: float(found[name]) for name in Metric if name in found}


def test_the_nine_metrics_count_what_happens(cluster: Cluster, running: Deployment, tmp_path: Path) -> None:
    topic, registry = new_topic("counted"), CollectorRegistry()
    topics.fill(cluster, topic, 2, ["s"])
    leaked, listed = leak(cluster, topic, 2), topics.data_ledgers(cluster, topic)[0]
    made = offloaded_ledgers.leak_offloads(
        cluster, kept=new_topic("kept"), deleted=new_topic("deleted"), retried=new_topic("retried")
    )
    upload = made.leaked[0]
    place = {"bucket": cluster.bucket, "serviceEndpoint": cluster.addresses.s3, "region": cluster.region}
    context = OffloadContext(uuid=upload.uuid, driver_name="S3", driver_properties=place)
    (url,) = re.findall(r"metrics: (\S+)", (tmp_path / "log").read_text())
    with LedgerDeletionClient(running.settings, registry=registry) as client:
        assert client.delete_ledger(topic, leaked[0], DATA, timeout_seconds=120).outcome is Outcome.DELETED
        in_use = client.delete_ledger(topic, listed, DATA, timeout_seconds=120)
        assert in_use.outcome is Outcome.DEAD_LETTER, "it was tried too often"
        with cluster_faults.metadata_fault(cluster):
            client.start_send(request_for(topic, leaked[1], DATA)).result()
            topics.wait_for(
                lambda: served(url)[Metric.LEDGERS_DELETE_FAILED] > 0, "a failure in BookKeeper", seconds=60
            )
        with cluster_faults.paused(cluster, Part.S3):
            client.start_send(request_for(upload.topic, upload.ledger_id, DATA, context=context)).result()
            topics.wait_for(lambda: served(url)[Metric.OFFLOAD_LEDGERS_DELETE_FAILED] > 0, "one in S3", seconds=120)
        client.delete_offloaded_ledger(upload.topic, upload.ledger_id, context, timeout_seconds=120)
        topics.wait_for(lambda: client.estimated_inflight_deletion_ledger_count() == 0, "an empty backlog", seconds=60)
    found = served(url) | counted(generate_latest(registry).decode())
    assert found.keys() == set(Metric)
    assert (found[Metric.LEDGERS_SENT], found[Metric.OFFLOAD_LEDGERS_SENT]) == (3, 2)
    assert found[Metric.LEDGERS_DELETED] in (1, 2), "the second, if it was tried again after the fault"
    assert found[Metric.OFFLOAD_LEDGERS_DELETED] == 1
    assert found[Metric.MESSAGES_RECEIVED] == found[Metric.MESSAGES_ACKED] >= 5
    assert found[Metric.MESSAGES_AT_MAX_RETRY] >= 1


def test_the_broker_plugin_compiles_and_its_request_is_answered(
    cluster: Cluster, running: Deployment, tmp_path: Path
) -> None:
    topic = new_topic("plugin")
    topics.fill(cluster, topic, 2, ["s"])
    (leaked,) = leak(cluster, topic, 1)
    main = tmp_path / "Main.java"
    main.write_text(MAIN)
    class_path = f"{cluster.pulsar}/lib/*"
    subprocess.run(["javac", "-cp", class_path, "-d", str(tmp_path), str(PLUGIN), str(main)], check=True)
    request_topic = running.settings.topics.requests[0]
    arguments = [cluster.addresses.pulsar, request_topic, managed_ledger_name(topic), str(leaked)]
    subprocess.run(["java", "-cp", f"{class_path}:{tmp_path}", "Main", *arguments], check=True, timeout=120)
    topics.wait_for(
        lambda: any(
            row["ledger_id"] == leaked and row["outcome"] == "DELETED"
            for some in running.final().values()
            for row in some
        ),
        "the receipt of the plugin's request",
        seconds=120,
    )
