"""The source "pulsar-frames" on PySpark 4: transactions, lost ledgers, credentials, failing brokers and bookies."""

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.http import topic_path
from streaming.adapters.pulsar.readers.control_entries import ControlEntries
from streaming.adapters.pulsar.readers.entries import fallback_entries
from streaming.adapters.pulsar.readers.frames import Connection, owner_of
from streaming.adapters.pulsar.snapshots import empty_transaction
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from streaming.sandbox import cluster_faults
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from tests.integration.conftest import running_cluster
from tests.integration.raw_producer import RawProducer
from tests.integration.snapshot_scenes import wait_for
from tests.integration.spark4_jobs import Jobs, KilledError, jobs, rows
from tests.integration.test_secured import Secured, secured
from tests.integration.transactions import Transactions, TxnId
from tests.integration.transactions import admin as transactions_admin
from tests.pulsar_settings import pulsar_settings
from udfs.entry_ranges import EntrySpan, MessageAddress
from udfs.formats.internal_stats import Ensembles
from udfs.proto import pulsar_api_pb2 as api

__all__ = ["secured"]  # a fixture

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SUBSCRIPTION = "spark4"
COMMITS, ABORTS = 0, 1
_COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with jobs(tmp_path_factory.mktemp("spark4")) as opened:
        yield opened


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"transactionCoordinatorEnabled": "true"}
    with running_cluster(tmp_path_factory.mktemp("transactional"), broker_settings=settings) as cluster:
        yield cluster


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Cluster]:
    # for each test, because brokers avoid a bookie for half an hour after one test has stopped it
    with running_cluster(tmp_path / "replicated", counts={Part.BROKER: 2, Part.BOOKIE: 2}) as cluster:
        yield cluster


def _topic(cluster: Cluster, partitions: int = 1) -> str:
    topic = f"persistent://public/default/spark4-{uuid.uuid4().hex[:10]}"
    with PulsarAdmin(PulsarAdminSettings(admin_url=cluster.addresses.admin)) as admin:
        admin.create_partitioned_topic(topic, partitions)
        admin.ensure_subscription(topic, SUBSCRIPTION)
    return topic


def _options(cluster: Cluster, topic: str, **more: str) -> dict[str, str]:
    addresses = cluster.addresses
    where = {"serviceUrl": addresses.pulsar, "adminUrl": addresses.admin}
    return {**where, "topics": topic, "subscription": SUBSCRIPTION, **more}


def _end(cluster: Cluster, ids: list[TxnId], action: int) -> None:
    """End transactions that their client left open."""
    settings = pulsar_settings(service_url=cluster.addresses.pulsar, admin_url=cluster.addresses.admin)
    with Connection(settings, *owner_of(settings, _COORDINATORS)) as connection:
        join = api.CommandTcClientConnectRequest(request_id=connection.next_request(), tc_id=0)
        connection.ask(
            api.BaseCommand(type=empty_transaction.JOIN, tc_client_connect_request=join), empty_transaction.JOIN_DONE
        )
        for most, least in ids:
            end = api.CommandEndTxn(
                request_id=connection.next_request(), txnid_most_bits=most, txnid_least_bits=least, txn_action=action
            )
            ended = connection.ask(api.BaseCommand(type=empty_transaction.END, end_txn=end), empty_transaction.END_DONE)
            assert not ended.end_txn_response.HasField("error"), ended


def _values(found: list[dict[str, Any]], kind: str = "MESSAGE") -> list[str]:
    return [row["value"].decode() for row in found if row["kind"] == kind]


