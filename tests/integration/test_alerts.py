"""Alerts fire by their real causes, and end with the command of docs/runbook.md: on a real service and real scrapes.

These are the alerts of holds and of topics; test_alerts_of_*.py have others. NotReady was also seen by hand: the
service's JVM was frozen, and after ten minutes the main loop was called stuck, until the service was started again.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.queries.checkpoints import location_of
from streaming.sandbox import topics
from streaming.sandbox.orphans import consume_and_trim
from streaming.sandbox.parts import part_clients
from tests.combinations import with_connector, with_source
from tests.integration.alert_scenes import Scene, alerts, record, watching_scene
from tests.integration.conftest import create_tenant, leak, new_topic, payload
from tests.integration.missing_world import filled
from tests.scrapes import Scrape, firing
from udfs.formats.store_migration import MIGRATION_PATH

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]

LIMIT = 60  # deletes within an hour


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with watching_scene(tmp_path_factory, limits=f"max_deletes_per_hour = {LIMIT}") as created:
        yield created


def test_data_missing_until_undo_restores_it(scene: Scene) -> None:
    topic = filled(scene, "missing")
    lost = scene.listed(topic)[1]
    scene.delete_journaled(topic, lost)
    scene.service.run("audit", code=4)
    missing = scene.until(lambda scrape: scrape.value("ledger_reaper_audit_findings", 'class="MISSING"'))
    assert firing((missing, 1)) == alerts("DataMissing")

    assert str(lost) in scene.service.run("audit", "--last", code=4)
    assert f"undo --ledger {lost}" in scene.service.run("explain", "--topic", topic, code=4)
    scene.service.run("undo", "--ledger", str(lost))
    scene.service.run("audit")
    assert (
        firing((scene.until(lambda scrape: not scrape.value("ledger_reaper_audit_findings", 'class="MISSING"')), 1))
        == set()
    )


@with_connector
def test_a_topic_is_parked_until_the_fallback_has_read_it(scene: Scene) -> None:
    with part_clients.pulsar_client(scene.cluster.addresses.pulsar) as client:
        producer = client.create_producer(scene.requests)
        producer.send(payload(new_topic("odd"), 10**15), event_timestamp=1 << 62)  # the connector fails there
        producer.close()
    parked = scene.until(lambda scrape: scrape.value("ledger_reaper_query_parked"))
    assert firing((parked, 12)) == alerts("TopicParked")
    check = scene.service.run("check", code=(0, 3))  # 0: the fallback was faster
    assert "ArithmeticException: long overflow" in check or "no topic is parked" in check
    assert firing((scene.until(lambda scrape: not scrape.value("ledger_reaper_query_parked")), 12)) == set()


@with_source
def test_a_topic_is_parked_until_its_checkpoint_can_be_written(scene: Scene) -> None:
    offsets = Path(location_of(scene.service.settings, "requests"), "offsets")
    kept = offsets.with_name("kept")
    later = new_topic("later")
    offsets.rename(kept)
    offsets.touch()
    try:
        scene.service.request([payload(later, 10**15)])
        parked = scene.until(lambda scrape: scrape.value("ledger_reaper_query_parked"))
        assert firing((parked, 12)) == alerts("TopicParked")
    finally:
        offsets.unlink()
        kept.rename(offsets)
    assert firing((scene.until(lambda scrape: not scrape.value("ledger_reaper_query_parked")), 12)) == set()
    scene.until_receipt(10**15, "ALREADY_GONE")


def test_topics_that_shrink_until_their_lists_are_accepted(scene: Scene) -> None:
    topic = new_topic("shrinks")
    topics.fill(scene.cluster, topic, 12, ["s"])
    first, held = leak(scene.cluster, topic, 2)
    scene.service.request([payload(topic, first)])
    scene.until_receipt(first, "DELETED")
    consume_and_trim(scene.cluster, topic, "s", 9 * topics.ENTRIES_PER_LEDGER)
    scene.service.request([payload(topic, held)])

    def times(scrape: Scrape) -> float:
        # a series that appears is no increase
        return scrape.value("ledger_reaper_requests_total", 'reason="SOURCE_SHRANK"', 'query="retry"') or 0

    before = scene.until(times)
    after = scene.until(lambda scrape: times(scrape) > times(before))
    assert firing((before, 5), (after, 20)) == alerts("TopicShrank")
    assert topic.removeprefix("persistent://") in scene.service.run(
        "receipts", "--reason", "SOURCE_SHRANK", "--since", "2h"
    )
    scene.service.run("accept", "--topic", topic)
    scene.until_receipt(held, "DELETED")
    accepted = scene.until(lambda scrape: scrape.value("ledger_reaper_retries_due") == 0)
    assert firing((before, 5), (after, 20), (accepted.working(), 65)) == set()


def test_a_migration_until_its_znode_is_gone(scene: Scene) -> None:
    with closing(ZooKeeperStore(ZooKeeperClientSettings(hosts=scene.cluster.addresses.zookeeper))) as store:
        store.create(MIGRATION_PATH, b'{"phase":"FAILED","targetUrl":"oxia://oxia1:6648/default"}', parents=True)
        try:
            leaving = scene.until(lambda scrape: scrape.value("ledger_reaper_metadata_migration"))
            assert firing((leaving, 20)) == alerts("MetadataMigration")
            assert "has phase FAILED" in " ".join(scene.service.run("status", code=(0, 3, 4)).split())
        finally:
            store.delete(MIGRATION_PATH)
    assert firing((scene.until(lambda scrape: not scrape.value("ledger_reaper_metadata_migration")), 20)) == set()


def test_a_tenant_is_held_and_a_pause_is_forgotten_until_both_are_resumed(scene: Scene) -> None:
    create_tenant(scene.cluster, "shop", "prod")
    names = [f"persistent://shop/prod/t{number}" for number in range(8)]
    for name in names:
        topics.fill(scene.cluster, name, 1, ["s"])
    known = [payload(name, *leak(scene.cluster, name, 1)) for name in names]
    before = scene.scrape().value("ledger_deletion_ledgers_deleted_total") or 0
    scene.service.request(known)
    scene.until(lambda scrape: (scrape.value("ledger_deletion_ledgers_deleted_total") or 0) >= before + len(names))
    later = [payload(name, *leak(scene.cluster, name, 1)) for name in names]
    for name in names:
        assert topics.delete_topic(scene.cluster, name)
    scene.service.request(later)
    held = scene.until(lambda scrape: scrape.value("ledger_reaper_tenant_held", 'tenant="shop"'))
    assert firing((held, 20)) == alerts("TenantHeld")

    scene.service.run("pause", "--why", "an upgrade of the bookies")
    topic = new_topic("waiting")
    scene.service.request(payload(topic, 10**15 + number) for number in range(5))
    paused = scene.until(
        lambda scrape: (
            scrape.value("ledger_reaper_paused") == 1 and scrape.value("ledger_reaper_backlog_oldest_timestamp_seconds")
        )
    )
    record("paused", paused)
    assert firing((paused.working(), 4 * 60 + 2)) == alerts("PausedTooLong", "TenantHeld")
    assert "an upgrade of the bookies" in scene.service.run("status")
    scene.service.run("resume")
    resumed = scene.until(lambda scrape: scrape.value("ledger_reaper_paused") == 0)
    assert firing((paused.working(), 4 * 60 + 2), (resumed.working(), 20)) == alerts("TenantHeld")
    scene.service.run("resume", "--tenant", "shop")
    released = scene.until(lambda scrape: scrape.value("ledger_reaper_tenants_held") == 0)
    assert firing((paused.working(), 4 * 60 + 2), (released.working(), 20)) == set()


def test_a_limit_until_it_is_resumed(scene: Scene) -> None:
    topic = new_topic("many")
    topics.fill(scene.cluster, topic, 2, ["s"])
    scene.service.request(payload(topic, ledger_id) for ledger_id in leak(scene.cluster, topic, LIMIT + 1))
    reached = scene.until(lambda scrape: scrape.value("ledger_reaper_limit_reached"))
    assert firing((reached, 20)) == alerts("LimitReached")
    scene.service.run("resume", "--limit")
    released = scene.until(lambda scrape: not scrape.value("ledger_reaper_limit_reached"))
    assert firing((reached, 20), (released.working(), 20)) == set()
