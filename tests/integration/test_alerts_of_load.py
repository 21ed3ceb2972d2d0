"""Alerts about requests that wait for the pace, a busy S3, and accounts that can't be checked: see test_alerts.py.

Each has its own service, so that the repeated scrape of one has no retries of another.
"""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from tests.integration.alert_scenes import Scene, alerts, running_scene
from tests.integration.conftest import leak, new_topic, payload, running_cluster, stop
from tests.scrapes import Scrape, firing
from tests.throttling_proxy import throttling_proxy
from udfs.formats.offload_index import IndexEntry, index_name, object_name, serialize_offload_index
from udfs.paths import managed_ledger_name
from udfs.records import (
    LedgerComponent,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    OffloadContext,
    PendingDelete,
)
from udfs.requests.request_format import encode

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]

REQUESTS = 400  # which take minutes at the slow pace
UPLOADS = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as created:
        yield created


def test_accounts_are_unchecked_until_the_damaged_file_is_removed(cluster: Cluster, tmp_path: Path) -> None:
    with running_scene(cluster, tmp_path, name="accounts") as scene:
        stop(scene.running)
        (scene.state / "accounts.json").write_bytes(b"\0" * 100)  # as after a crash of a machine whose disk lied
        scene.start()
        scene.until_logged("could not check whether every message has a receipt")
        unchecked = scene.scrape()
        assert firing((unchecked.working(), 62)) == alerts("AccountsUnchecked")
        assert "accounts.json can't be read" in scene.service.run("check", code=(3, 4))
        (scene.state / "accounts.json").unlink()
        checked = scene.until(lambda scrape: scrape.value("ledger_reaper_accounts_checked_timestamp_seconds"))
        assert firing((unchecked.working(), 62), (checked.working(), 5)) == set()


def test_requests_wait_for_the_pace_until_it_is_raised(cluster: Cluster, tmp_path: Path) -> None:
    slow, fast = "deletes_per_second = 2", "deletes_per_second = 0"
    topic = new_topic("many")
    topics.fill(cluster, topic, 2, ["s"])
    leaked = leak(cluster, topic, REQUESTS)
    with running_scene(cluster, tmp_path, (fast, slow), name="pace") as scene:
        scene.service.request(payload(topic, ledger_id) for ledger_id in leaked)
        old = scene.until(
            lambda scrape: (
                scrape.value("ledger_reaper_backlog_oldest_timestamp_seconds")
                and scrape.value("ledger_reaper_accounts_checked_timestamp_seconds")
            )
        )
        history = old.working(), 26
        assert firing(history, step_minutes=15) == alerts("BacklogOld")
        assert scene.requests.removeprefix("persistent://") in scene.service.run("backlog")
        scene.service.run("status")
        scene.restart((slow, fast))
        scene.until(
            lambda _scrape: (
                {*leaked} <= {row["ledger_id"] for row in scene.service.receipts() if row["outcome"] == "DELETED"}
            )
        )
        read = scene.until(
            lambda scrape: (
                _none_waits(scrape)
                and scrape.value("ledger_reaper_backlog_requests") == 0
                and scrape.value("ledger_reaper_backlog_oldest_timestamp_seconds") is None
                and scrape.value("ledger_reaper_accounts_checked_timestamp_seconds")
            )
        )
        assert firing(history, (read.working(), 2), step_minutes=15) == set()


def test_tiered_storage_is_busy_until_the_deletes_are_paused(cluster: Cluster, tmp_path: Path) -> None:
    with (
        throttling_proxy(cluster.addresses.s3) as proxy,
        running_scene(
            cluster,
            tmp_path,
            (f'endpoint = "{cluster.addresses.s3}"', f'endpoint = "{proxy.endpoint}"'),
            ("max_retry_delete_count = 2", "max_retry_delete_count = 1000"),
            name="tiered",
        ) as scene,
    ):
        requests = _uploads_of_a_gone_topic(scene, UPLOADS)
        before = scene.until(lambda scrape: scrape.value("ledger_reaper_accounts_checked_timestamp_seconds"))
        proxy.per_s = 5.0
        scene.service.request(requests)
        busy = scene.until(lambda scrape: _deleted(scrape) >= UPLOADS and _none_waits(scrape))
        growing = busy.working().growing("ledger_reaper_s3_throttled_total", before)
        history = (before.working(), 5), (growing, 80)
        assert firing(*history) == alerts("S3Throttled")
        scene.service.run("pause", "--why", "S3 is busy", "--for", "2h")
        paused = scene.until(lambda scrape: scrape.value("ledger_reaper_paused") == 1)
        refused = proxy.refused
        scene.service.request([_request(scene, new_topic("later"), 1, str(uuid4()))])
        waits = scene.until(lambda scrape: scrape.value("ledger_reaper_backlog_oldest_timestamp_seconds"))
        assert (_throttled(waits), proxy.refused) == (_throttled(paused), refused)
        assert firing(*history, (waits.working(), 16)) == set()


def _none_waits(scrape: Scrape) -> bool:
    """Whether no retry waits; after the last receipt, because a retry waits nowhere while it is tried."""
    return scrape.value("ledger_reaper_retries_waiting") == scrape.value("ledger_reaper_retries_due") == 0


def _deleted(scrape: Scrape) -> float:
    return scrape.value("ledger_reaper_requests_total", 'outcome="DELETED"') or 0


def _throttled(scrape: Scrape) -> float:
    return scrape.value("ledger_reaper_s3_throttled_total") or 0


def _request(scene: Scene, topic: str, ledger_id: int, uuid: str) -> bytes:
    """Return a request for an upload."""
    (allowed,) = scene.service.settings.tiered_storage.allowed
    named = {"bucket": allowed.bucket, "serviceEndpoint": allowed.endpoint, "region": scene.cluster.region}
    return encode(
        PendingDelete(
            managed_ledger=managed_ledger_name(topic),
            component=LedgerComponent.MANAGED_LEDGER,
            ledger_type=LedgerType.OFFLOAD_LEDGER,
            ledger_id=ledger_id,
            offload_context=OffloadContext(uuid=uuid, driver_name="S3", driver_properties=named),
        )
    )


def _uploads_of_a_gone_topic(scene: Scene, count: int) -> list[bytes]:
    """Store uploads as a broker writes them, of a topic that is gone; return requests for them."""
    topic = new_topic("gone")
    name = managed_ledger_name(topic)
    signed = {
        "pulsarclustername": "sandbox",
        "managedledgername": name,
        "s3managedledgeroffloaderformatversion": "1",
    }
    metadata = LedgerMetadata(
        state=LedgerState.CLOSED,
        length_bytes=1_000,
        last_entry_id=9,
        ctime_ms=1_700_000_000_000,
        custom_metadata={
            "application": b"pulsar",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": name.encode(),
        },
    )
    index = serialize_offload_index(metadata, 1_208, [IndexEntry(0, 1, 0)])
    client = part_clients.s3(scene.cluster.addresses.s3, scene.cluster.region)
    requests = []
    for ledger_id in range(1, count + 1):
        uuid = str(uuid4())
        for key, content in ((object_name(uuid, ledger_id), b"x" * 1_208), (index_name(uuid, ledger_id), index)):
            client.put_object(Bucket=scene.cluster.bucket, Key=key, Body=content, Metadata=signed)
        requests.append(_request(scene, topic, ledger_id, uuid))
    return requests
