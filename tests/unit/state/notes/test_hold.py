"""The note with the reason why nothing is deleted: it exists during the hold only, and never stops the service."""

from pathlib import Path

import pytest

from streaming.state.notes import hold


def test_a_note_exists_until_it_is_removed(tmp_path: Path) -> None:
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
def test_a_damaged_note_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "held.json").write_bytes(content)
    assert hold.noted(str(tmp_path)) == ("", 0)


def test_a_note_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    hold.note(str(tmp_path / "state"), "paused", now_ms=1)
    assert hold.noted(str(tmp_path / "state")) == ("", 0)
