"""Tiered storage end to end: the service deletes the objects that an unmodified broker leaked, and no others."""

import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import S3Objects
from streaming.clock import SystemClock
from streaming.sandbox import ledger_list, offloaded_ledgers, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import HOST, Part
from streaming.sandbox.offloaded_ledgers import Attempt, Offloads
from streaming.sandbox.parts import part_clients
from streaming.state.journal import object_entries
from tests.integration.conftest import Deploy, Deployment, new_topic
from udfs.formats.offload_index import parse_offload_index
from udfs.owners.named_owner import mismatch
from udfs.paths import managed_ledger_name
from udfs.records import LedgerComponent, LedgerType, OffloadContext, PendingDelete, StoredObject
from udfs.requests.request_format import encode

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Leaks:
    """Topics in every state of tiered storage, and their messages before the service runs."""

    offloads: Offloads
    kept: str
    retried: str
    messages: dict[str, list[bytes]]


@pytest.fixture(scope="module")
def leaks(cluster: Cluster) -> Leaks:
    kept, deleted, retried = (new_topic(kind) for kind in ("kept ü", "deleted", "retried"))
    created = offloaded_ledgers.leak_offloads(cluster, kept=kept, deleted=deleted, retried=retried)
    assert {key for attempt in (*created.in_use, *created.leaked, *created.stale) for key in attempt.keys} <= set(
        topics.objects(cluster)
    )
    assert set(created.copies) <= ledger_list.every_ledger(cluster).keys()
    return Leaks(created, kept, retried, {topic: topics.read_all(cluster, topic) for topic in (kept, retried)})


def request(cluster: Cluster, attempt: Attempt, **driver: Any) -> PendingDelete:
    properties = {"bucket": cluster.bucket, "serviceEndpoint": cluster.addresses.s3, "region": cluster.region}
    context = OffloadContext(uuid=attempt.uuid, driver_name="S3", driver_properties=properties)
    return PendingDelete(
        managed_ledger=managed_ledger_name(attempt.topic),
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        ledger_id=attempt.ledger_id,
        offload_context=replace(context, **driver),
    )


def copy_request(topic: str, ledger_id: int) -> PendingDelete:
    component = LedgerComponent.MANAGED_LEDGER
    return PendingDelete(
        managed_ledger=managed_ledger_name(topic),
        component=component,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
    )


def store(cluster: Cluster) -> S3Objects:
    return S3Objects(
        S3Settings(
            endpoint=cluster.addresses.s3,
            bucket=cluster.bucket,
            credentials_file=str(cluster.home.root / "aws-credentials"),
        )
    )


def test_objects_written_by_a_broker_name_their_owner(cluster: Cluster, leaks: Leaks) -> None:
    for attempt in (*leaks.offloads.in_use, *leaks.offloads.leaked, *leaks.offloads.stale):
        data, index = store(cluster).read_many(attempt.keys)

        assert isinstance(data, StoredObject)
        assert isinstance(index, StoredObject)
        parsed = parse_offload_index(index.content or b"")
        assert mismatch(request(cluster, attempt), parsed.metadata.custom_metadata) is None
        assert (parsed.data_bytes, parsed.metadata.last_entry_id) == (data.size_bytes, topics.ENTRIES_PER_LEDGER - 1)
        for stored, role in ((data, "data"), (index, "index")):
            assert stored.user_metadata["pulsarclustername"] == "sandbox"
            assert stored.user_metadata["managedledgername"] == managed_ledger_name(attempt.topic)
            assert stored.user_metadata["role"] == role
            assert abs(SystemClock().now_ms() - stored.last_modified_ms) < 3_600_000


