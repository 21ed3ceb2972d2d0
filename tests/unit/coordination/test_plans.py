"""A task of a plan runs for the first time once, and a new plan ends the one before it."""

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clock import ManualClock
from streaming.coordination.plans import begin_plan, is_first_run
from streaming.errors import RefusedError


def test_of_the_runs_of_a_task_one_is_the_first() -> None:
    tree = MemoryTree(ManualClock())
    driver, one, two = (MemoryStore(tree) for _ in range(3))
    plan = begin_plan(driver, "/reaper", "main")
    assert [is_first_run(store, plan, 0) for store in (one, two, one)] == [True, False, False]
    assert is_first_run(two, plan, 1)


def test_a_new_plan_takes_the_place_of_the_last() -> None:
    store = MemoryStore(MemoryTree(ManualClock()))
    old = begin_plan(store, "/reaper", "main")
    assert is_first_run(store, old, 0)
    new = begin_plan(store, "/reaper", "main")
    assert is_first_run(store, new, 0)
    with pytest.raises(RefusedError):
        is_first_run(store, old, 1)
    assert store.children_many(["/reaper/instances/main/plans"]) == [[new.rpartition("/")[2]]]
