import os
from pathlib import Path

import pytest

from streaming.state.durable import durable_write


def test_a_file_gets_its_name_once_the_disk_has_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "note").write_text("old")
    flushed, fsync = list[tuple[str, str]](), os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        flushed.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, (tmp_path / "note").read_text()))

    monkeypatch.setattr(os, "fsync", noted)
    durable_write(tmp_path / "note", "new \u00e4")
    assert flushed == [(".note.aside", "old"), (tmp_path.name, "new \u00e4")]
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_a_disk_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_descriptor: int) -> None:
        raise OSError("Input/output error")

    (tmp_path / "note").write_text("old")
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output"):
        durable_write(tmp_path / "note", "new")
    assert (tmp_path / "note").read_text() == "old"
