"""A note: deleted by None, damaged if it can't be parsed, and without errors for optional reads."""

from pathlib import Path

import pytest

from streaming.errors import UnavailableError
from streaming.state.notes.note import DamagedNoteError, Note

NOTE: Note[int] = Note("note.json", encode=lambda number: {"number": number}, decode=lambda note: int(note["number"]))


def test_the_newest_note_is_read_until_it_is_deleted(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    assert NOTE.read(state) is None
    NOTE.write(state, 5)
    NOTE.try_write(state, 7)
    assert (NOTE.read(state), NOTE.try_read(state)) == (7, 7)
    NOTE.write(state, None)
    assert NOTE.read(state) is None
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"null", b'{"number": "x"}', b"{}", b"\xff"])
def test_a_damaged_note_is_an_error_for_those_who_do_not_only_try(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "note.json").write_bytes(content)
    with pytest.raises(DamagedNoteError, match=r"note\.json can't be read.*remove it to start over"):
        NOTE.read(str(tmp_path))
    assert NOTE.try_read(str(tmp_path)) is None


def test_a_disk_that_refuses_is_an_error_for_those_who_do_not_only_try(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    state = str(tmp_path / "state")
    with pytest.raises(UnavailableError):
        NOTE.write(state, 5)
    NOTE.try_write(state, 5)
    assert NOTE.try_read(state) is None
