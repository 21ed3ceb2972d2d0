"""The journal of repairs keeps its order whatever the clock does, and one file that is none hides no other."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from streaming.clock import ManualClock
from streaming.errors import SafetyError, UnavailableError
from streaming.snapshots.repair.repair_journal import Act, RepairJournal
from streaming.state.filesystem import Folder, folder_of
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue

TOPIC, OTHER = "persistent://t/ns/orders", "persistent://t/ns/other"
ABOUT_TOPIC, ABOUT_OTHER = "60d01e33", "86450543"
END = (3, 8)


def _write(journal: RepairJournal, data: bytes, topic: str = TOPIC, act: Act = Act.REPAIR) -> str:
    old = ReadValue(
        kind=SnapshotKind.INDEX, key=topic, topic=topic, position=(1, 7), publish_ms=0, size_bytes=len(data), data=data
    )
    return journal.write(old, b"new", 3, act, END)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(5_000)


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock) -> RepairJournal:
    return RepairJournal(folder_of(str(tmp_path / "journal")), clock)


def _change(journal: RepairJournal, name: str, changes: dict[str, object]) -> None:
    content = json.loads(journal.folder.read(name) or b"")
    journal.folder.write(name, json.dumps(content | changes).encode())


def test_what_was_written_later_comes_first_also_where_the_clock_was_set_back(
    journal: RepairJournal, clock: ManualClock
) -> None:
    numbered = replace(journal, suffix=iter(["ffffffff", "00000000", "88888888", "00000000"]).__next__)
    first = _write(numbered, b"1")
    second = _write(numbered, b"2")  # in the same millisecond
    clock.advance(-4_000)
    third = _write(numbered, b"3")
    clock.advance(60_000)
    fourth = _write(numbered, b"4")
    assert (first, second) == (
        f"000000000005000-{ABOUT_TOPIC}-ffffffff.json",
        f"000000000005001-{ABOUT_TOPIC}-00000000.json",
    )
    assert (third[:15], fourth[:15]) == ("000000000005002", "000000000061000")
    assert [each.replaced for each in journal.of(TOPIC)] == [b"4", b"3", b"2", b"1"]


def test_two_processes_that_write_at_the_same_time_keep_both(journal: RepairJournal) -> None:
    class Behind(Folder):
        """The other one's file is not there yet when this process looks."""

        def names(self, folder: str = "") -> list[str]:
            return []

    first = _write(journal, b"1")
    second = _write(replace(journal, folder=Behind(*_parts(journal.folder))), b"2")
    assert first[:15] == second[:15]
    assert {each.replaced for each in journal.of(TOPIC)} == {b"1", b"2"}


def _parts(folder: Folder) -> tuple[str, pafs.FileSystem, str]:
    return folder.location, folder.filesystem, folder.root


def test_an_entry_says_what_was_replaced_and_how_far_that_came(journal: RepairJournal) -> None:
    name = _write(journal, b"old")
    (entry,) = journal.of(TOPIC)
    assert (entry.position, entry.replaced, entry.by, entry.lost, entry.end) == ((1, 7), b"old", b"new", 3, END)
    assert (entry.begins, entry.is_undo, entry.is_again) == (True, False, False)
    assert (entry.was_sent, entry.is_done) == (False, False)
    journal.mark_sent(name)
    (entry,) = journal.of(TOPIC)
    assert (entry.was_sent, entry.is_done) == (True, False)
    journal.mark_done(name)
    (entry,) = journal.of(TOPIC)
    assert (entry.was_sent, entry.is_done) == (True, True)


@pytest.mark.parametrize(
    ("act", "is_undo", "is_again", "begins"),
    [
        (Act.REPAIR, False, False, True),
        (Act.REPAIR_OF_HALF, False, True, True),
        (Act.AGAIN, False, True, False),
        (Act.UNDO, True, False, False),
    ],
)
def test_an_entry_says_who_replaced_it(
    act: Act, is_undo: bool, is_again: bool, begins: bool, journal: RepairJournal
) -> None:
    _write(journal, b"old", act=act)
    (entry,) = journal.of(TOPIC)
    assert (entry.is_undo, entry.is_again, entry.begins) == (is_undo, is_again, begins)


