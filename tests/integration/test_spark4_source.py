"""The source "pulsar-frames" with a real broker; on PySpark 4 only (SPARK=4.3)."""

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.http import topic_path
from streaming.sandbox.cluster import Cluster
from tests.integration import transactions
from tests.integration.odd_messages import NEEDS_TRANSACTIONS, ODD, senders
from tests.integration.raw_producer import RawProducer
from tests.integration.spark4_jobs import ROOT, Jobs, KilledError, jobs, rows, variables
from tests.pulsar_fields import single
from udfs.formats.internal_stats import Position

pytestmark = [pytest.mark.cluster, pytest.mark.long]

EXAMPLE = ROOT / "docs" / "examples" / "pulsar_frames.py"
SUBSCRIPTION = "spark4"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with jobs(tmp_path_factory.mktemp("spark4")) as opened:
        yield opened


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[PulsarAdmin]:
    with PulsarAdmin(PulsarAdminSettings(admin_url=cluster.addresses.admin)) as opened:
        yield opened


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[RawProducer]:
    with RawProducer(cluster.addresses.pulsar) as opened:
        yield opened


def _topic(admin: PulsarAdmin, partitions: int = 1) -> str:
    topic = f"persistent://public/default/spark4-{uuid.uuid4().hex[:10]}"
    admin.create_partitioned_topic(topic, partitions)
    admin.ensure_subscription(topic, SUBSCRIPTION)  # the sandbox's ledgers are small, and deleted once they are closed
    return topic


def _options(cluster: Cluster, *topics: str, **more: str) -> dict[str, str]:
    return {
        "serviceUrl": cluster.addresses.pulsar,
        "adminUrl": cluster.addresses.admin,
        "topics": ",".join(topics),
        "subscription": SUBSCRIPTION,
        **more,
    }


def _send(raw: RawProducer, partition: str, entries: int, messages: int = 3) -> list[tuple[str, int, int, int]]:
    """Publish batches of messages; return the messages' addresses."""
    sent = []
    for _ in range(entries):
        payload = b"".join(single(b"message %d" % number) for number in range(messages))
        position = raw.send(partition, payload, num_messages_in_batch=messages)
        sent += [(partition, *position, index) for index in range(messages)]
    return sent


