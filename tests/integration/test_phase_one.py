"""Phase one against the real cluster: requests and their receipts, and marks in a real topic's metadata."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger_reaper_client import (
    AsyncLedgerDeletionService,
    LedgerComponent,
    LedgerDeletionService,
    LedgerType,
    Outcome,
    Settings,
)
from ledger_reaper_client import DeletableLedgers as RestMarks
from ledger_reaper_client import OffloadContext as ClientContext
from streaming.clients import admin_for
from streaming.errors import RefusedError
from streaming.phase_one.deletable_ledgers import MOST_ZNODE_BYTES, Removal, deletable_ledgers
from streaming.sandbox import cluster_faults, ledger_list, offloaded_ledgers, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import CLUSTER_NAME, Part
from streaming.sandbox.parts import part_clients
from streaming.topics.setup import ensure_topics
from tests.integration.conftest import (
    Deploy,
    Deployment,
    create_tenant,
    killed_at_the_end,
    leak,
    new_topic,
    payload,
    stop,
    stored_requests,
    wait_until,
)
from udfs.formats.managed_ledger import parse_managed_ledger
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.phase_one.marks import PREFIX
from udfs.phase_one.pip_186_metrics import Metric

pytestmark = [pytest.mark.cluster, pytest.mark.long]

DATA = LedgerComponent.MANAGED_LEDGER
_WITH_CLIENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "clients" / "python" / "src")}
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
MANY = """
import org.apache.pulsar.client.api.*;
class Many {
    public static void main(String[] args) throws Exception {
        try (var client = PulsarClient.builder().serviceUrl(args[0]).build();
             var producer = client.newProducer().topic(args[1]).enableBatching(false).create()) {
            for (long ledger = 1; !new java.io.File(args[3]).exists(); ledger++) {
                for (MessageId id = null; id == null; ) {
                    try {
                        id = BrokerPlugin.announce(producer, args[2], ledger);
                        System.out.println("SENT " + ledger + " " + id);  // the library logs here, too
                    } catch (PulsarClientException error) {
                        System.err.println("again: " + error);
                    }
                }
            }
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
    print("started", flush=True)
    marks.remove_all_deletable_ledgers(sys.argv[2], timeout_seconds=60)
"""
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "producer.py"


@pytest.fixture
def running(deploy: Deploy, tmp_path: Path) -> Iterator[Deployment]:
    """A service that processes requests while the test sends them."""
    with started(deploy(), tmp_path / "log") as service:
        yield service


@contextmanager
def started(service: Deployment, log: Path) -> Iterator[Deployment]:
    with killed_at_the_end(service.start("run", log=log)) as process:
        wait_until(lambda: "reading persistent" in log.read_text(), process, log)
        yield service
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            stop(process)


@dataclass(frozen=True)
class Tenant:
    """A tenant with a topic, and a running service that reads its lane and publishes receipts."""

    topic: str
    settings: Settings
    service: Deployment


@pytest.fixture
def tenant(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> Iterator[Tenant]:
    name = f"t{uuid.uuid4().hex[:10]}"
    create_tenant(cluster, name, "app")
    topics.fill(cluster, f"persistent://{name}/app/orders", 2, ["s"])
    service = deploy()
    text = service.config.read_text().replace("[topics]", '[topics]\nlanes = "tenant"\nreceipts = true')
    # only one service of a cluster may read lanes
    service.config.write_text(text.replace("[zookeeper]", f'[zookeeper]\nown_root = "/{name}"'))
    settings = Settings(cluster.addresses.pulsar, cluster.addresses.admin, lanes="tenant", receipts=True)
    try:
        with started(service, tmp_path / "log") as running:
            yield Tenant(f"persistent://{name}/app/orders", settings, running)
    finally:
        with admin_for(service.settings) as admin:  # the next test's service would read it, too
            admin.delete_topic(f"persistent://{name}/ledger-deletion/__ledger_deletion", force=True)


def test_callers_receive_the_receipts_of_their_requests(cluster: Cluster, tenant: Tenant) -> None:
    topic, leaked = tenant.topic, leak(cluster, tenant.topic, 4)
    listed = topics.data_ledgers(cluster, topic)[0]
    with LedgerDeletionService(tenant.settings) as client:
        first = client.delete_ledger(topic, leaked[0], DATA, timeout_seconds=120)
        assert (first.outcome, first.ledger_id) == (Outcome.DELETED, leaked[0])
        again = client.delete_ledger(topic, leaked[0], DATA, timeout_seconds=120)
        assert again.outcome is Outcome.ALREADY_GONE

    async def scene() -> list[Outcome]:
        async with AsyncLedgerDeletionService(tenant.settings) as client:
            sends = [client.delete_ledger(topic, ledger_id, DATA, timeout_seconds=120) for ledger_id in leaked[1:3]]
            return [receipt.outcome for receipt in await asyncio.gather(*sends)]

    assert asyncio.run(scene()) == [Outcome.DELETED] * 2
    lines = b"\n".join(payload(topic, ledger_id) for ledger_id in (leaked[3], listed))
    output = tenant.service.run("request", "--wait", "--json", stdin=lines, code=4)
    receipts = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [(receipt["ledger_id"], receipt["outcome"]) for receipt in receipts] == [
        (leaked[3], "DELETED"),
        (listed, "DEAD_LETTER"),  # in use, and all tries used up
    ]
    assert listed in topics.data_ledgers(cluster, topic)
    command = [sys.executable, str(EXAMPLE), tenant.settings.service_url, tenant.settings.admin_url, topic]
    done = subprocess.run([*command, str(leaked[0])], check=True, capture_output=True, text=True, env=_WITH_CLIENT)
    message_id = done.stdout.strip()
    topics.wait_for(lambda: message_id in tenant.service.final(), "the example's receipt", seconds=120)
    with LedgerDeletionService(tenant.settings) as client:
        topics.wait_for(lambda: client.estimated_inflight_deletion_ledger_count(topic) == 0, "no request in flight")


def test_the_count_is_never_zero_while_a_request_waits(cluster: Cluster, tenant: Tenant) -> None:
    """A request for a ledger in use is tried three times: it moves between topics and to the waiting retries."""
    listed = topics.data_ledgers(cluster, tenant.topic)[0]
    counts: list[int] = []
    with LedgerDeletionService(tenant.settings) as client:
        message_id = client.send_pending_delete_ledger(tenant.topic, listed, None, DATA, LedgerType.LEDGER)

        def is_final() -> bool:
            count = client.estimated_inflight_deletion_ledger_count(tenant.topic)
            if message_id not in tenant.service.final():  # the request still waited after the count
                counts.append(count)
                return False
            return True

        topics.wait_for(is_final, "the final receipt", seconds=300)
        topics.wait_for(
            lambda: client.estimated_inflight_deletion_ledger_count(tenant.topic) == 0, "no request in flight"
        )
    assert len(counts) > 3
    assert 0 not in counts


def test_marks_by_rest_are_removed_when_the_service_has_deleted_their_ledgers(cluster: Cluster, tenant: Tenant) -> None:
    leaked, listed = leak(cluster, tenant.topic, 2), topics.data_ledgers(cluster, tenant.topic)[0]
    with LedgerDeletionService(tenant.settings) as client:
        marks = RestMarks(client)
        marks.mark_deletable_ledgers(tenant.topic, [*leaked, listed])
        removal = marks.remove_all_deletable_ledgers(tenant.topic, timeout_seconds=120)
        assert (removal.gone, removal.listed, removal.asked) == (2, 1, 0)
        assert marks.get_all_deletable_ledgers(tenant.topic) == {listed}
    assert listed in topics.data_ledgers(cluster, tenant.topic)
    assert not set(leaked) & ledger_list.listed_by_bookie(cluster)


@pytest.mark.parametrize("kind", ["a topic", "a partition", "an unloaded topic"])
def test_marks_are_kept_in_a_real_topics_metadata(cluster: Cluster, running: Deployment, kind: str) -> None:
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
        removal = marks.remove_all_deletable_ledgers(topic, timeout_seconds=120)
        assert removal == Removal(gone=len(leaked) + len(scattered), listed=2)
        # the broker may have created its next ledger
        assert set(topics.data_ledgers(cluster, topic)) >= set(listed), "a mark removed a listed ledger"
        topics.consume(cluster, topic, "s", 4 * topics.ENTRIES_PER_LEDGER)
        topics.trim(cluster, topic)
        topics.wait_for(lambda: listed[1] not in topics.data_ledgers(cluster, topic), "the trim")
        topics.wait_for(lambda: marks.remove_all_deletable_ledgers(topic, timeout_seconds=30).is_done, "the removal")
        assert marks.get_all_deletable_ledgers(topic) == set()
    left = json.loads(topics.admin(cluster, "GET", f"{topics.resource(topic)}/properties"))
    assert left == {"owner": "a team"}


def test_marks_of_offloaded_ledgers_are_removed_when_their_objects_are_gone(
    cluster: Cluster, running: Deployment
) -> None:
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
    assert not any(f"-ledger-{ledger_id}" in key for key in topics.objects(cluster) for ledger_id in uploaded)


def test_two_markers_at_once_lose_nothing(cluster: Cluster, running: Deployment) -> None:
    topic = new_topic("shared")
    topics.fill(cluster, topic, 2, ["s"])
    batches = [range(10**12 + start, 10**12 + start + 40, 2) for start in range(0, 800, 40)]
    with deletable_ledgers(running.settings) as first, deletable_ledgers(running.settings) as second:

        def mark(number: int) -> None:
            (first, second)[number % 2].mark_deletable_ledgers(topic, batches[number])

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(mark, range(len(batches))))
        assert first.get_all_deletable_ledgers(topic) == {ledger_id for batch in batches for ledger_id in batch}


def keys_of(cluster: Cluster, topic: str) -> int:
    """Return the number of the topic's keys with marks in ZooKeeper."""
    path = managed_ledger_path(topic)
    info = parse_managed_ledger(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path])
    return sum(key.startswith(PREFIX) for key in info.properties)


def test_two_concurrent_removals_complete_the_removal_of_a_killed_caller(cluster: Cluster, running: Deployment) -> None:
    topic = new_topic("cut")
    topics.fill(cluster, topic, 3, ["s"])
    listed, leaked, many = topics.data_ledgers(cluster, topic), leak(cluster, topic, 60), 60
    command = [sys.executable, "-c", REMOVER, str(running.config), topic]
    with deletable_ledgers(running.settings) as first, deletable_ledgers(running.settings) as second:
        for ledger_id in leaked:
            first.mark_deletable_ledgers(topic, [ledger_id])  # a key for each mark
        first.mark_deletable_ledgers(topic, listed[:1])
        deadline = time.monotonic() + 120
        with killed_at_the_end(subprocess.Popen(command, start_new_session=True)) as remover:
            while keys_of(cluster, topic) > many - 5:
                assert time.monotonic() < deadline
                assert remover.poll() is None
        left = first.get_all_deletable_ledgers(topic)
        assert 1 < len(left) < many, "it was not killed during its removals"
        assert left >= {listed[0]}
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda marks: marks.remove_all_deletable_ledgers(topic, timeout_seconds=60), (first, second)))
        assert first.remove_all_deletable_ledgers(topic) == Removal(listed=1)
        assert first.get_all_deletable_ledgers(topic) == {listed[0]}
    assert set(topics.data_ledgers(cluster, topic)) >= set(listed)


