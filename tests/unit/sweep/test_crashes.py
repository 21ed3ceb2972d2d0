"""A sweep that is interrupted at any effect ends the same when it is repeated."""

import pytest

from streaming.adapters.memory.store import CrashError
from streaming.errors import UnavailableError
from tests.builders import CURSOR, TOPIC, cursor_request, cursor_znode, data_request
from tests.world import Bench, path_of
from udfs.paths import cursor_path
from udfs.records import Outcome


class TestCrashes:
    """Kill the sweep at every effect, start it again, and compare the end."""

    BATCH = (data_request(5), data_request(8), data_request(6), cursor_request(30), data_request(77))

    @pytest.fixture
    def bench(self, bench: Bench) -> Bench:
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(31))
        bench.ledger(cursor_request(30))
        bench.age()
        return bench

    def effects_of_one_sweep(self) -> int:
        """Two owners, one round: a journal write and two transactions."""
        return 3

    def test_there_are_as_many_effects_as_this_loop_counts(self, bench: Bench) -> None:
        before = bench.store.faults.effects
        bench.sweep(*self.BATCH)
        assert bench.store.faults.effects - before == self.effects_of_one_sweep()

    @pytest.mark.parametrize("crash", [True, False], ids=["crash", "connection lost"])
    @pytest.mark.parametrize("applied", [True, False], ids=["after", "before"])
    @pytest.mark.parametrize("effect", [1, 2, 3])
    def test_a_sweep_that_is_interrupted_at_any_effect_ends_the_same_when_repeated(
        self, bench: Bench, effect: int, *, applied: bool, crash: bool
    ) -> None:
        bench.store.faults.fail_at(effect, applied=applied, crash=crash)
        for _attempt in range(2):
            try:
                bench.sweep(*self.BATCH)
            except (UnavailableError, CrashError):
                continue
        assert bench.left() == {path_of(8), path_of(9)}
        journaled = {entry.path: entry.data for entry in bench.journal.entries}
        for removal in bench.tree.removals:
            assert journaled[removal.path] == removal.znode.data

    def test_the_same_batch_again_changes_nothing(self, bench: Bench) -> None:
        bench.sweep(*self.BATCH)
        before = bench.left()
        again = bench.sweep(*self.BATCH)
        assert bench.left() == before
        assert Outcome.DELETED not in {result.verdict.outcome for result in again}

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_the_order_of_requests_changes_nothing(self, bench: Bench, order: tuple[int, int]) -> None:
        halves = (self.BATCH[:2], self.BATCH[2:])
        for index in order:
            bench.sweep(*halves[index])
        assert bench.left() == {path_of(8), path_of(9)}
