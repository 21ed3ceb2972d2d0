"""The client on the real cluster: no request can be lost, receipts reach their senders, and marks are durable."""

import asyncio
import json
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from ledger_reaper_client import (
    AsyncLedgerDeletionService,
    DeletableLedgers,
    InvalidRequestError,
    LedgerComponent,
    LedgerDeletionService,
    LedgerType,
    NoReceiptError,
    OffloadContext,
    Outcome,
    ReceiptsOffError,
    RefusedError,
    Removal,
    Settings,
    UnavailableError,
)
from ledger_reaper_client.requests import request_for
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients
from tests.builders import UUID
from tests.integration import client_environment
from tests.integration.conftest import Deploy, create_tenant, leak
from udfs import columns as c
from udfs.formats.managed_ledger import parse_managed_ledger
from udfs.paths import managed_ledger_path
from udfs.phase_one.marks import Marks, read_marks
from udfs.records import OffloadContext as ServiceContext
from udfs.records import PendingDelete
from udfs.requests.lane_receipts import lane_receipt
from udfs.requests.request_format import decode

pytestmark = pytest.mark.cluster

DATA, LEDGER = LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER


@pytest.fixture
def tenant(cluster: Cluster) -> Iterator[str]:
    """A tenant whose lanes are deleted at the end, because the next test's service would read them, too."""
    name = f"t{uuid.uuid4().hex[:10]}"
    create_tenant(cluster, name, "app")
    yield name
    with PulsarAdmin(PulsarAdminSettings(admin_url=cluster.addresses.admin)) as admin:
        for namespace in ("ledger-deletion", "app"):
            admin.delete_topic(f"persistent://{name}/{namespace}/__ledger_deletion", force=True)


@pytest.fixture
def topic(tenant: str) -> str:
    return f"persistent://{tenant}/app/orders"


@pytest.fixture
def lane(tenant: str) -> str:
    return f"persistent://{tenant}/ledger-deletion/__ledger_deletion"


def settings(cluster: Cluster, **changes: Any) -> Settings:
    which: dict[str, Any] = {} if "topic" in changes or "lanes" in changes else {"lanes": "tenant"}
    return Settings(cluster.addresses.pulsar, cluster.addresses.admin, **which, **changes)


def get(cluster: Cluster, topic: str, rest: str) -> Any:
    text = topics.admin(cluster, "GET", f"{topics.resource(topic)}/{rest}")
    return json.loads(text) if text else None


def namespaces(cluster: Cluster, tenant: str) -> list[str]:
    return list(json.loads(topics.admin(cluster, "GET", f"namespaces/{tenant}")))


def send(service: LedgerDeletionService, topic: str, ledger_id: int = 7) -> str:
    return service.send_pending_delete_ledger(topic, ledger_id, None, DATA, LEDGER)


@contextmanager
def answering(cluster: Cluster, lane: str, *outcomes: str) -> Iterator[None]:
    """Publish receipts with these outcomes for each request of a lane, as the service does."""
    is_over = threading.Event()

    def answer(client: Any) -> None:
        requests = client.create_reader(f"{lane}-partition-0", pulsar.MessageId.earliest)
        receipts = client.create_producer(f"{lane}-RECEIPT")
        while not is_over.is_set():
            try:
                message = requests.read_next(timeout_millis=200)
            except pulsar.Timeout:
                continue
            message_id = f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}:0"
            for outcome in outcomes:
                receipts.send(receipt(message_id, message.data(), outcome), partition_key=message_id)

    with part_clients.pulsar_client(cluster.addresses.pulsar) as client:
        thread = threading.Thread(target=answer, args=[client])
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def receipt(message_id: str, payload: bytes, outcome: str) -> bytes:
    request = decode(payload)
    assert isinstance(request, PendingDelete)
    row = {
        c.ORIGIN_MESSAGE_ID: message_id,
        c.TOPIC_NAME: request.managed_ledger,
        c.LEDGER_ID: request.ledger_id,
        c.COMPONENT: str(request.component),
        c.LEDGER_TYPE: str(request.ledger_type),
        c.OUTCOME: outcome,
        c.REASON: "UNREFERENCED",
        c.ATTEMPT: 0,
        c.AT_MS: 1,
    }
    return lane_receipt(row)[1]


