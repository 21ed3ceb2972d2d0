"""The journal of repairs keeps its order whatever the clock does, and one file that is none hides no other."""

import json
import logging
from pathlib import Path

import pytest

from streaming.clock import ManualClock
from streaming.errors import SafetyError
from streaming.snapshots.repair_journal import Act, RepairJournal
from streaming.state.filesystem import folder_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import Read

TOPIC, OTHER = "persistent://t/ns/orders", "persistent://t/ns/other"


def _old(data: bytes, topic: str = TOPIC) -> Read:
    return Read(SnapshotKind.INDEX, topic, topic, (1, 7), 0, len(data), data=data)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(5_000)


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock) -> RepairJournal:
    return RepairJournal(folder_of(str(tmp_path / "journal")), clock)


def test_what_was_written_later_comes_first_also_where_the_clock_was_set_back(
    journal: RepairJournal, clock: ManualClock
) -> None:
    first = journal.write(_old(b"1"), b"", 0, Act.REPAIR)
    second = journal.write(_old(b"2"), b"", 0, Act.REPAIR)  # in the same millisecond
    clock.advance(-4_000)
    third = journal.write(_old(b"3"), b"", 0, Act.REPAIR)
    clock.advance(60_000)
    fourth = journal.write(_old(b"4"), b"", 0, Act.REPAIR)
    assert [first, second, third] == [f"00000000000500{number}.json" for number in range(3)]
    assert fourth == "000000000061000.json"
    assert [each.replaced for each in journal.of(TOPIC)] == [b"4", b"3", b"2", b"1"]


def test_an_entry_says_what_was_replaced_and_how_far_that_came(journal: RepairJournal) -> None:
    name = journal.write(_old(b"old"), b"new", 3, Act.REPAIR)
    (entry,) = journal.of(TOPIC)
    assert (entry.position, entry.replaced, entry.by, entry.lost) == ((1, 7), b"old", b"new", 3)
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
    journal.write(_old(b"old"), b"new", 0, act)
    (entry,) = journal.of(TOPIC)
    assert (entry.is_undo, entry.is_again, entry.begins) == (is_undo, is_again, begins)


def test_an_entry_of_an_older_version_counts_as_sent_and_begins_nothing(journal: RepairJournal) -> None:
    name = journal.write(_old(b"old"), b"new", 3, Act.REPAIR)
    content = json.loads(journal.folder.read(name) or b"")
    del content["begins"]
    journal.folder.write(name, json.dumps(content).encode())
    (entry,) = journal.of(TOPIC)
    assert (entry.was_sent, entry.begins) == (True, False)


@pytest.mark.parametrize("content", [b"", b"torn {", b"[1]", b"7", b"\xff\xfe"])
def test_a_file_that_is_no_json_object_is_named_and_hides_nothing(
    content: bytes, journal: RepairJournal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.write(_old(b"old"), b"new", 0, Act.REPAIR)
    journal.folder.write("000000000009999.json", content)
    with caplog.at_level(logging.WARNING):
        assert [each.replaced for each in journal.of(TOPIC)] == [b"old"]
    assert "000000000009999.json is no JSON object" in caplog.text
    assert journal.write(_old(b"newer"), b"new", 0, Act.REPAIR) == "000000000010000.json"


@pytest.mark.parametrize("torn", [{"replaced": "no base64"}, {"replaced": None}, {"position": [1]}, {"lost": "many"}])
def test_an_entry_that_is_torn_is_named_and_ends_nothing_about_other_topics(
    torn: dict[str, object], journal: RepairJournal
) -> None:
    journal.write(_old(b"old", OTHER), b"new", 0, Act.REPAIR)
    name = journal.write(_old(b"old"), b"new", 0, Act.REPAIR)
    content = json.loads(journal.folder.read(name) or b"")
    journal.folder.write(name, json.dumps(content | torn).encode())
    assert [each.replaced for each in journal.of(OTHER)] == [b"old"]
    with pytest.raises(SafetyError, match=f"{name} is about {TOPIC}"):
        list(journal.of(TOPIC))
