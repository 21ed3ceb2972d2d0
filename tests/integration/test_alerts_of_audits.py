"""Alerts about audits, and a service about which no alert fires: see test_alerts.py."""

from collections.abc import Iterator

import pytest

from streaming.sandbox import topics
from streaming.sandbox.home import Part
from tests.integration.alert_scenes import Scene, alerts, watching_scene
from tests.integration.conftest import leak, new_topic, payload
from tests.scrapes import Scrape, firing

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with watching_scene(tmp_path_factory) as created:
        yield created


def test_nothing_fires_while_all_is_well(scene: Scene) -> None:
    topic = new_topic("calm")
    topics.fill(scene.cluster, topic, 2, ["s"])
    scene.service.request([payload(topic, *leak(scene.cluster, topic, 1))])
    scene.until(lambda scrape: scrape.value("ledger_deletion_ledgers_deleted_total"))
    scene.service.run("audit")
    scene.service.run("snapshots", "audit")
    calm = scene.until(
        lambda scrape: (
            scrape.value("ledger_reaper_audit_complete") == 1
            and scrape.value("ledger_reaper_snapshot_audit_complete") == 1
            and scrape.value("ledger_reaper_accounts_checked_timestamp_seconds")
            and scrape.value("ledger_reaper_watcher_last_scan_timestamp_seconds")
        )
    )
    assert firing((calm.working(), 50)) == set()
    week = 8 * 24 + 3
    assert firing((calm.working(), week), step_minutes=60) == alerts("AuditTooOld")
    scene.service.run("audit")
    audited = scene.until(lambda scrape: _audited(scrape) > _audited(calm))
    assert firing((calm.working(), week), (audited.working(), 3), step_minutes=60) == set()


def _audited(scrape: Scrape) -> float:
    return scrape.value("ledger_reaper_audit_last_complete_timestamp_seconds") or 0


def test_an_audit_is_incomplete_until_tiered_storage_answers(scene: Scene) -> None:
    scene.cluster.stop(Part.S3)
    try:
        scene.service.run("audit", code=4)
        incomplete = scene.until(lambda scrape: scrape.value("ledger_reaper_audit_complete") == 0)
        assert firing((incomplete, 1)) == alerts("AuditIncomplete")
        assert scene.cluster.addresses.s3 in scene.service.run("audit", "--last", code=4)
    finally:
        scene.cluster.start(Part.S3)
    scene.service.run("audit")
    complete = scene.until(lambda scrape: scrape.value("ledger_reaper_audit_complete") == 1)
    assert firing((incomplete, 1), (complete, 1)) == set()