def test_the_service_deletes_what_a_client_requests_that_has_only_its_wheel(
    cluster: Cluster, deploy: Deploy, tenant: str, topic: str, tmp_path: Path
) -> None:
    topics.fill(cluster, topic, 2, ["s"])
    (leaked,) = leak(cluster, topic, 1)
    python = client_environment.new_environment(sys.executable, tmp_path / "venv")
    client_environment.install(python, "--no-index", "--no-deps", client_environment.build_wheel(tmp_path / "wheel"))
    client_environment.copy_library(python)
    addresses = cluster.addresses
    (sent,) = client_environment.send(python, addresses.pulsar, addresses.admin, topic, leaked)

    service = deploy()
    text = service.config.read_text()
    text = text.replace("[topics]", '[topics]\nlanes = "tenant"\nreceipts = true')
    # only one service of a cluster may read lanes
    service.config.write_text(text.replace("[zookeeper]", f'[zookeeper]\nown_root = "/{tenant}"'))
    service.run("run", "--until-idle")
    # the service also reads the lanes that other tests left
    outcomes = {row["ledger_id"]: (row["message_id"], row["outcome"]) for (row,) in service.final().values()}
    assert outcomes[leaked] == (sent, "DELETED")
    with LedgerDeletionService(settings(cluster)) as client:
        found = client.newest_receipt(topic, sent)
        assert client.estimated_inflight_deletion_ledger_count(topic) == 0
    assert found is not None
    assert (found.outcome, found.ledger_id) == (Outcome.DELETED, leaked)


def test_a_lane_is_created_by_the_first_request_with_its_subscription_and_policies(
    cluster: Cluster, tenant: str, topic: str, lane: str
) -> None:
    with LedgerDeletionService(settings(cluster, lane_partitions=2)) as service:
        assert namespaces(cluster, tenant) == [f"{tenant}/app"], "the start created something"
        assert send(service, topic)
    assert get(cluster, lane, "partitions")["partitions"] == 2
    for number in range(2):
        assert "ledger-reaper" in get(cluster, f"{lane}-partition-{number}", "internalStats")["cursors"]
    assert get(cluster, lane, "retention") == {"retentionTimeInMinutes": 10_080, "retentionSizeInMB": -1}
    quotas = get(cluster, lane, "backlogQuotaMap")
    assert {quota["policy"] for quota in quotas.values()} == {"producer_request_hold"}
    created = json.loads(topics.admin(cluster, "GET", f"namespaces/{tenant}/ledger-deletion/autoTopicCreation"))
    assert created["allowAutoTopicCreation"] is False


def test_a_namespaces_lane_is_in_that_namespace(cluster: Cluster, tenant: str, topic: str) -> None:
    with LedgerDeletionService(settings(cluster, lanes="namespace")) as service:
        send(service, topic)
    assert get(cluster, f"persistent://{tenant}/app/__ledger_deletion", "partitions")["partitions"] == 1
    assert namespaces(cluster, tenant) == [f"{tenant}/app"]


def test_a_request_to_a_topic_that_no_service_reads_is_refused_instead_of_lost(
    cluster: Cluster, tenant: str, topic: str
) -> None:
    """Fault 1 of phase one: a broker created a topic without partitions, and the message id looked like success."""
    missing = f"persistent://{tenant}/app/deletions"
    with LedgerDeletionService(settings(cluster, topic=missing)) as service:
        with pytest.raises(RefusedError, match="there is no topic"):
            send(service, topic)
        topics.publish(cluster, missing, 1)
        with pytest.raises(RefusedError, match="is not partitioned"):
            send(service, topic)
    unread = f"persistent://{tenant}/app/unread"
    topics.create_partitioned(cluster, unread, 2)
    with (
        LedgerDeletionService(settings(cluster, topic=unread)) as service,
        pytest.raises(RefusedError, match="has no subscription ledger-reaper"),
    ):
        send(service, topic)
    assert topics.internal_stats(cluster, f"{unread}-partition-0")["entriesAddedCounter"] == 0


