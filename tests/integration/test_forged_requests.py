"""Forged requests beside true ones for the same ledger or upload, in one batch, on the real cluster."""

import json
from uuid import uuid4

import pytest

from streaming.sandbox import bookie, clients, topics
from streaming.sandbox.cluster import Cluster
from tests.integration.conftest import Deploy, leak, new_topic, payload
from udfs.formats.java_uuid import uuid_halves
from udfs.formats.offload_index import object_name

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_each_has_its_own_answer_and_its_own_owners_certificate_at_the_first_look(
    cluster: Cluster, deploy: Deploy
) -> None:
    small, large = new_topic("small"), new_topic("large")
    topics.fill(cluster, small, 3, ["s"])
    topics.fill(cluster, large, 9, ["s"])
    forged_first, true_first = leak(cluster, small, 2)
    service = deploy()
    service.request(
        [
            payload(large, forged_first),
            payload(small, forged_first),
            payload(small, true_first),
            payload(large, true_first),
        ]
    )
    service.run("run", "--until-idle")

    told = sorted((row["ledger_id"], row["topic"], row["outcome"], row["reason"]) for row in service.receipts())
    refused, deleted = ("DEAD_LETTER", "OTHER_OWNER"), ("DELETED", "UNREFERENCED")
    assert told == sorted(
        (ledger_id, topic, *answer)
        for ledger_id in (forged_first, true_first)
        for topic, answer in ((small, deleted), (large, refused))
    )
    assert not {forged_first, true_first} & bookie.list_ledgers(cluster)
    listed = {topic: len(topics.data_ledgers(cluster, topic)) for topic in (small, large)}
    for row in service.receipts():
        assert row["sources"].startswith(f"zookeeper={listed[row['topic']]}@")


def test_an_unfinished_upload_is_aborted_for_the_owner_of_its_ledger_only(
    cluster: Cluster, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows its UUID may write it into a request, also where the bucket is this cluster's alone."""
    where = {"endpoint": cluster.addresses.s3, "bucket": cluster.bucket, "exclusive": True}
    monkeypatch.setenv("LEDGER_REAPER__TIERED_STORAGE__ALLOWED", json.dumps([where]))
    rival, owner = new_topic("rival"), new_topic("owner")
    for topic in (rival, owner):
        topics.fill(cluster, topic, 2, ["s"])
    (ledger_id,) = leak(cluster, owner, 1)
    asked_by_rival, asked_by_both = (_begin_upload(cluster, ledger_id) for _ in range(2))
    service = deploy()
    service.request(
        [
            _of_upload(cluster, rival, ledger_id, asked_by_rival),
            _of_upload(cluster, rival, ledger_id, asked_by_both),
            _of_upload(cluster, owner, ledger_id, asked_by_both),
        ]
    )
    service.run("run", "--until-idle")

    told = sorted((row["topic"], row["outcome"], row["reason"]) for row in service.receipts())
    refused = (rival, "DEAD_LETTER", "OTHER_OWNER")
    assert told == sorted([refused, refused, (owner, "DELETED", "UNREFERENCED")])
    assert _uploads(cluster, ledger_id) == {object_name(asked_by_rival, ledger_id)}


def _begin_upload(cluster: Cluster, ledger_id: int) -> str:
    """Begin an upload as a broker does that dies then; returns its UUID."""
    store, uuid = clients.s3(cluster.addresses.s3, cluster.region), str(uuid4())
    named = {"Bucket": cluster.bucket, "Key": object_name(uuid, ledger_id)}
    begun = store.create_multipart_upload(**named)["UploadId"]
    store.upload_part(**named, UploadId=begun, PartNumber=1, Body=b"part")
    return uuid


def _uploads(cluster: Cluster, ledger_id: int) -> set[str]:
    store = clients.s3(cluster.addresses.s3, cluster.region)
    found = store.list_multipart_uploads(Bucket=cluster.bucket).get("Uploads", [])
    return {each["Key"] for each in found if each["Key"].endswith(f"-ledger-{ledger_id}")}


def _of_upload(cluster: Cluster, topic: str, ledger_id: int, uuid: str) -> bytes:
    msb, lsb = uuid_halves(uuid)
    named = {"bucket": cluster.bucket, "serviceEndpoint": cluster.addresses.s3}
    driver = {"name": "S3", "properties": [{"key": key, "value": value} for key, value in named.items()]}
    context = {"uidMsb": msb, "uidLsb": lsb, "complete": False, "driverMetadata": driver}
    return payload(topic, ledger_id, ledgerType="OFFLOAD_LEDGER", offloadContext=context)
