import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.follow.acceptance import require_accepted
from streaming.rocketmq.follow.run import Follow
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.convert.test_backfill import database_of, expected_of
from tests.unit.rocketmq.converted import CLOCK, backfill, converted_store, nothing, paths
from tests.unit.rocketmq.followed_store import follow, written
from tests.unit.rocketmq.rollback.test_run import worked_with
from tests.unit.rocketmq.store.test_locks import broker
from udfs.rocketmq.refusals import Code


def test_a_running_brokers_store_can_be_followed(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "abort").touch()
    with broker(tmp_path):
        require_accepted(paths(tmp_path), nothing)
    backfill_done = tmp_path / "double"
    small_store(backfill_done).write()
    backfill(backfill_done)  # a broker that writes both kinds of queues looks the same
    require_accepted(paths(backfill_done), nothing)


def test_a_broker_with_a_left_over_queue_folder_is_followed_and_the_loss_is_backfills_to_ask_about(
    tmp_path: Path,
) -> None:
    """`follow` had no option that accepts it, and drops nothing itself: what it makes has the rows of such topics."""
    store = written(small_store(tmp_path))
    shutil.copytree(tmp_path / "consumequeue" / "Orders" / "0", tmp_path / "consumequeue" / "Gone" / "0")
    told = list[str]()
    with broker(tmp_path):
        require_accepted(paths(tmp_path), told.append)
    (warning,) = told
    assert warning.startswith("warning: `backfill` refuses this store unless that changes: UNKNOWN_TOPICS: ")
    assert "Gone" in warning
    assert "--accept-loss UNKNOWN_TOPICS" in warning
    follow(tmp_path)
    with pytest.raises(SafetyError, match=r"UNKNOWN_TOPICS: .*Gone"):
        backfill(tmp_path)
    result = backfill(tmp_path, accept_loss=(Code.UNKNOWN_TOPICS,))
    assert result.resumed
    assert [each.code for each in result.losses] == [Code.UNKNOWN_TOPICS]
    assert expected_of(store)[0].items() <= database_of(tmp_path)[0].items()
    assert any(b"Gone" in key for key in database_of(tmp_path)[0])


def test_offsets_that_the_broker_does_not_read_do_not_keep_follow_from_its_work(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    told = list[str]()
    require_accepted(paths(tmp_path, lmq=False), told.append)
    assert ["UNREAD_OFFSETS" in each for each in told] == [True]


def test_what_backfill_would_refuse_is_not_followed(tmp_path: Path) -> None:
    converted_store(tmp_path)
    worked_with(tmp_path)
    (tmp_path / "batchconsumequeue").mkdir()
    (tmp_path / "batchconsumequeue" / "file").write_bytes(b"x")
    with pytest.raises(SafetyError, match=r"BATCH_QUEUES.*\n*.*DATABASES_THERE"):
        Follow(paths=paths(tmp_path), clock=CLOCK, say=nothing).run(cast("Any", None), until_caught_up=True)
    assert not (tmp_path / "ledger-reaper" / "follow").exists()
