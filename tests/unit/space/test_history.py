"""The history file: lines that can't be parsed, other clusters, and its bound."""

import json
from pathlib import Path

import pytest

from streaming.space import history
from streaming.state.filesystem import Folder, folder_of
from tests.unit.space.reports import AT_MS, REPORT
from udfs.space.causes import Cause
from udfs.space.growth import PastRun, run_of

RUN = run_of(REPORT)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return folder_of(str(tmp_path / "out"))


def test_a_run_is_read_as_it_was_written(folder: Folder) -> None:
    history.add(folder, RUN)
    assert history.read(folder, "east") == [RUN]
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
    history.add(folder, RUN)
    folder.write(history.FILE, line + b"\n" + (folder.read(history.FILE) or b""))
    assert history.read(folder, "east") == [RUN]
    history.add(folder, RUN)
    assert len((folder.read(history.FILE) or b"").splitlines()) == 2


def test_other_clusters_have_their_own_history_in_the_same_file(folder: Folder) -> None:
    west = PastRun(at_ms=AT_MS, cluster="west", complete=True, one_copy=1, stored=2)
    history.add(folder, west)
    history.add(folder, RUN)
    assert history.read(folder, "west") == [west]
    assert history.read(folder, "east") == [RUN]
    assert history.read(folder, "north") == []


def test_the_newest_thousand_runs_are_kept(folder: Folder) -> None:
    old = {"version": 1, "cluster": "east", "complete": True, "one_copy": 0, "stored": 0, "causes": {}}
    lines = [json.dumps({**old, "at_ms": at_ms}) for at_ms in range(1200)]
    folder.write(history.FILE, "\n".join(lines).encode())
    history.add(folder, RUN)
    runs = history.read(folder, "east")
    assert (len(runs), runs[0].at_ms, runs[-1]) == (1000, 201, RUN)
