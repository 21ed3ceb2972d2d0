"""What a bookie's metrics and configuration say of its disk."""

import pytest

from udfs.formats.bookie_disk import BookieDisk, parse_bookie_disk

DISK = BookieDisk(
    url="http://b1:8000",
    entry_log_bytes=1_000,
    reclaimed_bytes=50,
    minor_threshold=0.2,
    major_threshold=0.8,
    gc_wait_seconds=900,
)
METRICS = """# TYPE bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES gauge
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{indexDir="/a",ledgerDir="/a"} 700
bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{indexDir="/b",ledgerDir="/b"} 300.0
bookie_ACTIVE_ENTRY_LOG_TOTAL{indexDir="/b",ledgerDir="/b"} 9
bookie_RECLAIMED_COMPACTION_SPACE_BYTES{indexDir="/a",ledgerDir="/a"} 2.0E1
bookie_RECLAIMED_DELETION_SPACE_BYTES{indexDir="/a",ledgerDir="/a"} 30
"""


def test_a_bookie_s_metrics_are_summed_over_its_directories() -> None:
    config = {"minorCompactionThreshold": "0.2", "majorCompactionThreshold": "0.8", "gcWaitTime": "900000"}

    assert parse_bookie_disk("http://b1:8000", METRICS, config) == DISK


@pytest.mark.parametrize("config", [None, [], {}, {"gcWaitTime": None, "majorCompactionThreshold": "often"}])
def test_a_bookie_that_hides_its_configuration_still_tells_its_space(config: object) -> None:
    disk = parse_bookie_disk("u", METRICS, config)

    assert (disk.entry_log_bytes, disk.reclaimed_bytes) == (1_000, 50)
    assert (disk.major_threshold, disk.gc_wait_seconds) == (0.0, 0)
