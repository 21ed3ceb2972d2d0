"""The judge of the race (bench/race_judge.py)."""

from collections import Counter
from collections.abc import Iterable

from bench.race_judge import CURSOR, DATA, Found, State, judge_removal, judge_search

LEAKED = {1: DATA, 2: CURSOR}


def state(used: Iterable[int], *, without: Iterable[int] = (), leaked: Iterable[int] = LEAKED) -> State:
    """The leaked ledgers and the used ones, all of data, without some."""
    return State(frozenset({*leaked, *used} - set(without)), dict.fromkeys(used, DATA))


def found(named: set[int], before: State, after: State) -> Found:
    return judge_search(named, LEAKED, before, after)


class TestASearch:
    def test_that_names_the_leaked_ledgers_alone_is_perfect(self) -> None:
        answer = found({1, 2}, state([10]), state([10]))
        assert answer == Found(
            orphans=Counter({DATA: 1, CURSOR: 1}), missed=Counter(), false=Counter(), false_young=Counter()
        )

    def test_that_names_nothing_misses_all(self) -> None:
        assert found(set(), state([10]), state([10])).missed == {DATA: 1, CURSOR: 1}

    def test_is_false_about_a_ledger_that_is_in_use_before_and_after(self) -> None:
        answer = found({1, 10}, state([10, 11]), state([10, 11]))
        assert (answer.false, answer.false_young, answer.all_false) == ({DATA: 1}, {}, 1)

    def test_is_false_about_a_ledger_that_is_created_meanwhile(self) -> None:
        answer = found({1, 12}, state([10]), state([10, 12]))
        assert (answer.false, answer.false_young, answer.all_false) == ({}, {DATA: 1}, 1)

    def test_is_not_false_about_a_ledger_that_the_broker_drops_meanwhile(self) -> None:
        answer = found({1, 10}, state([10]), state([], without=[10]))
        assert (answer.all_false, answer.neither) == (0, 1)

    def test_misses_no_leaked_ledger_that_the_broker_removes_meanwhile(self) -> None:
        assert found({2}, state([10]), state([10], without=[1])).missed == {}

    def test_is_not_credited_with_a_ledger_in_use(self) -> None:
        assert found({10}, state([10]), state([10])).orphans == {}


class TestARemoval:
    def test_counts_the_leaked_ledgers_that_are_gone_and_those_that_are_left(self) -> None:
        removed = judge_removal(LEAKED, state([10]), state([10], without=[1]))
        assert (removed.orphans, removed.left, removed.destroyed) == ({DATA: 1}, {CURSOR: 1}, {})

    def test_destroys_what_is_referenced_and_gone(self) -> None:
        assert judge_removal(LEAKED, state([10]), state([10], without=[10])).destroyed == {DATA: 1}

    def test_destroys_a_new_ledger_as_well(self) -> None:
        assert judge_removal(LEAKED, state([10]), state([10, 12], without=[12])).destroyed == {DATA: 1}

    def test_does_not_destroy_what_the_broker_drops_and_deletes(self) -> None:
        assert judge_removal(LEAKED, state([10]), state([], without=[10])).destroyed == {}

    def test_is_not_blamed_for_what_was_lost_before(self) -> None:
        assert judge_removal(LEAKED, state([10], without=[10]), state([10], without=[10])).destroyed == {}

    def test_is_not_credited_with_a_leaked_ledger_that_was_gone_before(self) -> None:
        assert judge_removal(LEAKED, state([10], without=[1]), state([10], without=[1])).orphans == {}
