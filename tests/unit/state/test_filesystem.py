"""A state file appears complete under its name, or its predecessor stays; on a local disk it is flushed by then."""

import os
from pathlib import Path

import pytest

from streaming.errors import UnavailableError
from streaming.state.filesystem import Folder, folder_of


class KilledError(BaseException):
    """The process died here."""


def _begin_and_die(folder: Folder) -> None:
    with folder.new_file("a.json") as path:
        Path(path).write_bytes(b"ne")
        assert folder.read("a.json") == b"old"
        assert folder.names() == ["a.json"]
        raise KilledError


def _listed(folder: Folder) -> list[str]:
    return sorted(each.name for each in Path(folder.root).iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return folder_of(str(tmp_path / "state"))


def test_the_last_write_is_read_back_and_no_other_file_is_left(folder: Folder) -> None:
    assert folder.read("a.json") is None
    assert folder.names() == []
    folder.write("a.json", b"1")
    folder.write("a.json", b"22")
    folder.write("below/b.json", b"3")
    assert (folder.read("a.json"), folder.read("below/b.json")) == (b"22", b"3")
    assert (folder.names(), folder.names("below"), folder.folders()) == (["a.json"], ["b.json"], ["below"])
    assert _listed(folder) == ["a.json", "below"]


def test_a_file_is_deleted_once(folder: Folder) -> None:
    folder.write("a.json", b"1")
    assert folder.delete("a.json")
    assert not folder.delete("a.json")
    assert folder.read("a.json") is None


def test_until_a_file_is_whole_the_one_before_it_stays(folder: Folder) -> None:
    folder.write("a.json", b"old")
    with pytest.raises(KilledError):
        _begin_and_die(folder)
    assert folder.read("a.json") == b"old"


def test_a_file_that_a_kill_left_half_written_does_not_exist_and_is_overwritten(folder: Folder) -> None:
    folder.write("a.json", b"old")
    Path(folder.root, ".a.json.unfinished").write_bytes(b"ne")
    assert folder.names() == ["a.json"]
    folder.write("a.json", b"new")
    assert folder.read("a.json") == b"new"
    assert _listed(folder) == ["a.json"]


def test_the_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_the_call_returns(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[str, bool]] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        fsync(descriptor)
        what = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(folder.root)
        flushed.append((str(what), Path(folder.root, "below/a.json").exists()))

    monkeypatch.setattr(os, "fsync", spy)
    folder.write("below/a.json", b"1")
    assert flushed == [("below/.a.json.unfinished", False), ("below", True), (".", True)]


def test_a_disk_that_refuses_is_reported_and_the_old_file_stays(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a.json", b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnavailableError, match="No space left"):
        folder.write("a.json", b"new")
    assert folder.read("a.json") == b"old"
    assert _listed(folder) == ["a.json"]


def test_an_invalid_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = folder_of(str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="can't be written"):
        folder.write("a.json", b"1")