def test_committed_messages_are_read_once_and_only_after_their_transaction(
    transactional: Cluster, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(transactional)
    partition, folder = f"{topic}-partition-0", tmp_path / "query"
    options = _options(transactional, topic, maxMessagesPerTrigger="3")

    def read() -> list[str]:
        assert "error" not in running.run(folder, options)
        return _values(rows(folder))

    with Transactions(transactional.serving.pulsar) as client:
        client.run(partition, "cacc")
        assert sorted(read()) == ["c0", "c2", "c3"]
        later_committed = client.run(partition, "o", start=10)
        later_aborted = client.run(partition, "o", start=20)
        client.run(partition, "cac", start=30)
        client.plain(partition, ["plain"])
        assert sorted(read()) == ["c0", "c2", "c3"], "what follows an open transaction waits"
        _end(transactional, later_committed, COMMITS)
        assert sorted(read()) == ["c0", "c2", "c3", "o10"]
        _end(transactional, later_aborted, ABORTS)
        assert sorted(read()) == ["c0", "c2", "c3", "c30", "c32", "o10", "plain"]
        client.plain(partition, ["last"])
        assert sorted(read()) == ["c0", "c2", "c3", "c30", "c32", "last", "o10", "plain"]
    assert _values(rows(folder), "ABORTED_TRANSACTION") == []


def test_uncommitted_messages_are_rows_of_their_own_kind(transactional: Cluster, running: Jobs, tmp_path: Path) -> None:
    topic = _topic(transactional)
    partition, folder = f"{topic}-partition-0", tmp_path / "query"
    options = _options(transactional, topic, isolation="read_uncommitted")
    with Transactions(transactional.serving.pulsar) as client:
        client.run(partition, "ca")
        ids = client.run(partition, "o", start=10)
        client.plain(partition, ["plain"])
        assert "error" not in running.run(folder, options)
        _end(transactional, ids, COMMITS)
        client.plain(partition, ["last"])
        assert "error" not in running.run(folder, options)
    found = rows(folder)
    assert sorted(_values(found)) == ["c0", "last", "plain"]
    assert _values(found, "ABORTED_TRANSACTION") == ["a1"]
    assert _values(found, "OPEN_TRANSACTION") == ["o10"]


def test_ledgers_that_were_deleted_unread_are_reported_or_end_the_query(
    cluster: Cluster, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(cluster)
    partition, folder = f"{topic}-partition-0", tmp_path / "query"
    options = _options(cluster, topic, maxMessagesPerTrigger="3")
    with RawProducer(cluster.addresses.pulsar) as raw:
        sent = [raw.send(partition, b"%d" % number) for number in range(25)]
    first, *_others, newest = sorted({position[0] for position in sent})
    with jobs(tmp_path / "killed") as killed, pytest.raises(KilledError):
        killed.run(folder, options, dies_at=1)
    transactions_admin(cluster, "POST", f"{topic_path(partition)}/subscription/{SUBSCRIPTION}/skip_all")
    with PulsarAdmin(PulsarAdminSettings(admin_url=cluster.addresses.admin)) as admin:
        wait_for(lambda: {ledger for ledger, _ in admin.internal_stats(partition).ledgers} == {newest}, "the trim")
    refused = running.run(folder, {**options, "onDataLoss": "fail"})
    assert "were deleted before they were read" in refused["error"]
    assert "error" not in running.run(folder, options)
    found = rows(folder)
    assert [(row["ledger_id"], row["entry_id"]) for row in found if row["kind"] == "LOST"] == [(first, 0), (first, 3)]
    stored = [position for position in sent if position[0] == newest]
    assert [(row["ledger_id"], row["entry_id"]) for row in found if row["kind"] == "MESSAGE"] == stored
    assert len(found) == 2 + len(stored)


@pytest.mark.parametrize("kind", ["token", "basic", "oauth2", "tls"])
def test_a_query_reads_over_tls_with_any_kind_of_credentials(
    secured: Secured, running: Jobs, tmp_path: Path, kind: str
) -> None:
    topic = f"public/default/spark4-{kind}"
    secured.admin("PUT", f"persistent/{topic}")
    with secured.client("reaper") as client:
        producer = client.create_producer(topic)
        for number in range(3):
            producer.send(b"%d" % number)
    keys = secured.credentials(tmp_path, kind, "reaper") | {"tls_trust_certs_file": str(secured.ca)}
    options = {
        "serviceUrl": secured.service_url,
        "adminUrl": secured.admin_url,
        "topics": topic,
        "subscription": SUBSCRIPTION,
        **{key.replace("_", ""): value for key, value in keys.items()},
    }
    answer = running.run(tmp_path / "query", options)
    assert "error" not in answer, answer
    assert _values(rows(tmp_path / "query")) == ["0", "1", "2"]


def test_nothing_is_lost_or_doubled_while_brokers_are_killed_and_a_bookie_stands_still(
    replicated: Cluster, running: Jobs, tmp_path: Path
) -> None:
    topic = _topic(replicated, partitions=4)
    folder = tmp_path / "query"
    options = _options(replicated, topic, maxMessagesPerTrigger="20")
    sent: list[MessageAddress] = []

    def publish(count: int) -> None:
        silent = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        with closing(pulsar.Client(replicated.addresses.pulsar, logger=silent)) as client:
            for number in range(4):
                partition = f"{topic}-partition-{number}"
                producer = client.create_producer(partition, batching_enabled=False)
                for _ in range(count):
                    at = producer.send(b"x")
                    sent.append((partition, at.ledger_id(), at.entry_id(), -1))

    def fail() -> None:
        for broker in replicated.spec.all_of(Part.BROKER):
            cluster_faults.kill(replicated, broker)
            cluster_faults.restart(replicated, broker)

    publish(50)
    faults = threading.Thread(target=fail)
    faults.start()
    while faults.is_alive():
        running.run(folder, options)  # it may end with an error
    faults.join()
    publish(10)
    with cluster_faults.paused(replicated, replicated.spec.all_of(Part.BOOKIE)[0]):
        running.run(folder, options)
    answer = running.run(folder, options)
    assert "error" not in answer, answer
    found = rows(folder)
    addresses = [(row["topic"], row["ledger_id"], row["entry_id"], row["batch_index"]) for row in found]
    assert [row for row in found if row["kind"] != "MESSAGE"] == []
    assert sorted(addresses) == sorted(sent)


def test_no_message_is_given_up_while_the_broker_turns_from_a_bookie_that_hangs_to_another(replicated: Cluster) -> None:
    """The broker reads a ledger from one bookie. After 30 s without an answer it takes another, also for the others."""
    topic = _topic(replicated, partitions=4)
    partitions = [f"{topic}-partition-{number}" for number in range(4)]
    sent: dict[str, list[tuple[int, int]]] = {}
    with closing(pulsar.Client(replicated.addresses.pulsar, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))) as (
        client
    ):
        for partition in partitions:
            producer = client.create_producer(partition, batching_enabled=False)
            ids = [producer.send(b"x") for _ in range(6)]
            sent[partition] = [(at.ledger_id(), at.entry_id()) for at in ids]
    addresses = replicated.addresses
    settings = pulsar_settings(service_url=addresses.pulsar, admin_url=addresses.admin)
    with PulsarAdmin(PulsarAdminSettings(admin_url=addresses.admin)) as admin:
        for partition, positions in sent.items():
            assert admin.ensembles(partition)[positions[0][0]] == Ensembles(2, (0,))
        time.sleep(10)  # until the brokers' caches are empty
        for bookie in replicated.spec.all_of(Part.BOOKIE):
            with cluster_faults.paused(replicated, bookie), ThreadPoolExecutor(4) as threads:
                for each, at in sent.items():
                    threads.submit(admin.entry, each, at[0], 100, 40.0)
                time.sleep(12)
                reads = {
                    each: threads.submit(_read, settings, admin, each, at, partitions) for each, at in sent.items()
                }
                found = {each: read.result() for each, read in reads.items()}
            assert all(read in (None, sent[each]) for each, read in found.items()), found
        assert {each: _read(settings, admin, each, at, partitions) for each, at in sent.items()} == sent


def _read(
    settings: PulsarSettings, admin: PulsarAdmin, partition: str, positions: list[tuple[int, int]], others: list[str]
) -> list[tuple[int, int]] | None:
    """Return the positions of the messages that were read; None if the read was refused."""
    controls = ControlEntries(admin, partition, others)
    spans = [EntrySpan(positions[0][0], 0, positions[-1][1])]
    try:
        read = [*fallback_entries(settings, admin, partition, spans, controls)]
    except UnavailableError:
        return None
    return [position for position, message in read if message.why is None]
