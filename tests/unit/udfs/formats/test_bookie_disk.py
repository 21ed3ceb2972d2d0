"""What a bookie's metrics and configuration say of its disk."""

import pytest

from udfs.formats.bookie_disk import BookieAnswers, BookieDisk, has_metrics_of_a_bookie, parse_bookie_disk

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

    assert parse_bookie_disk("http://b1:8000", METRICS, BookieAnswers(config=config)) == DISK


@pytest.mark.parametrize("config", [None, [], {}, {"gcWaitTime": None, "majorCompactionThreshold": "often"}])
def test_a_bookie_that_hides_its_configuration_still_tells_its_space(config: object) -> None:
    disk = parse_bookie_disk("u", METRICS, BookieAnswers(config=config))

    assert (disk.entry_log_bytes, disk.reclaimed_bytes) == (1_000, 50)
    assert (disk.major_threshold, disk.gc_wait_seconds) == (None, 0)


def _cycle(directory: str, *, live: int, at_last_cycle: int, now: int) -> str:
    labels = f'{{indexDir="{directory}",ledgerDir="{directory}"}}'
    return (
        f"bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{labels} {live}\nbookie_ACTIVE_ENTRY_LOG_TOTAL{labels} {live // 100}\n"
        f"bookie_ACTIVE_LEDGER_TOTAL{labels} {at_last_cycle}\nbookie_ledgers_count{labels} {now}\n"
        f"bookie_write_cache_size{labels} 7\n"
    )


@pytest.mark.parametrize(
    ("second", "live", "logs"),
    [
        pytest.param(_cycle("/b", live=300, at_last_cycle=4, now=5), 1_000, 10, id="both have collected"),
        pytest.param(_cycle("/b", live=0, at_last_cycle=0, now=5), None, None, id="not yet since the start"),
        pytest.param(_cycle("/b", live=0, at_last_cycle=0, now=0), 700, 7, id="an empty directory"),
    ],
)
def test_live_bytes_are_known_once_every_directory_was_collected(
    second: str, live: int | None, logs: int | None
) -> None:
    first = _cycle("/a", live=700, at_last_cycle=9, now=10)
    disk = parse_bookie_disk("u", first + second, BookieAnswers())

    assert (disk.live_bytes, disk.entry_logs, disk.write_cache_bytes) == (live, logs, 14)


def test_without_metrics_of_the_last_cycle_live_bytes_are_unknown() -> None:
    disk = parse_bookie_disk("u", METRICS, BookieAnswers())

    assert (disk.live_bytes, disk.entry_logs, disk.ledgers, disk.write_cache_bytes) == (None, None, None, None)


def _details(**directory: object) -> dict[str, object]:
    return {"forceCompacting": False, "majorCompacting": False, "minorCompacting": False, **directory}


def test_the_last_compaction_is_unknown_until_its_counter_counts() -> None:
    started = _details(lastMajorCompactionTime=90, majorCompactionCounter=0)
    done = _details(lastMajorCompactionTime=50, majorCompactionCounter=1)

    assert parse_bookie_disk("u", METRICS, BookieAnswers(gc_details=[started])).last_major_ms is None
    assert parse_bookie_disk("u", METRICS, BookieAnswers(gc_details=[started, done])).last_major_ms == 50


@pytest.mark.parametrize(
    ("gc", "details", "is_collecting"),
    [
        ({"is_in_force_gc": "true"}, None, True),
        ({"is_in_force_gc": "false"}, [_details()], False),
        ({"is_in_force_gc": "false"}, [_details(), _details(minorCompacting=True)], True),
        (None, [_details()], False),
        (None, None, None),
        ([], "x", None),
    ],
)
def test_a_bookie_is_collecting_by_request_or_by_itself(gc: object, details: object, is_collecting: object) -> None:
    assert parse_bookie_disk("u", METRICS, BookieAnswers(gc=gc, gc_details=details)).is_collecting is is_collecting


@pytest.mark.parametrize(
    "info", [None, [], {}, {"totalSpace": "9", "freeSpace": None}, {"totalSpace": -1, "freeSpace": True}]
)
def test_a_disk_of_an_unknown_form_is_unknown(info: object) -> None:
    disk = parse_bookie_disk("u", METRICS, BookieAnswers(info=info))

    assert (disk.disk_total_bytes, disk.disk_free_bytes) == (None, None)


def test_a_threshold_of_0_means_that_a_bookie_never_compacts() -> None:
    assert parse_bookie_disk("u", METRICS, BookieAnswers(config={"majorCompactionThreshold": "0"})).major_threshold == 0


@pytest.mark.parametrize("value", ["NaN", "1e999", "-5", "e", "1" * 5_000])
def test_odd_values_are_ignored(value: str) -> None:
    disk = parse_bookie_disk("u", f"bookie_ledgers_count {value}\n", BookieAnswers(config={"gcWaitTime": "1e999"}))

    assert (disk.ledgers, disk.gc_wait_seconds) == (None, 0)


def test_metrics_of_another_service_are_not_a_bookie_s() -> None:
    assert has_metrics_of_a_bookie(METRICS)
    assert not has_metrics_of_a_bookie("jvm_threads 5\n# bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES 5\n")