def test_a_lane_of_an_interrupted_creator_is_completed(cluster: Cluster, tenant: str, topic: str, lane: str) -> None:
    topics.admin(cluster, "PUT", f"namespaces/{tenant}/ledger-deletion")
    topics.create_partitioned(cluster, lane, 3)
    with LedgerDeletionService(settings(cluster)) as service:
        send(service, topic)
    for number in range(3):
        assert "ledger-reaper" in get(cluster, f"{lane}-partition-{number}", "internalStats")["cursors"]
    assert get(cluster, lane, "retention")["retentionTimeInMinutes"] == 10_080


@pytest.mark.parametrize(
    "case",
    [
        ("messageTTL?messageTTL=60", None, "message TTL"),
        (
            "backlogQuota?backlogQuotaType=message_age",
            {"limitSize": -1, "limitTime": 9, "policy": "consumer_backlog_eviction"},
            "evicts unread requests",
        ),
    ],
)
def test_a_lane_whose_policies_discard_unread_requests_is_refused(
    cluster: Cluster, topic: str, lane: str, case: tuple[str, Any, str]
) -> None:
    policy, body, named = case
    with LedgerDeletionService(settings(cluster)) as service:
        send(service, topic)
    topics.admin(cluster, "POST", f"{topics.resource(lane)}/{policy}", body)
    with LedgerDeletionService(settings(cluster)) as service, pytest.raises(RefusedError, match=named):
        send(service, topic)


def test_a_request_that_was_stored_after_its_lane_was_deleted_is_an_error(
    cluster: Cluster, tenant: str, topic: str, lane: str
) -> None:
    with LedgerDeletionService(settings(cluster, timeout_seconds=10)) as service:
        send(service, topic)
        space = f"namespaces/{tenant}/ledger-deletion/autoTopicCreation"
        topics.admin(cluster, "POST", space, {"allowAutoTopicCreation": True, "topicType": "non-partitioned"})
        topics.admin(cluster, "DELETE", f"{topics.resource(lane)}/partitions?force=true")
        with pytest.raises((UnavailableError, RefusedError)):
            send(service, topic)

        def is_sent() -> bool:
            try:
                send(service, topic)
            except UnavailableError:
                return False
            except RefusedError:  # a broker created a topic in the way of the lane
                topics.admin(cluster, "DELETE", f"{topics.resource(lane)}-partition-0?force=true")
                return False
            return True

        topics.wait_for(is_sent, "a request in the lane that was created again")
    assert stored_ids(cluster, lane) == {7}


def test_receipts_reach_every_sender(cluster: Cluster, topic: str, lane: str) -> None:
    with LedgerDeletionService(settings(cluster)) as service:
        with pytest.raises(ReceiptsOffError, match=r"topics\.receipts"):
            service.delete_ledger(topic, 7, DATA)
        early = send(service, topic, 6)
    assert topics.internal_stats(cluster, f"{lane}-partition-0")["entriesAddedCounter"] == 1, "it was sent all the same"

    with LedgerDeletionService(settings(cluster, receipts=True)) as service:
        assert service.newest_receipt(topic, early) is None
        assert service.estimated_inflight_deletion_ledger_count(topic) == 1
        with answering(cluster, lane, "RETRY", "DELETED"):
            receipt = service.delete_ledger(topic, 8, DATA, timeout_seconds=60)
            assert (receipt.outcome, receipt.ledger_id, receipt.is_gone) == (Outcome.DELETED, 8, True)

            async def many() -> list[int]:
                async with AsyncLedgerDeletionService(settings(cluster)) as client:
                    waits = (client.delete_ledger(topic, number, DATA, timeout_seconds=60) for number in range(20))
                    return [each.ledger_id for each in await asyncio.gather(*waits)]

            assert asyncio.run(many()) == list(range(20))
        newest = service.newest_receipt(topic, early)
        assert newest is not None
        assert newest.is_final
        assert service.estimated_inflight_deletion_ledger_count(topic) == 0


