from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.rocketmq import backfill as backfill_module
from streaming.rocketmq.follow.followed import Followed
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.converted import backfill, check, files_below
from tests.unit.rocketmq.follow.followed_store import follow, grown, written
from tests.unit.rocketmq.test_backfill import KilledError, database_of, expected_of

STEPS = [
    (Followed, "settle", False),
    (Followed, "settle", True),
    (backfill_module, "write_databases", True),
    (backfill_module, "take_over", False),
    (backfill_module, "take_over", True),
    (backfill_module, "seal", True),
    (backfill_module, "move_in", False),
]
IDS = [f"{'behind' if is_done else 'before'} {name}" for _where, name, is_done in STEPS]


def followed(root: Path, *, is_one_file: bool) -> Store:
    """A store that was followed to its end, but for what stands behind the last record that is known to be whole."""
    store = small_store(root) if not is_one_file else grown(Store(root, log_file_bytes=1 << 16), 30)
    written(store)
    follow(root)
    store.put(Message("T"))
    store.put(Message("T", sys_flag=4))  # no queue has it: the log ends behind the last message of any queue
    return written(store)


def dying(real: Callable[..., Any], *, is_done: bool) -> Callable[..., Any]:
    def step(*words: Any, **named: Any) -> None:
        if is_done:
            real(*words, **named)
        raise KilledError

    return step


@pytest.mark.parametrize("is_one_file", [False, True], ids=["many files", "one file"])
@pytest.mark.parametrize(("where", "name", "is_done"), STEPS, ids=IDS)
def test_what_follow_has_made_is_used_though_the_run_that_took_it_over_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, is_done: bool, is_one_file: bool
) -> None:
    store = followed(tmp_path, is_one_file=is_one_file)
    before = files_below(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(where, name, dying(getattr(where, name), is_done=is_done))
        backfill(tmp_path)
    assert files_below(tmp_path) == before
    result = backfill(tmp_path)
    assert (result.resumed, result.files) == (True, 0)
    assert database_of(tmp_path) == expected_of(store)
    assert check(tmp_path).findings == ()
    assert not (tmp_path / "ledger-reaper" / "staging").exists()
    assert not (tmp_path / "ledger-reaper" / "follow").exists()


@pytest.mark.parametrize(("where", "name", "is_done"), STEPS[:5], ids=IDS[:5])
def test_it_is_followed_further_though_a_backfill_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, is_done: bool
) -> None:
    store = followed(tmp_path, is_one_file=False)
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(where, name, dying(getattr(where, name), is_done=is_done))
        backfill(tmp_path)
    written(grown(store, 40))  # the broker went on in file mode
    assert follow(tmp_path) >= 39, "it began anew, with the units of the file queues"
    result = backfill(tmp_path)
    assert (result.resumed, result.files) == (True, 0)
    assert database_of(tmp_path) == expected_of(store)
    assert check(tmp_path).findings == ()