def _addresses(found: list[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
    return [(row["topic"], row["ledger_id"], row["entry_id"], row["batch_index"]) for row in found]


def _acknowledged(admin: PulsarAdmin, partition: str) -> Position:
    return admin.internal_stats(partition).mark_deleted(SUBSCRIPTION)


def test_every_message_is_read_once_by_a_query_that_is_killed_at_each_effect(
    cluster: Cluster, admin: PulsarAdmin, raw: RawProducer, tmp_path: Path
) -> None:
    topic = _topic(admin, partitions=2)
    sent = [address for number in range(2) for address in _send(raw, f"{topic}-partition-{number}", 4)]
    options = _options(cluster, topic, maxMessagesPerTrigger="9")
    folder = tmp_path / "query"
    deaths = 0
    # 1: before a batch is written; 2: before its commit; 3: before the next batch, and so on
    for dies_at in (1, 2, 3, 4, 99):
        with jobs(tmp_path / f"spark-{dies_at}") as started:
            try:
                assert "error" not in started.run(folder, options, dies_at=dies_at)
            except KilledError:
                deaths += 1
    assert deaths >= 3
    assert len([*folder.glob("0000-*.arrow")]) >= 2, "a batch has run again after its effect"
    assert sorted(_addresses(rows(folder))) == sorted(sent)


def test_odd_messages_are_passed_on_as_they_are(
    cluster: Cluster, admin: PulsarAdmin, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(admin)
    partition = f"{topic}-partition-0"
    request = json.dumps({"a": "valid message"}).encode()
    with senders(cluster.addresses.pulsar) as send:
        for kind, publish in ODD.items():
            # a topic has one schema
            if kind not in NEEDS_TRANSACTIONS and not kind.startswith("schema_"):
                publish(send, partition, request)
        send.raw.reconnect()
        send.raw.send(partition, b"the last")
        acknowledged = {address[1:3] for address in send.acknowledged if address[0] == partition}
    folder = tmp_path / "query"
    answer = running.run(folder, _options(cluster, topic, isolation="read_uncommitted"))
    assert "error" not in answer
    found = rows(folder)
    counted = Counter(_addresses(found))
    assert counted.most_common(1)[0][1] == 1
    without_rows = acknowledged - {address[1:3] for address in counted}
    assert len(without_rows) == 1, "only of batch_all_compacted_out no message is left"
    kinds = {row["kind"] for row in found}
    assert {"MESSAGE", "ENCRYPTED", "CHUNK", "UNREADABLE", "MARKER"} <= kinds
    assert all(row["detail"] for row in found if row["kind"] != "MESSAGE")
    assert all(row["entry"] for row in found if row["kind"] in ("ENCRYPTED", "CHUNK"))


def test_an_added_partition_is_read_from_its_start(
    cluster: Cluster, admin: PulsarAdmin, raw: RawProducer, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(admin)
    folder, options = tmp_path / "query", _options(cluster, topic)
    sent = _send(raw, f"{topic}-partition-0", 2)
    running.run(folder, options)
    transactions.admin(cluster, "POST", f"{topic_path(topic)}/partitions", 3)
    sent += _send(raw, f"{topic}-partition-2", 2)
    running.run(folder, options)
    assert sorted(_addresses(rows(folder))) == sorted(sent)


def test_deleted_ledgers_and_a_recreated_topic_are_reported(
    cluster: Cluster, admin: PulsarAdmin, raw: RawProducer, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(admin)
    partition = f"{topic}-partition-0"
    folder = tmp_path / "query"
    limited = _options(cluster, topic, maxMessagesPerTrigger="3")
    sent = _send(raw, partition, 1)
    assert "error" not in running.run(folder, limited)
    assert [row["kind"] for row in rows(folder)] == ["MESSAGE"] * 3

    admin.delete_topic(topic, force=True)
    admin.create_partitioned_topic(topic, 1)
    raw.reconnect()
    sent += _send(raw, partition, 1)
    assert "error" not in running.run(folder, limited)
    found = rows(folder)
    assert sorted(_addresses([row for row in found if row["kind"] == "MESSAGE"])) == sorted(sent)
    (gap,) = (row for row in found if row["kind"] != "MESSAGE")
    assert (gap["kind"], gap["ledger_id"], gap["entry_id"]) == ("MAYBE_LOST", sent[0][1], 1)


def test_a_topic_that_was_deleted_with_a_planned_batch_ends_the_query_until_it_is_created_again(
    cluster: Cluster, admin: PulsarAdmin, raw: RawProducer, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(admin, partitions=2)
    folder, options = tmp_path / "query", _options(cluster, topic, maxMessagesPerTrigger="6")
    sent = [_send(raw, f"{topic}-partition-{number}", 3) for number in range(2)]
    with jobs(tmp_path / "killed") as killed, pytest.raises(KilledError):
        killed.run(folder, options, dies_at=3)  # before the second batch is written
    admin.delete_topic(topic, force=True)

    refused = running.run(folder, options)["error"]
    assert "was deleted before a batch that was planned with its entries was read; to continue, create" in refused
    admin.create_partitioned_topic(topic, 2)
    assert "error" not in running.run(folder, options)
    found = rows(folder)
    assert _addresses(found[:6]) == [address for addresses in sent for address in addresses[:3]]
    lost = [(row["topic"], row["ledger_id"], row["entry_id"]) for row in found[6:] if row["kind"] == "LOST"]
    assert lost[:2] == [addresses[3][:3] for addresses in sent]


def test_a_topic_that_does_not_exist_is_named_and_refused_if_no_batch_has_read_it(
    cluster: Cluster, admin: PulsarAdmin, raw: RawProducer, running: Jobs, tmp_path: Path
) -> None:
    kept, deleted, missing = _topic(admin), _topic(admin), f"persistent://public/default/spark4-{uuid.uuid4().hex[:10]}"
    folder = tmp_path / "query"
    for topic in (kept, deleted):
        _send(raw, f"{topic}-partition-0", 1)
    assert "error" not in running.run(folder, _options(cluster, kept, deleted))
    admin.delete_topic(deleted, force=True)
    sent = _send(raw, f"{kept}-partition-0", 1)
    assert "error" not in running.run(folder, _options(cluster, kept, deleted))
    assert _addresses(rows(folder))[-3:] == sent
    assert running.log.read_text().count(f"{deleted}: no such topic") == 1
    refused = running.run(folder, _options(cluster, kept, deleted, missing))["error"]
    assert f"{missing}: no such topic; create it" in refused


def test_load_refuses_options_that_can_not_work(cluster: Cluster, running: Jobs, tmp_path: Path) -> None:
    options = _options(cluster, "public/default/a") | {"startingOffsets": "earliest"}
    del options["adminUrl"]
    refused = running.run(tmp_path / "query", options)["refused"]
    assert "- adminUrl: must be given\n- startingoffsets: there is no such option; did you mean" in refused
    assert "UnboundLocalError" not in refused


def test_a_subscription_that_another_consumer_uses_is_reported(
    cluster: Cluster, admin: PulsarAdmin, raw: RawProducer, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(admin)
    partition, folder = f"{topic}-partition-0", tmp_path / "query"
    options = _options(cluster, topic)
    sent = _send(raw, partition, 1)
    silent = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(cluster.addresses.pulsar, logger=silent)) as client:
        client.subscribe(partition, SUBSCRIPTION, pulsar.ConsumerType.Exclusive)
        before = _acknowledged(admin, partition)
        assert "error" not in running.run(folder, options, trigger="1 second", seconds=25)
    assert f"the cursor of {partition} does not move" in running.log.read_text()
    assert _acknowledged(admin, partition) == before
    assert "error" not in running.run(folder, options)
    assert _acknowledged(admin, partition) == before, "Spark reports a batch's commit with the next one"
    sent += _send(raw, partition, 1)
    assert "error" not in running.run(folder, options)
    assert _acknowledged(admin, partition) == sent[0][1:3]
    assert _addresses(rows(folder)) == sent


def test_the_subscription_follows_what_is_processed(
    cluster: Cluster, admin: PulsarAdmin, raw: RawProducer, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(admin)
    partition = f"{topic}-partition-0"
    sent = _send(raw, partition, 5)
    folder = tmp_path / "query"
    answer = running.run(folder, _options(cluster, topic, maxMessagesPerTrigger="3"))
    assert [progress["numInputRows"] for progress in answer["progress"] if progress["numInputRows"]] == [3] * 5
    assert _acknowledged(admin, partition) >= sent[-4][1:3], "all but the last batch are acknowledged at least"


def test_the_example_copies_topics_and_continues(
    cluster: Cluster, admin: PulsarAdmin, raw: RawProducer, tmp_path: Path
) -> None:
    topic = _topic(admin)
    partition = f"{topic}-partition-0"
    folder = tmp_path / "copy"
    command = [sys.executable, str(EXAMPLE), cluster.addresses.pulsar, cluster.addresses.admin, topic, str(folder)]
    for step in (1, 2):
        _send(raw, partition, step)
        subprocess.run(command, check=True, env=variables(), cwd=tmp_path, timeout=300)
        copied = [json.loads(line) for path in (folder / "messages").rglob("*.json") for line in path.open()]
        assert len(copied) == (3, 9)[step - 1]
