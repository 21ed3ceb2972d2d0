import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from streaming.adapters.rocksdb.database import opened
from streaming.errors import SafetyError
from streaming.rocketmq.workspace import staging
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import backfill, converted_store, paths

STARTED = staging.Started("abc", 7)


def test_a_run_resumes_matching_parts_and_deletes_the_rest(tmp_path: Path) -> None:
    where = paths(small_store(tmp_path).write().root)
    where.own.mkdir()
    assert not staging.start(where, STARTED, restart=False)
    part = staging.part_path(where, 3)
    part.write_bytes(b"x")
    (part.parent / ".half").write_bytes(b"x")
    assert staging.start(where, STARTED, restart=False)
    assert staging.finished_parts(where) == {"part-00000003.sst"}
    assert not (part.parent / ".half").exists()
    for other in (staging.Started("abd", 7), staging.Started("abc", 8)):
        assert not staging.start(where, other, restart=False)
        assert staging.finished_parts(where) == set()


def test_a_restart_starts_from_scratch(tmp_path: Path) -> None:
    where = paths(small_store(tmp_path).write().root)
    where.own.mkdir()
    staging.start(where, STARTED, restart=False)
    staging.part_path(where, 3).write_bytes(b"x")
    assert not staging.start(where, STARTED, restart=True)
    assert staging.finished_parts(where) == set()


def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    where = paths(small_store(tmp_path).write().root)
    where.staging.mkdir(parents=True)
    nothing = {each.name: None for each in dataclasses.fields(staging.Sealed)}
    for text in ("{", '{"some": 1}', json.dumps(nothing)):
        (where.staging / "sealed.json").write_text(text)
        with pytest.raises(SafetyError, match=r"sealed\.json .*Move this file somewhere else, and run"):
            staging.sealed_of(where)


def test_a_database_counts_as_opened_once_its_current_differs(tmp_path: Path) -> None:
    where = paths(small_store(tmp_path).write().root)
    assert not staging.is_unopened(where, staging.QUEUES)
    backfill(tmp_path)
    assert staging.is_unopened(where, staging.QUEUES)
    assert staging.is_unopened(where, "topics")
    (where.config / "topics" / "CURRENT").write_text("MANIFEST-000099\n")
    assert not staging.is_unopened(where, "topics")


@pytest.mark.parametrize("database", ["consumerOffsets", "topics"])
def test_a_database_that_was_created_again_is_not_ours(tmp_path: Path, database: str) -> None:
    """The CURRENT of each database that is new says the same."""
    where = paths(small_store(tmp_path).write().root)
    backfill(tmp_path)
    said = (where.config / database / "CURRENT").read_text()
    shutil.rmtree(where.config / database)
    with opened(where.config / database, ("kvDataVersion", "forbidden")):
        pass
    assert (where.config / database / "CURRENT").read_text() == said
    assert not staging.is_unopened(where, database)


def test_in_a_copy_the_databases_are_still_ours(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    backfill(tmp_path / "s")
    shutil.copytree(tmp_path / "s", tmp_path / "copy", symlinks=True)
    assert staging.is_unopened(paths(tmp_path / "copy"), "topics")
    assert staging.is_unopened(paths(tmp_path / "copy"), staging.QUEUES)


def test_a_note_of_an_earlier_version_identifies_our_files_by_inode(tmp_path: Path) -> None:
    where = paths(small_store(tmp_path).write().root)
    backfill(tmp_path)
    note = json.loads((where.own / staging.MOVED).read_text())
    del note["times"]
    (where.own / staging.MOVED).write_text(json.dumps(note))
    assert all(staging.is_unopened(where, name) for name in (staging.QUEUES, "topics"))
    for folder in (where.rocksdb, where.config / "topics"):
        (folder / "CURRENT").rename(folder / "CURRENT.old")
        (folder / "CURRENT").write_text((folder / "CURRENT.old").read_text())
    (where.config / "topics").rename(where.config / "topics.old")
    shutil.copytree(where.config / "topics.old", where.config / "topics")
    assert not any(staging.is_unopened(where, name) for name in (staging.QUEUES, "topics"))


def test_nothing_that_only_rocksdict_needs_is_moved_in(tmp_path: Path) -> None:
    converted_store(tmp_path)
    names = {path.name for path in (tmp_path / "consumequeue").iterdir()}
    names |= {path.name for path in (tmp_path / "config" / "topics").iterdir()}
    assert not names & {"LOCK", "LOG", "rocksdict-config.json"}


def test_what_is_kept_never_lies_where_something_else_was_kept(tmp_path: Path) -> None:
    where = paths(small_store(tmp_path).write().root)
    names = []
    for _time in range(3):
        names.append(staging.new_kept(where, 0))
        (where.own / names[-1]).mkdir(parents=True)
    assert names == ["kept-19700101T000000Z", "kept-19700101T000000Z-2", "kept-19700101T000000Z-3"]
