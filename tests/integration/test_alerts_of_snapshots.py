"""Alerts about snapshots of aborted transactions and their guards: see test_alerts.py."""

from collections.abc import Iterator

import pytest

from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.home import Part
from tests.integration import snapshot_scenes
from tests.integration.alert_scenes import Scene, alerts, record, running_scene
from tests.integration.conftest import _deployment
from tests.integration.snapshot_scenes import (
    SEGMENTED,
    cluster_in,
    create_silent_scene,
    findings,
    lose_segments,
    run_repair,
)
from tests.scrapes import firing

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, snapshot_scenes.Scene]]:
    """A topic whose segments were trimmed before the service, which guards them, started."""
    home, here = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("service")
    with cluster_in(home, SEGMENTED) as cluster:
        before = _deployment(cluster, tmp_path_factory.mktemp("before"), classes="")
        lost = create_silent_scene(cluster, before, "lost", 500)
        lose_segments(cluster, lost.space)
        guarding = ("[checkpoints]", "[snapshots]\nguard_every_seconds = 5\n[checkpoints]")
        with running_scene(cluster, here, guarding) as created:
            yield created, lost


def test_snapshots_in_danger_until_the_topic_is_repaired(losing: tuple[Scene, snapshot_scenes.Scene]) -> None:
    scene, lost = losing
    noticed = scene.until(lambda scrape: scrape.value("ledger_reaper_snapshot_guard_lost_segments"))
    assert firing((noticed, 1)) == alerts("SnapshotsInDanger")
    missing = [line for line in findings(scene.service) if line.get("class") == "MISSING"]
    assert {(line["topic"], line["reason"]) for line in missing} == {(lost.topic, "SEGMENT_LOST")}
    assert all("snapshots repair --topic" in line["do"] for line in missing)
    danger = scene.until(lambda scrape: scrape.value("ledger_reaper_snapshot_findings", 'class="MISSING"'))
    assert firing((danger, 1)) == alerts("SnapshotsInDanger")
    topics.unload(scene.cluster, lost.topic)
    assert run_repair(scene.service, lost.topic)["is_verified"]
    findings(scene.service)
    repaired = scene.until(
        lambda scrape: (
            not (
                scrape.value("ledger_reaper_snapshot_guard_lost_segments")
                or scrape.value("ledger_reaper_snapshot_findings", 'class="MISSING"')
                or scrape.value("ledger_reaper_snapshot_findings", 'class="DANGER"')
            )
        )
    )
    assert firing((danger, 5), (repaired, 5)) == set()
    record("guards", repaired)


def test_a_guard_is_late_until_the_bookie_answers(losing: tuple[Scene, snapshot_scenes.Scene]) -> None:
    scene, lost = losing
    before = scene.until(lambda scrape: scrape.value("ledger_reaper_snapshot_guards"))
    cluster_faults.kill(scene.cluster, Part.BOOKIE)
    try:
        late = scene.until(lambda scrape: scrape.value("ledger_reaper_snapshot_guard_failures"))
        assert firing((before, 5), (late.working(), 35)) == alerts("GuardLate")
        assert "GUARD NOT UPDATED" in scene.service.run("snapshots", "guard", "--yes", code=(3, 4))
    finally:
        cluster_faults.restart(scene.cluster, Part.BOOKIE)
    assert f"{lost.space}: guarded" in scene.service.run("snapshots", "guard", "--yes")
    again = scene.until(
        lambda scrape: (
            scrape.value("ledger_reaper_snapshot_guard_failures") == 0 and scrape.value("ledger_reaper_snapshot_guards")
        )
    )
    assert firing((before, 5), (late.working(), 35), (again.working(), 5)) == set()