def test_an_entry_of_an_older_version_counts_as_sent_and_begins_nothing(journal: RepairJournal) -> None:
    content = json.loads(journal.folder.read(_write(journal, b"old")) or b"")
    del content["begins"], content["end"]
    journal.folder.write("000000000009999.json", json.dumps(content).encode())
    entry = next(journal.of(TOPIC))
    assert (entry.name, entry.was_sent, entry.begins, entry.end) == ("000000000009999.json", True, False, BEFORE_ALL)


@pytest.mark.parametrize("content", [b"", b"torn {", b"[1]", b"7", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_object_is_named_and_hides_nothing(
    content: bytes, journal: RepairJournal, caplog: pytest.LogCaptureFixture
) -> None:
    _write(journal, b"old")
    journal.folder.write("000000000009999.json", content)
    with caplog.at_level(logging.WARNING):
        assert [each.replaced for each in journal.of(TOPIC)] == [b"old"]
    assert "000000000009999.json is no JSON object" in caplog.text
    assert _write(journal, b"newer").startswith("000000000010000-")


@pytest.mark.parametrize(
    "name", ["a copy.json", "000000000009999-copy.json", f"9999-{ABOUT_TOPIC}-00000000.json", "backup-9.json"]
)
def test_a_file_that_is_not_named_as_an_entry_is_named_and_does_not_count(
    name: str, journal: RepairJournal, caplog: pytest.LogCaptureFixture
) -> None:
    old = _write(journal, b"old")
    _change(journal, old, {})
    journal.folder.write(name, (journal.folder.read(old) or b"").replace(b"b2xk", b"b3RoZXI="))
    with caplog.at_level(logging.WARNING):
        assert [each.replaced for each in journal.of(TOPIC)] == [b"old"]
    assert f"{name} has no entry's name, and was skipped" in caplog.text
    assert _write(journal, b"newer").startswith("000000000005001-")


class Locked(Folder):
    """Nobody may read these files."""

    def read(self, name: str) -> bytes | None:
        if ABOUT_OTHER in name or name == "000000000009999.json":
            raise UnavailableError(f"{name} can't be read")
        return Folder.read(self, name)


def test_a_file_that_nobody_may_read_ends_nothing_about_other_topics(journal: RepairJournal) -> None:
    _write(journal, b"old")
    _write(journal, b"old", OTHER)
    locked = replace(journal, folder=Locked(*_parts(journal.folder)))
    assert [each.replaced for each in locked.of(TOPIC)] == [b"old"]
    with pytest.raises(UnavailableError, match="can't be read"):
        list(locked.of(OTHER))


def test_an_older_versions_file_that_nobody_may_read_now_is_not_passed_over(journal: RepairJournal) -> None:
    """Its name does not say which topic it is about, and what lies before it may be older than what was replaced."""
    _write(journal, b"old")
    journal.folder.write("000000000009999.json", b"{}")
    locked = replace(journal, folder=Locked(*_parts(journal.folder)))
    with pytest.raises(UnavailableError, match="can't be read"):
        list(locked.of(TOPIC))


@pytest.mark.parametrize(
    "torn",
    [
        {"replaced": "no base64"},
        {"replaced": None},
        {"position": [1]},
        {"position": [float("inf"), 1]},
        {"end": [1, float("inf")]},
        {"lost": "many"},
        {"lost": float("inf")},
    ],
)
def test_an_entry_that_is_torn_is_named_and_ends_nothing_about_other_topics(
    torn: dict[str, object], journal: RepairJournal
) -> None:
    _write(journal, b"old", OTHER)
    name = _write(journal, b"old")
    _change(journal, name, torn)
    assert [each.replaced for each in journal.of(OTHER)] == [b"old"]
    with pytest.raises(SafetyError, match=f"{name} is about {TOPIC}"):
        list(journal.of(TOPIC))


def test_an_entry_that_is_no_json_at_all_ends_what_is_done_about_its_topic(journal: RepairJournal) -> None:
    _write(journal, b"old", OTHER)
    _write(journal, b"old")
    name = _write(journal, b"newer")
    journal.folder.write(name, b"torn {")
    assert [each.replaced for each in journal.of(OTHER)] == [b"old"]
    with pytest.raises(SafetyError, match=f"{name} is no JSON object: check it"):
        list(journal.of(TOPIC))
