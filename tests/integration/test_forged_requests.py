"""Forged requests beside true ones for the same ledger or upload, in one batch of one run, on the real cluster."""

import json
from dataclasses import dataclass
from uuid import uuid4

import pytest

from streaming.sandbox import bookie, part_clients, topics
from streaming.sandbox.cluster import Cluster
from tests.integration.conftest import Deployment, deployment, leak, new_topic, payload
from udfs.formats.java_uuid import uuid_halves
from udfs.formats.offload_index import object_name

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@dataclass(frozen=True)
class Answered:
    """Topics, the ledgers and uploads that were asked for, and the service after it has answered."""

    service: Deployment
    small: str
    large: str
    ledger_ids: tuple[int, ...]
    rival: str
    owner: str
    of_uploads: int
    asked_by_rival: str


@pytest.fixture(scope="module")
def answered(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Answered:
    small, large, rival, owner = (new_topic(kind) for kind in ("small", "large", "rival", "owner"))
    for topic, count in ((small, 3), (large, 9), (rival, 2), (owner, 2)):
        topics.fill(cluster, topic, count, ["s"])
    forged_first, true_first = leak(cluster, small, 2)
    (of_uploads,) = leak(cluster, owner, 1)
    asked_by_rival, asked_by_both = (_begin_upload(cluster, of_uploads) for _ in range(2))
    service = deployment(cluster, tmp_path_factory.mktemp("forged"))
    service.request(
        [
            payload(large, forged_first),
            payload(small, forged_first),
            payload(small, true_first),
            payload(large, true_first),
            _of_upload(cluster, rival, of_uploads, asked_by_rival),
            _of_upload(cluster, rival, of_uploads, asked_by_both),
            _of_upload(cluster, owner, of_uploads, asked_by_both),
        ]
    )
    where = {"endpoint": cluster.addresses.s3, "bucket": cluster.bucket, "exclusive": True}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LEDGER_REAPER__TIERED_STORAGE__ALLOWED", json.dumps([where]))
        service.run("run", "--until-idle")
    return Answered(service, small, large, (forged_first, true_first), rival, owner, of_uploads, asked_by_rival)


def test_each_has_its_own_answer_and_its_own_owners_certificate_at_the_first_look(
    cluster: Cluster, answered: Answered
) -> None:
    small, large = answered.small, answered.large
    rows = [row for row in answered.service.receipts() if row["ledger_id"] in answered.ledger_ids]
    told = sorted((row["ledger_id"], row["topic"], row["outcome"], row["reason"]) for row in rows)
    refused, deleted = ("DEAD_LETTER", "OTHER_OWNER"), ("DELETED", "UNREFERENCED")
    assert told == sorted(
        (ledger_id, topic, *answer)
        for ledger_id in answered.ledger_ids
        for topic, answer in ((small, deleted), (large, refused))
    )
    assert not set(answered.ledger_ids) & bookie.list_ledgers(cluster)
    listed = {topic: len(topics.data_ledgers(cluster, topic)) for topic in (small, large)}
    for row in rows:
        assert row["sources"].startswith(f"zookeeper={listed[row['topic']]}@")


def test_an_unfinished_upload_is_aborted_for_the_owner_of_its_ledger_only(cluster: Cluster, answered: Answered) -> None:
    """Whoever knows its UUID may write it into a request, also where the bucket is this cluster's alone."""
    rows = [row for row in answered.service.receipts() if row["ledger_id"] not in answered.ledger_ids]
    told = sorted((row["topic"], row["outcome"], row["reason"]) for row in rows)
    refused = (answered.rival, "DEAD_LETTER", "OTHER_OWNER")
    assert told == sorted([refused, refused, (answered.owner, "DELETED", "UNREFERENCED")])
    left = object_name(answered.asked_by_rival, answered.of_uploads)
    assert _uploads(cluster, answered.of_uploads) == {left}


def _begin_upload(cluster: Cluster, ledger_id: int) -> str:
    """Begin an upload as a broker does that dies then; returns its UUID."""
    store, uuid = part_clients.s3(cluster.addresses.s3, cluster.region), str(uuid4())
    named = {"Bucket": cluster.bucket, "Key": object_name(uuid, ledger_id)}
    begun = store.create_multipart_upload(**named)["UploadId"]
    store.upload_part(**named, UploadId=begun, PartNumber=1, Body=b"part")
    return uuid


def _uploads(cluster: Cluster, ledger_id: int) -> set[str]:
    store = part_clients.s3(cluster.addresses.s3, cluster.region)
    found = store.list_multipart_uploads(Bucket=cluster.bucket).get("Uploads", [])
    return {each["Key"] for each in found if each["Key"].endswith(f"-ledger-{ledger_id}")}


def _of_upload(cluster: Cluster, topic: str, ledger_id: int, uuid: str) -> bytes:
    msb, lsb = uuid_halves(uuid)
    named = {"bucket": cluster.bucket, "serviceEndpoint": cluster.addresses.s3}
    driver = {"name": "S3", "properties": [{"key": key, "value": value} for key, value in named.items()]}
    context = {"uidMsb": msb, "uidLsb": lsb, "complete": False, "driverMetadata": driver}
    return payload(topic, ledger_id, ledgerType="OFFLOAD_LEDGER", offloadContext=context)
