from dataclasses import replace
from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.rollback_plan import (
    RollbackPlan,
    delete_rollback,
    read_plan,
    unfinished_rollback,
    write_plan,
)
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import paths
from udfs.rocketmq.metadata import OffsetsOf

PLAN = RollbackPlan(
    kept="kept-20260301T000000Z",
    offsets_of=OffsetsOf.BOTH,
    files={"topics.json": 3},
    only_in_files={"topics.json": ["Orders"]},
    left_out={"%LMQ%a/b": 1},
    stamps={"topics.json": 17},
    currents={"topics": ["MANIFEST-000005\n", 19]},
)


@pytest.fixture
def store(tmp_path: Path) -> StorePaths:
    small_store(tmp_path).write()
    store = paths(tmp_path)
    (store.own / "rollback").mkdir(parents=True)
    return store


def test_a_plan_is_read_as_it_was_written(store: StorePaths) -> None:
    assert read_plan(store) is None
    for plan in (PLAN, replace(PLAN, done=True)):
        write_plan(store, plan)
        assert read_plan(store) == plan


def test_a_rollback_is_unfinished_until_its_plan_is_done(store: StorePaths) -> None:
    assert unfinished_rollback(store) == ""
    write_plan(store, PLAN)
    assert "has not ended" in unfinished_rollback(store)
    write_plan(store, replace(PLAN, done=True))
    assert unfinished_rollback(store) == ""


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kept": "k", "files": {}, "stamps": {}, "offsets_of": "x"}'])
def test_a_damaged_plan_counts_as_unfinished(store: StorePaths, text: str) -> None:
    (store.own / "rollback" / "plan.json").write_text(text)
    assert "has not ended" in unfinished_rollback(store)
    with pytest.raises(SafetyError, match=r"plan\.json is not what this program writes"):
        read_plan(store)


def test_a_rollback_that_bars_brokers_is_not_deleted(store: StorePaths) -> None:
    write_plan(store, PLAN)
    store.barrier.mkdir()
    with pytest.raises(SafetyError, match="has not ended"):
        delete_rollback(store)
    assert read_plan(store) == PLAN
    store.barrier.rmdir()
    delete_rollback(store)
    assert not (store.own / "rollback").exists()
