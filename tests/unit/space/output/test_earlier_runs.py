"""The history file: lines that can't be parsed, other clusters, and its bound."""

import json
from pathlib import Path

import pytest

from streaming.space.output import earlier_runs
from streaming.state.filesystem import Folder, folder_of
from tests.unit.space.reports import AT_MS, REPORT
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import PastRun, run_of

RUN = run_of(REPORT)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return folder_of(str(tmp_path / "out"))


def test_a_run_is_read_as_it_was_written(folder: Folder) -> None:
    earlier_runs.add(folder, RUN)
    assert earlier_runs.read(folder, "east") == [RUN]
    assert RUN.causes[Cause.BACKLOG] == (60 << 20, 120 << 20)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"7",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"version":2}',
        b'{"version":1,"at_ms":"x"}',
        b'{"version":1,"at_ms":1,"cluster":"east","complete":true,"one_copy":1,"stored":1,"causes":{"new":{}}}',
        b'{"version":1,"at_ms":1,"cluster":"east","complete":true,"one_copy":1,"stored":1,"causes":[]}',
        b'{"version":1,"at_ms":1e999,"cluster":"east","complete":true,"one_copy":1,"stored":1,"causes":{}}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_cannot_be_parsed_hides_no_other(folder: Folder, line: bytes) -> None:
    earlier_runs.add(folder, RUN)
    folder.write(earlier_runs.FILE, line + b"\n" + (folder.read(earlier_runs.FILE) or b""))
    assert earlier_runs.read(folder, "east") == [RUN]
    earlier_runs.add(folder, RUN)
    assert len((folder.read(earlier_runs.FILE) or b"").splitlines()) == 2


def test_other_clusters_have_their_own_history_in_the_same_file(folder: Folder) -> None:
    west = PastRun(at_ms=AT_MS, cluster="west", complete=True, one_copy=1, stored=2)
    earlier_runs.add(folder, west)
    earlier_runs.add(folder, RUN)
    assert earlier_runs.read(folder, "west") == [west]
    assert earlier_runs.read(folder, "east") == [RUN]
    assert earlier_runs.read(folder, "north") == []


def test_the_newest_thousand_runs_are_kept(folder: Folder) -> None:
    old = {"version": 1, "cluster": "east", "complete": True, "one_copy": 0, "stored": 0, "causes": {}}
    lines = [json.dumps({**old, "at_ms": at_ms}) for at_ms in range(1200)]
    folder.write(earlier_runs.FILE, "\n".join(lines).encode())
    earlier_runs.add(folder, RUN)
    runs = earlier_runs.read(folder, "east")
    assert (len(runs), runs[0].at_ms, runs[-1]) == (1000, 201, RUN)
