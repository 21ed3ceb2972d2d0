"""Spark's temporary files do not pile up: not after a normal end, and not after kill -9."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.errors import ConfigError
from streaming.spark import scratch

CLAIM = """
import sys
from pathlib import Path
from streaming.spark import scratch
folder = scratch.claim(Path(sys.argv[1]))
(folder / "blockmgr-1").mkdir()
(folder / "blockmgr-1" / "rdd_0").write_bytes(b"x" * 1000)
print(folder, flush=True)
sys.stdin.read()
"""


def _process(root: Path) -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_process_removes_its_folder_when_it_ends(tmp_path: Path) -> None:
    process, folder = _process(tmp_path)
    assert (folder / "blockmgr-1" / "rdd_0").exists()

    process.communicate()

    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_a_living_one_uses_stays(tmp_path: Path) -> None:
    killed, left = _process(tmp_path)
    living, used = _process(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert left.exists()

    mine = scratch.claim(tmp_path)

    assert sorted(tmp_path.iterdir()) == sorted([mine, used])
    assert (used / "blockmgr-1" / "rdd_0").exists()
    living.communicate()
    assert list(tmp_path.iterdir()) == [mine]


def test_nothing_but_our_own_folders_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    others = [root / "data", root / "12-0123abcd", root / "ledger-reaper-1", tmp_path / "elsewhere"]
    for other in others:
        (other / "kept").mkdir(parents=True)
    (root / "ledger-reaper-1-0123abcd").symlink_to(tmp_path / "elsewhere")
    (root / "ledger-reaper-2-0123abcd").write_text("a file")

    scratch.claim(root)

    assert all((other / "kept").exists() for other in others)
    assert (root / "ledger-reaper-2-0123abcd").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"spark\.local_dir: .*file"):
        scratch.claim(tmp_path / "file" / "spark")
