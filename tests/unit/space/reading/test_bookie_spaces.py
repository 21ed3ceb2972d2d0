"""Bookies are compared with what ledgers' ensembles place there."""

import pytest

from streaming.errors import UnavailableError
from tests.unit.space.cluster import BOOKIES, ENTRY_BYTES, Cluster
from udfs.formats.bookie_disk import BookieDisk


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_bookies_are_compared_with_what_ensembles_place_there(cluster: Cluster) -> None:
    cluster.topic(1)
    cluster.ledger(2, bookies=BOOKIES[:1], custom={})
    cluster.bookies.addresses = {
        BOOKIES[0]: "http://zero",
        "bookie-2:3181": "",
        "bookie-3:3181": "http://three",
        "named": "",
    }
    cluster.bookies.read_only_ids = {"bookie-3:3181"}
    cluster.bookies.disks["http://zero"] = BookieDisk(
        url="http://zero",
        entry_log_bytes=900,
        reclaimed_bytes=7,
        minor_threshold=0.2,
        major_threshold=0.5,
        gc_wait_seconds=900,
        live_bytes=900,
    )
    report = cluster.measure()
    zero, one, two, three, named = report.bookies
    record = 1_000 + 10 * ENTRY_BYTES
    assert (zero.ledgers, zero.live, zero.reported_live, zero.reclaimed) == (2, 2 * record, 900, 7)
    assert (one.ledgers, one.live, one.is_registered) == (1, record, False)
    assert (two.live, two.is_registered) == (0, True)
    assert two.faults == (
        "it registers no HTTP server (httpServerEnabled), and no metrics of a bookie are served at http://bookie-2:8000",
    )
    assert named.faults == ("it registers no HTTP server (httpServerEnabled)",)
    assert three.faults
    assert [unknown.what for unknown in report.unknown] == ["bookie bookie-1:3181", "bookie bookie-3:3181"]
    assert sum(bookie.live for bookie in report.bookies) == sum(share.stored for share in report.shares)
    assert [each.is_read_only for each in report.bookies] == [False, None, False, True, False]
    assert [bookie.bookie_id for bookie in cluster.measure(bookies=[BOOKIES[1]]).bookies] == [BOOKIES[1]]


def test_without_registrations_nothing_is_known_about_who_runs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> dict[str, str]:
        raise UnavailableError("no answer")

    cluster.topic(1)
    monkeypatch.setattr(cluster.bookies, "registered", away)
    report = cluster.measure()
    assert [(bookie.bookie_id, bookie.is_registered) for bookie in report.bookies] == [(each, True) for each in BOOKIES]
    assert [unknown.what for unknown in report.unknown] == ["bookies"]


def test_a_bookie_without_a_registered_address_is_asked_for_its_metrics_where_they_are_by_default(
    cluster: Cluster,
) -> None:
    cluster.bookies.addresses = {BOOKIES[0]: "", BOOKIES[1]: ""}
    url = f"http://{BOOKIES[0].partition(':')[0]}:8000"
    cluster.bookies.disks[url] = BookieDisk(
        url=url,
        entry_log_bytes=900,
        reclaimed_bytes=7,
        minor_threshold=None,
        major_threshold=None,
        gc_wait_seconds=0,
        ledgers=5,
        faults=("/api/v1/bookie/info: 404",),
    )
    (bookie,) = cluster.measure(bookies=[BOOKIES[0]]).bookies
    assert (bookie.reported_ledgers, bookie.faults) == (5, ("/api/v1/bookie/info: 404",))
