"""Alerts about retries that wait: see test_alerts.py."""

from collections.abc import Iterator

import pytest

from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.home import Part
from streaming.sandbox.orphans import consume_and_trim
from tests.integration.alert_scenes import Scene, alerts, running_scene
from tests.integration.conftest import new_topic, payload, running_cluster
from tests.scrapes import Scrape, firing

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]

ALLOWED = 10_000  # retries, by the alert
MANY = 13_000  # of which some are being tried


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home, here = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("service")
    changes = (
        ("reconsume_later_seconds = 2", "reconsume_later_seconds = 45"),
        ("max_retry_delete_count = 2", "max_retry_delete_count = 1000"),
    )
    with running_cluster(home) as cluster, running_scene(cluster, here, *changes) as created:
        yield created


def test_retries_pile_up_until_the_topic_is_read(scene: Scene) -> None:
    topic = new_topic("read-slowly")
    topics.fill(scene.cluster, topic, 2, ["s"])
    listed = topics.data_ledgers(scene.cluster, topic)[0]
    before = scene.until(lambda scrape: scrape.value("ledger_reaper_accounts_checked_timestamp_seconds"))
    scene.service.request([payload(topic, listed)] * MANY)
    many = scene.until(
        lambda scrape: (
            (scrape.value("ledger_reaper_retries_waiting") or 0) > ALLOWED and _chunks(scrape) > _chunks(before)
        )
    ).growing("ledger_reaper_chunks_committed_total", before)  # the retries are tried again and again
    assert firing((before.working(), 400), (many.working(), 70)) == alerts("RetriesPileUp")
    receipts = scene.service.run("receipts", "--outcome", "RETRY", "--since", "1h", "--limit", "100")
    assert "IN_USE" in receipts
    assert topic.removeprefix("persistent://") in receipts
    consume_and_trim(scene.cluster, topic, "s", topics.ENTRIES_PER_LEDGER)
    after = scene.until(lambda scrape: _requests(scrape, "ALREADY_GONE") >= MANY and _none_waits(scrape))
    assert firing((before.working(), 400), (many.working(), 70), (after.working(), 5)) == set()


def test_retries_are_stuck_until_the_bookie_answers(scene: Scene) -> None:
    topic = new_topic("in-use")
    topics.fill(scene.cluster, topic, 2, ["s"])
    listed = topics.data_ledgers(scene.cluster, topic)[0]
    scene.service.request([payload(topic, listed)])
    before = scene.until(lambda scrape: scrape.value("ledger_reaper_retries_waiting") == 1)
    cluster_faults.kill(scene.cluster, Part.BOOKIE)
    try:
        stuck = scene.until(
            lambda scrape: scrape.value("ledger_reaper_retries_due") and scrape.value("ledger_reaper_outages")
        )
        history = (before.working(), 2), (stuck.working(), 130)
        assert firing(*history) - alerts("TopicParked") == alerts("Outage", "RetriesStuck")
        scene.service.run("status", code=(0, 3, 4))
        scene.service.run("check", code=3)
    finally:
        cluster_faults.restart(scene.cluster, Part.BOOKIE)
    over = scene.until(
        lambda scrape: (
            scrape.value("ledger_reaper_outages") == 0
            and not scrape.value("ledger_reaper_query_parked")
            and _chunks(scrape) > _chunks(stuck)
            and scrape.value("ledger_reaper_retries_due") == 0  # the gauge follows a moment after the chunk
        )
    )
    assert firing(*history, (over.working(), 20)) == set()
    consume_and_trim(scene.cluster, topic, "s", topics.ENTRIES_PER_LEDGER)
    scene.until_receipt(listed, "ALREADY_GONE")
    scene.until(_none_waits)


def _none_waits(scrape: Scrape) -> bool:
    """Whether no retry waits; after the last receipt, because a retry waits nowhere while it is tried."""
    return scrape.value("ledger_reaper_retries_waiting") == scrape.value("ledger_reaper_retries_due") == 0


def _chunks(scrape: Scrape) -> float:
    return scrape.value("ledger_reaper_chunks_committed_total", 'query="retry"') or 0


def _requests(scrape: Scrape, outcome: str) -> float:
    return scrape.value("ledger_reaper_requests_total", f'outcome="{outcome}"') or 0
