"""Phase one against the real cluster: requests that are answered, and marks in a real topic's own metadata."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streaming.phase_one.async_client import AsyncLedgerDeletionClient
from streaming.phase_one.client import LedgerDeletionClient
from streaming.phase_one.marks import Removal, deletable_ledgers
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
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
from udfs.paths import managed_ledger_name
from udfs.records import LedgerComponent, Outcome

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
        assert topics.data_ledgers(cluster, topic) == listed, "a mark costs no ledger that is listed"
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