def publish_batch(cluster: Cluster, topic: str, messages: list[tuple[str, bytes]]) -> None:
    """Publish messages (key, payload) in a single entry."""

    def take(result: Any, _message_id: Any) -> None:
        assert result == pulsar.Result.Ok

    with part_clients.pulsar_client(cluster.addresses.pulsar) as client:
        producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
        for key, data in messages:
            producer.send_async(data, take, partition_key=key)
        producer.flush()
    assert topics.internal_stats(cluster, topic)["entriesAddedCounter"] == 1


def test_each_message_of_a_batch_is_read(cluster: Cluster, tenant: str, topic: str, lane: str) -> None:
    """The service publishes receipts in batches, and so do many senders their requests."""
    with LedgerDeletionService(settings(cluster, receipts=True)) as service:
        ids = [send(service, topic, number) for number in range(3)]
        assert service.estimated_inflight_deletion_ledger_count(topic) == 3  # it creates the receipt topic
        request = request_for(topic, 7, DATA).payload
        publish_batch(cluster, f"{lane}-RECEIPT", [(each, receipt(each, request, "DELETED")) for each in ids])
        assert [service.newest_receipt(topic, each) is not None for each in ids] == [True] * 3
        assert service.estimated_inflight_deletion_ledger_count(topic) == 0
    other = f"persistent://{tenant}/app/__ledger_deletion"
    with LedgerDeletionService(settings(cluster, lanes="namespace", receipts=True)) as service:
        assert service.estimated_inflight_deletion_ledger_count(topic) == 0  # it creates the lane
        publish_batch(cluster, f"{other}-partition-0", [("k", request)] * 3)
        assert service.estimated_inflight_deletion_ledger_count(topic) == 3


def test_a_request_that_waits_for_its_retry_counts_and_a_wait_for_it_ends(
    cluster: Cluster, topic: str, lane: str
) -> None:
    with LedgerDeletionService(settings(cluster, receipts=True)) as service:
        send(service, topic)
        assert service.estimated_inflight_deletion_ledger_count(topic) == 1  # it creates the receipt topic
        with answering(cluster, lane, "RETRY"):
            with pytest.raises(NoReceiptError, match="none came within") as raised:
                service.delete_ledger(topic, 9, DATA, timeout_seconds=1)
            topics.wait_for(
                lambda: service.newest_receipt(topic, raised.value.message_id) is not None, "the receipt of the retry"
            )
        assert service.estimated_inflight_deletion_ledger_count(topic) == 2


@pytest.mark.long
def test_sends_and_waits_survive_a_kill_of_the_broker(cluster: Cluster, topic: str, lane: str) -> None:
    ids: list[str] = []
    is_over = threading.Event()
    with LedgerDeletionService(settings(cluster, receipts=True)) as service, ThreadPoolExecutor(5) as pool:

        def send_all() -> None:
            while not is_over.is_set():
                try:
                    ids.append(send(service, topic, 100 + len(ids)))
                except UnavailableError:
                    continue  # sent again, as its text says

        sends = pool.submit(send_all)
        topics.wait_for(lambda: len(ids) >= 50, "requests")
        waits = [pool.submit(service.delete_ledger, topic, number, DATA, timeout_seconds=300) for number in range(4)]
        topics.wait_for(lambda: stored_ids(cluster, lane) >= set(range(4)), "the requests of all waits")
        cluster_faults.kill(cluster, Part.BROKER)
        cluster_faults.restart(cluster, Part.BROKER)
        before = len(ids)
        topics.wait_for(lambda: len(ids) >= before + 50, "requests after the kill", seconds=180)
        is_over.set()
        sends.result()
        with answering(cluster, lane, "RETRY", "DELETED"):
            assert [wait.result().ledger_id for wait in waits] == list(range(4))
    assert set(range(100, 100 + len(ids))) <= stored_ids(cluster, lane)


