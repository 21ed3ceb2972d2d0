"""Forged and true requests for the same ledger or upload in one batch, on the real cluster."""

from dataclasses import dataclass
from uuid import uuid4

import pytest

from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import Deployment, deployment, leak, new_topic, payload
from udfs.formats.java_uuid import uuid_halves
from udfs.formats.offload_index import object_name

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@dataclass(frozen=True)
class Answered:
    """Topics, the ledgers and uploads of the requests, and the service after it has processed them."""

    service: Deployment
    small: str
    large: str
    ledger_ids: tuple[int, ...]
    rival: str
    owner: str
    upload_ledger: int
    rival_upload: str


@pytest.fixture(scope="module")
def answered(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Answered:
    small, large, rival, owner = (new_topic(kind) for kind in ("small", "large", "rival", "owner"))
    for topic, count in ((small, 3), (large, 9), (rival, 2), (owner, 2)):
        topics.fill(cluster, topic, count, ["s"])
    forged_first, true_first = leak(cluster, small, 2)
    (upload_ledger,) = leak(cluster, owner, 1)
    rival_upload, shared_upload = (_start_upload(cluster, upload_ledger) for _ in range(2))
    service = deployment(cluster, tmp_path_factory.mktemp("forged"))
    service.request(
        [
            payload(large, forged_first),
            payload(small, forged_first),
            payload(small, true_first),
            payload(large, true_first),
            _upload_request(cluster, rival, upload_ledger, rival_upload),
            _upload_request(cluster, rival, upload_ledger, shared_upload),
            _upload_request(cluster, owner, upload_ledger, shared_upload),
        ]
    )
    text = service.config.read_text()
    service.config.write_text(text.replace("cluster_names_are_unique = true", "exclusive = true"))
    service.console.run("run", "--until-idle")
    return Answered(
        service=service,
        small=small,
        large=large,
        ledger_ids=(forged_first, true_first),
        rival=rival,
        owner=owner,
        upload_ledger=upload_ledger,
        rival_upload=rival_upload,
    )


def test_each_request_gets_its_own_verdict_and_its_own_owners_facts_at_the_first_check(
    cluster: Cluster, answered: Answered
) -> None:
    small, large = answered.small, answered.large
    rows = [row for row in answered.service.receipts() if row["ledger_id"] in answered.ledger_ids]
    outcomes = sorted((row["ledger_id"], row["topic"], row["outcome"], row["reason"]) for row in rows)
    refused, deleted = ("DEAD_LETTER", "OTHER_OWNER"), ("DELETED", "UNREFERENCED")
    assert outcomes == sorted(
        (ledger_id, topic, *outcome)
        for ledger_id in answered.ledger_ids
        for topic, outcome in ((small, deleted), (large, refused))
    )
    assert not set(answered.ledger_ids) & ledger_list.listed_by_bookie(cluster)
    listed = {topic: len(topics.data_ledgers(cluster, topic)) for topic in (small, large)}
    for row in rows:
        assert row["sources"].startswith(f"zookeeper={listed[row['topic']]}@")


def test_an_unfinished_upload_is_aborted_only_for_the_owner_of_its_ledger(cluster: Cluster, answered: Answered) -> None:
    """Any sender that knows an upload's UUID can request it, also if only this cluster uses the bucket."""
    rows = [row for row in answered.service.receipts() if row["ledger_id"] not in answered.ledger_ids]
    outcomes = sorted((row["topic"], row["outcome"], row["reason"]) for row in rows)
    refused = (answered.rival, "DEAD_LETTER", "OTHER_OWNER")
    assert outcomes == sorted([refused, refused, (answered.owner, "DELETED", "UNREFERENCED")])
    left = object_name(answered.rival_upload, answered.upload_ledger)
    assert _uploads(cluster, answered.upload_ledger) == {left}


def _start_upload(cluster: Cluster, ledger_id: int) -> str:
    """Start an upload like a broker that dies afterwards; return its UUID."""
    store, uuid = part_clients.s3(cluster.addresses.s3, cluster.region), str(uuid4())
    target = {"Bucket": cluster.bucket, "Key": object_name(uuid, ledger_id)}
    upload_id = store.create_multipart_upload(**target)["UploadId"]
    store.upload_part(**target, UploadId=upload_id, PartNumber=1, Body=b"part")
    return uuid


def _uploads(cluster: Cluster, ledger_id: int) -> set[str]:
    store = part_clients.s3(cluster.addresses.s3, cluster.region)
    uploads = store.list_multipart_uploads(Bucket=cluster.bucket).get("Uploads", [])
    return {upload["Key"] for upload in uploads if upload["Key"].endswith(f"-ledger-{ledger_id}")}


def _upload_request(cluster: Cluster, topic: str, ledger_id: int, uuid: str) -> bytes:
    msb, lsb = uuid_halves(uuid)
    bucket = {"bucket": cluster.bucket, "serviceEndpoint": cluster.addresses.s3}
    driver = {"name": "S3", "properties": [{"key": key, "value": value} for key, value in bucket.items()]}
    context = {"uidMsb": msb, "uidLsb": lsb, "complete": False, "driverMetadata": driver}
    return payload(topic, ledger_id, ledgerType="OFFLOAD_LEDGER", offloadContext=context)