def test_marks_are_refused_before_a_znode_becomes_too_large_for_zookeeper(
    cluster: Cluster, running: Deployment
) -> None:
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
        topics.publish(
            cluster, topic, 2 * topics.ENTRIES_PER_LEDGER
        )  # new ledgers: the broker writes the list with all marks
        assert marks.remove_all_deletable_ledgers(topic, timeout_seconds=200) == Removal(gone=len(scattered))
    assert keys_of(cluster, topic) == 0


def test_marks_of_a_topic_with_a_v1_name_are_refused(cluster: Cluster, running: Deployment) -> None:
    space = f"public/{CLUSTER_NAME}/v1"
    created = part_clients.http_any("PUT", cluster.serving.admin, f"admin/namespaces/{space}", body={})
    assert created.ok or created.status == 409, created
    topic = f"persistent://{space}/{new_topic('old').rpartition('/')[2]}"
    part_clients.publish(cluster.serving.pulsar, topic, [b"x"])
    with (
        deletable_ledgers(running.settings) as marks,
        pytest.raises(RefusedError, match=r"can't be marked: it has a V1 name"),
    ):
        marks.mark_deletable_ledgers(topic, [10**12])
    path = f"admin/persistent/{space}/{topic.rpartition('/')[2]}/properties"
    answer = part_clients.http_any("PUT", cluster.serving.admin, path, body={"a": "b"})
    assert answer.status == 404, "brokers support the call now: remove the refusal"


