import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.convert import backfill as backfill_module
from streaming.rocketmq.convert.index_database import IndexDatabase
from streaming.rocketmq.workspace.handover import give_back
from tests import rocketmq_store
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.convert.test_backfill import KilledError, database_of, expected_of
from tests.unit.rocketmq.converted import backfill, check, files_below, paths
from tests.unit.rocketmq.followed_store import follow, grown, written


class Step(NamedTuple):
    """Where a kill comes: before a function does its work, or behind it."""

    where: Any
    name: str
    is_done: bool

    def __str__(self) -> str:
        return f"{'behind' if self.is_done else 'before'} {self.name}"


STEPS = [
    Step(IndexDatabase, "settle", is_done=False),
    Step(IndexDatabase, "settle", is_done=True),
    Step(backfill_module, "write_databases", is_done=True),
    Step(backfill_module, "take_over", is_done=False),
    Step(backfill_module, "take_over", is_done=True),
    Step(backfill_module, "seal", is_done=True),
    Step(backfill_module, "move_in", is_done=False),
]


def followed(root: Path, *, is_one_file: bool) -> Store:
    """A store that was followed to its end, but for what stands behind the last record that is known to be whole."""
    store = small_store(root) if not is_one_file else grown(Store(root, log_file_bytes=1 << 16), 30)
    written(store)
    follow(root)
    store.put(Message("T"))
    store.put(Message("T", sys_flag=4))  # no queue has it: the log ends behind the last message of any queue
    return written(store)


def killed(root: Path, step: Step) -> None:
    """Convert the store, and be killed there."""
    real: Callable[..., Any] = getattr(step.where, step.name)

    def dying(*words: Any, **named: Any) -> None:
        if step.is_done:
            real(*words, **named)
        raise KilledError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step.where, step.name, dying)
        with pytest.raises(KilledError):
            backfill(root)


@pytest.mark.parametrize(
    ("step", "is_one_file"),
    [
        *(pytest.param(step, False, id=f"{step}, many files") for step in STEPS),
        pytest.param(STEPS[4], True, id=f"{STEPS[4]}, one file"),
        *(
            pytest.param(step, True, id=f"{step}, one file", marks=pytest.mark.long)
            for step in STEPS
            if step is not STEPS[4]
        ),
    ],
)
def test_the_database_of_follow_is_used_after_an_interrupted_takeover(
    tmp_path: Path, step: Step, is_one_file: bool
) -> None:
    store = followed(tmp_path, is_one_file=is_one_file)
    before = files_below(tmp_path)
    killed(tmp_path, step)
    assert files_below(tmp_path) == before
    result = backfill(tmp_path)
    assert (result.resumed, result.files) == (True, 0)
    assert database_of(tmp_path) == expected_of(store)
    assert check(tmp_path).findings == ()
    assert not (tmp_path / "ledger-reaper" / "staging").exists()
    assert not (tmp_path / "ledger-reaper" / "follow").exists()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, id=str(step), marks=pytest.mark.long if index in (1, 3) else ())
        for index, step in enumerate(STEPS[:5])
    ],
)
def test_it_is_followed_further_though_a_backfill_was_cut_short(tmp_path: Path, step: Step) -> None:
    store = followed(tmp_path, is_one_file=False)
    killed(tmp_path, step)
    written(grown(store, 40))  # the broker went on in file mode
    assert follow(tmp_path) >= 39, "it began anew, with the units of the file queues"
    result = backfill(tmp_path)
    assert (result.resumed, result.files) == (True, 0)
    assert database_of(tmp_path) == expected_of(store)
    assert check(tmp_path).findings == ()


def test_a_sealed_database_stays_in_the_staging_folder(tmp_path: Path) -> None:
    store = followed(tmp_path, is_one_file=False)
    killed(tmp_path, STEPS[5])
    where = paths(tmp_path)
    give_back(where)
    assert not where.follow_queues.exists()
    backfill(tmp_path)
    assert database_of(tmp_path) == expected_of(store)


def test_an_unfinished_database_of_backfill_is_not_taken_for_that_of_follow(tmp_path: Path) -> None:
    store = followed(tmp_path, is_one_file=False)
    killed(tmp_path, STEPS[4])
    shutil.rmtree(tmp_path / "ledger-reaper" / "staging" / "consumequeue")  # of that, nothing is left
    killed(tmp_path, Step(backfill_module, "join", is_done=True))
    assert not backfill(tmp_path).files  # the parts are there, and are joined once more
    assert database_of(tmp_path) == expected_of(store)
    assert not (tmp_path / "ledger-reaper" / "follow").exists()


def test_follow_does_not_invent_unknown_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit of the schedule topic says when its message is due; a wrong one would have it come at another time."""
    monkeypatch.setattr(rocketmq_store, "DELAYS_S", (1, 5, 7200))  # as messageDelayLevel=1s 5s 2h
    store = written(small_store(tmp_path))
    follow(tmp_path)
    written(grown(store, 20))
    follow(tmp_path)
    store.put(Message(rocketmq_store.SCHEDULE, 2, level=3))
    written(grown(store, 3))
    follow(tmp_path)
    with pytest.raises(SafetyError, match="messageDelayLevel"):
        backfill(tmp_path)
    backfill(tmp_path, restart=True)
    assert database_of(tmp_path) == expected_of(store)


def test_a_database_whose_deletion_was_interrupted_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = followed(tmp_path, is_one_file=False)

    def dying(folder: Path, **_how: object) -> None:
        found = sorted(folder.rglob("*.sst"))
        if found:
            found[0].unlink()
            raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", dying)
        with pytest.raises(KilledError):
            backfill(tmp_path, restart=True)
    result = backfill(tmp_path)
    assert result.resumed is False
    assert database_of(tmp_path) == expected_of(store)
    assert check(tmp_path).findings == ()
    assert not list((tmp_path / "ledger-reaper").glob("follow*"))