def test_leaked_objects_are_deleted_and_offloaded_topics_stay_readable_from_the_start(
    cluster: Cluster, deploy: Deploy, leaks: Leaks
) -> None:
    """While the service runs, a listed ledger has lost an object, as by a lifecycle rule; its other copy is kept."""
    created = leaks.offloads
    last, *copies = created.copies
    broken = next(attempt for attempt in created.in_use if attempt.ledger_id == last)
    foreign = {"bucket": "victims-bucket", "serviceEndpoint": cluster.addresses.s3}
    service = deploy()
    service.request(
        encode(body)
        for body in (
            *(request(cluster, attempt) for attempt in (*created.leaked, *created.in_use[:-1])),
            # the owner's list names the bucket, the request does not
            *(request(cluster, attempt, driver_name="", driver_properties={}) for attempt in created.stale),
            request(cluster, Attempt(leaks.kept, created.in_use[0].ledger_id, str(uuid.uuid4()))),
            request(cluster, replace(created.in_use[-1], topic=leaks.kept)),
            request(cluster, created.leaked[0], driver_properties=foreign),
            request(cluster, created.leaked[0], driver_name="azureblob"),
            *(copy_request(leaks.kept, ledger_id) for ledger_id in created.copies),
        )
    )
    with _lost(cluster, broken.keys[0]):
        _run_with_s3_down_at_first(cluster, service)

    assert service.outcomes() == Counter(
        {
            ("DELETED", "OWNER_GONE"): len(created.leaked),
            ("DELETED", "UNREFERENCED"): len(created.stale) + len(copies),
            ("DEAD_LETTER", "OFFLOAD_UNCONFIRMED"): 1,
            ("DEAD_LETTER", "IN_USE"): len(created.in_use) - 1,
            ("ALREADY_GONE", "NOT_FOUND"): 1,
            ("DEAD_LETTER", "OTHER_OWNER"): 1,
            ("DEAD_LETTER", "STORE_NOT_ALLOWED"): 1,
            ("DEAD_LETTER", "DRIVER_NOT_SUPPORTED"): 1,
        }
    )
    left = set(topics.objects(cluster))
    gone = {key for attempt in (*created.leaked, *created.stale) for key in attempt.keys}
    assert not gone & left
    assert {key for attempt in created.in_use for key in attempt.keys} <= left
    deleted = [row for rows in service.final().values() for row in rows if row["outcome"] == "DELETED"]
    assert {row["ledger_id"] for row in deleted if row["ledger_type"] == "LEDGER"} == set(copies)
    journaled = list(object_entries(service.settings.state.dir))
    assert {key.rpartition("@")[0] for row in journaled for key in row["objects"]} >= gone
    assert all(parse_offload_index(row["index"]).metadata.custom_metadata for row in journaled)

    # only S3 has the kept topic's messages, except for the ledger whose object was lost
    assert set(created.copies) & ledger_list.every_ledger(cluster).keys() == {last}
    for topic in (leaks.kept, leaks.retried):
        topics.unload(cluster, topic)
        assert topics.read_all(cluster, topic) == leaks.messages[topic]


@contextmanager
def _lost(cluster: Cluster, key: str) -> Iterator[None]:
    """Delete an object for the duration of the block, and put it back then."""
    bucket = {"Bucket": cluster.bucket, "Key": key}
    client = part_clients.s3(cluster.addresses.s3, cluster.region)
    stored = client.get_object(**bucket)
    content = stored["Body"].read()
    client.delete_object(**bucket)
    try:
        yield
    finally:
        client.put_object(**bucket, Body=content, Metadata=stored["Metadata"])


def _run_with_s3_down_at_first(cluster: Cluster, service: Deployment) -> None:
    cluster.stop(Part.S3)
    running = service.console.start("run", "--until-idle")
    try:
        with socket.create_server((HOST, cluster.spec.ports["s3"])) as listening:
            listening.settimeout(240)
            connection, _ = listening.accept()  # for the first sweep, the store closes the connection
            connection.close()
        assert not service.final()
    finally:
        cluster.start(Part.S3)
        code, output = running.result(240)
    assert code == 0, output[-4000:]