def served(url: str) -> dict[Metric, float]:
    """Return PIP-186's metrics as a service serves them."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return parsed(answer.read().decode())


def parsed(text: str) -> dict[Metric, float]:
    values = dict(re.findall(r"^ledger_deletion_(\w+)_total(?:\{.*\})? (\S+)$", text, re.MULTILINE))
    return {name: float(values[name]) for name in Metric if name in values}


def test_the_nine_metrics_count_every_event(cluster: Cluster, running: Deployment, tmp_path: Path) -> None:
    topic = new_topic("counted")
    topics.fill(cluster, topic, 2, ["s"])
    leaked, listed = leak(cluster, topic, 2), topics.data_ledgers(cluster, topic)[0]
    leaks = offloaded_ledgers.leak_offloads(
        cluster, kept=new_topic("kept"), deleted=new_topic("deleted"), retried=new_topic("retried")
    )
    upload = leaks.leaked[0]
    properties = {"bucket": cluster.bucket, "serviceEndpoint": cluster.addresses.s3, "region": cluster.region}
    context = ClientContext(uuid=upload.uuid, driver_name="S3", driver_properties=properties)
    url = re.findall(r"metrics: (\S+)", (tmp_path / "log").read_text())[0]
    addresses = cluster.addresses
    settings = Settings(addresses.pulsar, addresses.admin, topic=running.settings.topics.requests[0])
    with LedgerDeletionService(settings) as client:

        def send(ledger_id: int) -> str:
            return client.send_pending_delete_ledger(topic, ledger_id, None, DATA, LedgerType.LEDGER)

        def send_upload() -> str:
            kind = LedgerType.OFFLOAD_LEDGER
            return client.send_pending_delete_ledger(upload.topic, upload.ledger_id, context, DATA, kind)

        def outcome(message_id: str) -> str:
            topics.wait_for(lambda: message_id in running.final(), "the final receipt", seconds=120)
            return str(running.final()[message_id][0]["outcome"])

        assert outcome(send(leaked[0])) == "DELETED"
        assert outcome(send(listed)) == "DEAD_LETTER", "its tries were not used up"
        with cluster_faults.metadata_fault(cluster):
            send(leaked[1])
            topics.wait_for(
                lambda: served(url)[Metric.LEDGERS_DELETE_FAILED] > 0, "a failure in BookKeeper", seconds=60
            )
        with cluster_faults.paused(cluster, Part.S3):
            send_upload()
            topics.wait_for(
                lambda: served(url)[Metric.OFFLOAD_LEDGERS_DELETE_FAILED] > 0, "a failure in S3", seconds=120
            )
        outcome(send_upload())
        topics.wait_for(lambda: running.document("backlog")["messages"] == 0, "an empty backlog", seconds=60)
        sent = parsed("".join(f"{name} {count}\n" for name, count in client.metrics().items()))
    metrics = served(url) | sent
    assert metrics.keys() == set(Metric)
    assert (metrics[Metric.LEDGERS_SENT], metrics[Metric.OFFLOAD_LEDGERS_SENT]) == (3, 2)
    assert metrics[Metric.LEDGERS_DELETED] in (1, 2), "two, if the second was tried again after the fault"
    assert metrics[Metric.OFFLOAD_LEDGERS_DELETED] == 1
    assert metrics[Metric.MESSAGES_RECEIVED] == metrics[Metric.MESSAGES_ACKED] >= 5
    assert metrics[Metric.MESSAGES_AT_MAX_RETRY] >= 1


def compiled(cluster: Cluster, folder: Path, name: str, source: str) -> list[str]:
    """Compile the plugin and a program that uses it; return the command that runs the program."""
    main = folder / f"{name}.java"
    main.write_text(source)
    class_path = f"{cluster.pulsar}/lib/*"
    subprocess.run(["javac", "-cp", class_path, "-d", str(folder), str(PLUGIN), str(main)], check=True)
    return ["java", "-cp", f"{class_path}:{folder}", name]


def test_what_the_broker_plugin_announced_survives_a_kill_of_the_broker(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    settings = deploy().settings
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
    request_topic, over, out = settings.topics.requests[0], tmp_path / "over", tmp_path / "out"
    command = compiled(cluster, tmp_path, "Many", MANY)
    command += [cluster.addresses.pulsar, request_topic, "public/default/persistent/plugin", str(over)]

    def announced() -> list[list[str]]:
        lines = out.read_text().splitlines(keepends=True)
        return [line.split()[1:] for line in lines if line.startswith("SENT ") and line.endswith("\n")]

    with out.open("wb") as file, (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=file, stderr=log, start_new_session=True)
    with killed_at_the_end(process) as running:
        wait_until(lambda: len(announced()) >= 200, running, tmp_path / "log")
        cluster_faults.kill(cluster, Part.BROKER)
        before = len(announced())
        cluster_faults.restart(cluster, Part.BROKER)
        wait_until(lambda: len(announced()) >= before + 200, running, tmp_path / "log")
        over.touch()
        assert running.wait(120) == 0
    stored = {
        message.id: json.loads(message.payload)["ledgerId"] for message in stored_requests(settings, request_topic)
    }
    sent = {message_id: int(ledger_id) for ledger_id, message_id in announced()}
    assert len(sent) >= 400
    assert sent.items() <= stored.items()


def test_the_broker_plugin_compiles_and_its_request_gets_a_receipt(
    cluster: Cluster, running: Deployment, tmp_path: Path
) -> None:
    topic = new_topic("plugin")
    topics.fill(cluster, topic, 2, ["s"])
    (leaked,) = leak(cluster, topic, 1)
    arguments = [cluster.addresses.pulsar, running.settings.topics.requests[0], managed_ledger_name(topic), str(leaked)]
    subprocess.run([*compiled(cluster, tmp_path, "Main", MAIN), *arguments], check=True, timeout=120)
    topics.wait_for(
        lambda: any(
            row["ledger_id"] == leaked and row["outcome"] == "DELETED"
            for rows in running.final().values()
            for row in rows
        ),
        "the receipt of the plugin's request",
        seconds=120,
    )
