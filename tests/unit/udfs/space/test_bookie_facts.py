"""A bookie's own answers beside what ensembles say about it."""

from dataclasses import fields, replace

from udfs.formats.bookie_disk import BookieDisk
from udfs.space.bookie_facts import with_reported
from udfs.space.space_report import BookieSpace

SPACE = BookieSpace(bookie_id="b:3181", url="http://b:8000", is_read_only=False, ledgers=3, live=700)
DISK = BookieDisk(
    url="http://b:8000",
    entry_log_bytes=690,
    reclaimed_bytes=30,
    minor_threshold=0.2,
    major_threshold=0.5,
    gc_wait_seconds=900,
    live_bytes=690,
    entry_logs=3,
    ledgers=5,
    write_cache_bytes=4,
    disk_total_bytes=1_000,
    disk_free_bytes=400,
    last_minor_ms=8,
    last_major_ms=7,
    is_collecting=False,
)


def test_a_bookie_that_answers_everything_leaves_no_fact_open() -> None:
    reported = with_reported(SPACE, DISK)

    assert None not in [getattr(reported, field.name) for field in fields(reported)]
    assert (reported.live, reported.reported_live, reported.uncollected_ledgers) == (700, 690, 2)


def test_before_its_first_collection_a_bookie_reports_no_live_bytes() -> None:
    assert with_reported(SPACE, replace(DISK, entry_log_bytes=0, live_bytes=None)).reported_live is None


def test_no_compaction_is_an_answer_and_no_settings_are_none() -> None:
    off = with_reported(SPACE, replace(DISK, major_threshold=0.0))
    silent = with_reported(SPACE, replace(DISK, major_threshold=None, gc_wait_seconds=0, faults=("no settings",)))

    assert off.major_threshold == 0
    assert (silent.major_threshold, silent.gc_wait_seconds, silent.faults) == (None, None, ("no settings",))
