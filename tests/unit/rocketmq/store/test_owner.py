import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.inspect.plan import plan_of
from streaming.rocketmq.rollback.export import export
from streaming.rocketmq.rollback.run import rollback
from streaming.rocketmq.store.owner import wrong_user
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import CLOCK, backfill, converted_store, everything_below, follow_untouched, paths
from tests.unit.rocketmq.store.test_locks import broker

COMMANDS: list[Callable[[Path], object]] = [
    lambda root: backfill(root, replace=True),
    lambda root: rollback(paths(root), CLOCK),
    lambda root: export(paths(root), paths(root).own / "export-x"),
    follow_untouched,
]


def test_the_owner_of_a_store_may_work_on_it(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    assert wrong_user(paths(tmp_path)) == ""


@pytest.mark.parametrize("command", COMMANDS, ids=["backfill", "rollback", "export", "follow"])
def test_no_other_user_leaves_files_that_the_broker_could_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[Path], object]
) -> None:
    converted_store(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 4_000_000)
    with pytest.raises(SafetyError, match=r"runs as the user 4\d+: the broker could not write"):
        command(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_follow_checks_the_owner_of_a_store_before_it_reads_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the store would refuse it too, unless another user can't read all of it. Here it lets all pass."""
    converted_store(tmp_path)
    before = everything_below(tmp_path)
    monkeypatch.setattr("streaming.rocketmq.follow.run.require_accepted", lambda *_: None)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 4_000_000)
    with pytest.raises(SafetyError, match=r"runs as the user 4\d+: the broker could not write"):
        follow_untouched(tmp_path)
    assert everything_below(tmp_path) == before


def test_a_plan_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_store(tmp_path).write()
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with broker(tmp_path):
        assert {each.code for each in plan_of(paths(tmp_path)).refusals} == {"RUNNING", "WRONG_USER"}
