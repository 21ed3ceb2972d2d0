"""The record of batches that were read without the connector: complete, small, and used by many threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streaming.state.notes.worked_off import WorkedOff
from udfs.entry_ranges import EntrySpan

ONE, OTHER = "persistent://acme/reaper/requests-partition-0", "persistent://acme/reaper/requests-partition-1"


def test_batches_that_follow_each_other_are_one_span(tmp_path: Path) -> None:
    noted = WorkedOff(str(tmp_path / "state"))
    assert noted.recall() == {}
    noted.note({ONE: [EntrySpan(5, 3, 4)]})
    noted.note({ONE: [EntrySpan(5, 0, 2), EntrySpan(6, 0, 0)], OTHER: [EntrySpan(5, 7, 7)]})
    noted.note({ONE: [EntrySpan(6, 2, 3)]})
    assert WorkedOff(str(tmp_path / "state")).recall() == {
        ONE: [EntrySpan(5, 0, 4), EntrySpan(6, 0, 0), EntrySpan(6, 2, 3)],
        OTHER: [EntrySpan(5, 7, 7)],
    }


def test_the_newest_ledgers_are_kept(tmp_path: Path) -> None:
    noted = WorkedOff(str(tmp_path))
    noted.note({ONE: [EntrySpan(ledger, 0, 0) for ledger in range(1_500)], OTHER: []})
    assert [span.ledger for span in noted.recall()[ONE]] == list(range(500, 1_500))


def test_many_threads_lose_no_note(tmp_path: Path) -> None:
    noted = WorkedOff(str(tmp_path))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: noted.note({ONE: [EntrySpan(5, 2 * n, 2 * n)]}), range(40)))
    assert len(noted.recall()[ONE]) == 40


@pytest.mark.parametrize("content", ["{", "[]", '{"p": 5}', '{"p": [[1]]}'])
def test_a_damaged_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "worked-off.json").write_text(content)
    noted = WorkedOff(str(tmp_path))
    assert noted.recall() == {}
    noted.note({ONE: [EntrySpan(5, 0, 0)]})
    assert noted.recall() == {ONE: [EntrySpan(5, 0, 0)]}


def test_a_disk_that_refuses_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    WorkedOff(str(tmp_path / "state")).note({ONE: [EntrySpan(5, 0, 0)]})


def test_topics_that_come_and_go_do_not_grow_the_file_for_ever(tmp_path: Path) -> None:
    noted = WorkedOff(str(tmp_path))
    noted.note({ONE: [EntrySpan(5, 0, 0)], OTHER: [EntrySpan(5, 0, 0)]})
    noted.note({f"persistent://acme/reaper/d{n}-partition-0": [EntrySpan(5, 0, 0)] for n in range(9_999)})
    noted.note({OTHER: [EntrySpan(6, 0, 0)]})
    assert len(noted.recall()) == 10_000
    assert ONE not in noted.recall()
    assert noted.recall()[OTHER] == [EntrySpan(5, 0, 0), EntrySpan(6, 0, 0)]
