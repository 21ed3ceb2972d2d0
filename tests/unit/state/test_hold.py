"""The note that says why nothing is deleted: there while it holds, gone afterwards, and never a reason to stop."""

from pathlib import Path

import pytest

from streaming.state import hold


def test_a_note_is_there_until_it_is_taken_away(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    assert hold.noted(state) == ("", 0)
    hold.note(state, "", now_ms=1)
    assert not (tmp_path / "state").exists()
    hold.note(state, "paused", now_ms=5)
    hold.note(state, "limit reached", now_ms=7)
    assert hold.noted(state) == ("limit reached", 7)
    hold.note(state, "", now_ms=9)
    assert hold.noted(state) == ("", 0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"why": "x"}'])
def test_a_damaged_note_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "held.json").write_bytes(content)
    assert hold.noted(str(tmp_path)) == ("", 0)


def test_a_note_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    hold.note(str(tmp_path / "state"), "paused", now_ms=1)
    assert hold.noted(str(tmp_path / "state")) == ("", 0)