def stored_ids(cluster: Cluster, lane: str) -> set[int]:
    requests = map(decode, topics.read_all(cluster, f"{lane}-partition-0"))
    return {request.ledger_id for request in requests if isinstance(request, PendingDelete)}


def test_a_closed_client_says_so_and_an_invalid_request_is_not_sent(cluster: Cluster, topic: str) -> None:
    service = LedgerDeletionService(settings(cluster))
    with pytest.raises(UnavailableError, match=r"call start\(\) first"):
        send(service, topic)
    with service:
        service.start()
        with pytest.raises(InvalidRequestError, match="no ledger id"):
            send(service, topic, -1)
        with pytest.raises(InvalidRequestError, match="OFFLOAD_LEDGER needs a context"):
            service.send_pending_delete_ledger(topic, 1, None, DATA, LedgerType.OFFLOAD_LEDGER)
    service.close()
    with pytest.raises(UnavailableError, match=r"call start\(\) first"):
        send(service, topic)


def stored_marks(cluster: Cluster, topic: str) -> Marks:
    """Return the marks as the service reads them from ZooKeeper."""
    path = managed_ledger_path(topic)
    info = parse_managed_ledger(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path])
    return read_marks(info.properties).all


def test_marks_are_durable_and_removed_when_their_ledgers_are_gone(cluster: Cluster, topic: str, lane: str) -> None:
    topics.fill(cluster, topic, 2, ["s"])
    listed = topics.data_ledgers(cluster, topic)[0]
    topics.admin(cluster, "PUT", f"{topics.resource(topic)}/properties", {"owner": "a team"})
    context = OffloadContext(uuid=UUID, driver_name="aws-s3", driver_properties={"bucket": "b"})
    with LedgerDeletionService(settings(cluster, receipts=True)) as service:
        marks = DeletableLedgers(service)
        marks.mark_deletable_ledgers(topic, [10**12, listed])
        marks.mark_deletable_ledgers(topic, [10**12 + 1], {10**12 + 2: context})
        uploads = {
            (10**12 + 2, UUID): ServiceContext(uuid=UUID, driver_name="aws-s3", driver_properties={"bucket": "b"})
        }
        assert stored_marks(cluster, topic) == Marks(frozenset({10**12, 10**12 + 1, listed}), uploads)
        assert marks.get_all_deletable_ledgers(topic) == {10**12, 10**12 + 1, listed}
        assert marks.get_all_deletable_offloaded_ledgers(topic) == {10**12 + 2}
        assert marks.remove_all_deletable_ledgers(topic, timeout_seconds=0) == Removal(listed=1, asked=3)
        with answering(cluster, lane, "DELETED"):
            assert marks.remove_all_deletable_ledgers(topic, timeout_seconds=60) == Removal(gone=3, listed=1)
        assert stored_marks(cluster, topic) == Marks(frozenset({listed}))
        with pytest.raises(RefusedError, match="mark fewer ledgers"):
            marks.mark_deletable_ledgers(topic, range(2 * 10**12, 2 * 10**12 + 90_000, 2))
        with pytest.raises(InvalidRequestError, match="V1 names"):
            marks.mark_deletable_ledgers("persistent://t/cluster/n/x", [1])
        with pytest.raises(RefusedError, match="name the partition"):
            marks.marks_of(lane)
    assert get(cluster, topic, "properties")["owner"] == "a team"
