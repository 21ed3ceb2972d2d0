"""Deleted bytes, and bytes that bookies have freed on their disks since."""

import json
from dataclasses import asdict, replace

import pytest

from streaming.audit.space import Seen, parse_seen, reasons, reclaimed_between, seen_now
from tests.unit.audit.results import ALONE
from udfs.formats.bookie_disk import BookieDisk

DISK = BookieDisk(
    url="http://b1:8000",
    entry_log_bytes=1_000,
    reclaimed_bytes=50,
    minor_threshold=0.2,
    major_threshold=0.8,
    gc_wait_seconds=900,
)


@pytest.mark.parametrize(
    ("before", "now", "reclaimed"),
    [
        pytest.param([DISK], [replace(DISK, reclaimed_bytes=80)], 30, id="more since"),
        pytest.param([DISK], [DISK], 0, id="nothing since"),
        pytest.param([DISK], [replace(DISK, reclaimed_bytes=20)], 20, id="started anew meanwhile"),
        pytest.param([], [DISK], 0, id="first look: what it did before is not ours"),
        pytest.param([DISK], [], 0, id="did not answer"),
    ],
)
def test_freed_bytes_are_those_that_bookies_counted_between_two_reads(
    before: list[BookieDisk], now: list[BookieDisk], reclaimed: int
) -> None:
    assert reclaimed_between(before, now) == reclaimed


def test_freed_bytes_add_up_over_audits_even_if_a_bookie_does_not_answer_for_a_while() -> None:
    other = replace(DISK, url="http://b2:8000")
    seen = seen_now(None, [DISK, other], 1_000)
    for number, answers in enumerate(
        ([replace(DISK, reclaimed_bytes=60)], [replace(other, reclaimed_bytes=90), replace(DISK, reclaimed_bytes=5)])
    ):
        seen = seen_now(seen, answers, 2_000 + number)

    assert (seen.since_ms, seen.reclaimed) == (1_000, 10 + 40 + 5)
    assert seen_now(Seen(1_000, 5, (DISK,)), [], 3_000) == Seen(1_000, 5, (DISK,))


def test_the_bookies_last_answers_are_read_again_also_those_that_an_earlier_version_wrote() -> None:
    seen = Seen(1_000, 5, (replace(DISK, live_bytes=7, faults=("/api/v1/bookie/gc answers 500",)),))
    earlier = {field: value for field, value in asdict(DISK).items() if value not in (None, ())}

    assert parse_seen(json.dumps(asdict(seen)).encode()) == seen
    assert parse_seen(json.dumps({"since_ms": 1, "reclaimed": 2, "disks": [earlier]}).encode()) == Seen(1, 2, (DISK,))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"since_ms": 1, "reclaimed": 2, "disks": [{"url": 1}, 5]}'])
def test_answers_of_an_unknown_form_start_the_count_again(content: bytes) -> None:
    assert parse_seen(content) is None


@pytest.mark.parametrize(("deleted", "reclaimed", "held"), [(10, 4, 6), (10, 10, 0), (10, 30, 0)])
def test_bytes_still_on_disk_are_those_deleted_and_not_freed(deleted: int, reclaimed: int, held: int) -> None:
    space = replace(ALONE.space, since_ms=1, bookies=1, deleted_since=deleted, reclaimed=reclaimed)

    assert ("deleted since then and still on the disks, at least", held) in space.lines()


def test_the_reasons_for_bytes_on_disk_name_the_bookies_own_settings() -> None:
    text = " ".join(reasons([DISK, replace(DISK, major_threshold=0.5, gc_wait_seconds=60)]))

    assert "every 900 s" in text
    assert "less than 50%" in text
    assert reasons([]) == []


def test_bookies_that_answered_make_their_space_known_even_before_anything_was_deleted() -> None:
    space = replace(ALONE.space, bookies=1, reclaimed_ever=5 << 20)

    assert not ALONE.space.is_known
    assert space.is_known
    assert ("bookies freed on their disks since each was started (all copies)", 5 << 20) in space.lines()
