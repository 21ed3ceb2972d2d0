"""Each task of a plan has first first run, and a new plan invalidates the previous plan."""

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clock import ManualClock
from streaming.coordination.plans import is_first_run, start_plan
from streaming.errors import RefusedError


def test_only_the_first_run_of_a_task_is_first() -> None:
    tree = MemoryTree(ManualClock())
    driver, first, second = (MemoryStore(tree) for _ in range(3))
    plan = start_plan(driver, "/reaper", "main")
    assert [is_first_run(store, plan, 0) for store in (first, second, first)] == [True, False, False]
    assert is_first_run(second, plan, 1)


def test_a_new_plan_replaces_the_last_plan() -> None:
    store = MemoryStore(MemoryTree(ManualClock()))
    old = start_plan(store, "/reaper", "main")
    assert is_first_run(store, old, 0)
    new = start_plan(store, "/reaper", "main")
    assert is_first_run(store, new, 0)
    with pytest.raises(RefusedError):
        is_first_run(store, old, 1)
    assert store.children_many(["/reaper/instances/main/plans"]) == [[new.rpartition("/")[2]]]
