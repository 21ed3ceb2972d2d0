from pathlib import Path
from typing import Any, cast

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.follow.acceptance import require_accepted
from streaming.rocketmq.follow.run import Follow
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import CLOCK, backfill, nothing, place
from tests.unit.rocketmq.test_locks import broker
from tests.unit.rocketmq.test_rollback import worked_with


def test_a_running_brokers_store_can_be_followed(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "abort").touch()
    with broker(tmp_path):
        require_accepted(place(tmp_path))
    backfill_done = tmp_path / "double"
    small_store(backfill_done).write()
    backfill(backfill_done)  # a broker that writes both kinds of queues looks the same
    require_accepted(place(backfill_done))


def test_what_backfill_would_refuse_is_not_followed(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    backfill(tmp_path)
    worked_with(tmp_path)
    (tmp_path / "batchconsumequeue").mkdir()
    (tmp_path / "batchconsumequeue" / "file").write_bytes(b"x")
    with pytest.raises(SafetyError, match=r"BATCH_QUEUES.*\n*.*DATABASES_THERE"):
        Follow(place(tmp_path), CLOCK, nothing).run(cast("Any", None), until_caught_up=True)
    assert not (tmp_path / "ledger-reaper" / "follow").exists()
