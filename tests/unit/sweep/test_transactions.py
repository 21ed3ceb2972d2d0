"""A delete carries the versions it was judged on: changed versions, refusals and lost answers."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.errors import FencedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.sweep.jobs import Job, Swept
from streaming.sweep.ledgers import Sweeper
from streaming.sweep.pace import Pace
from tests.builders import MINUTE_MS, TOPIC, data_request, list_znode, put, view
from tests.sweeps import DELETED, LIST, cached_now, when, why, whys
from tests.world import EPOCH, Bench, path_of
from udfs.formats.acl import AclEntry
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.records import Outcome, Reason

CREATE_READ_WRITE_ADMIN = (AclEntry(1 | 2 | 4 | 16, "world", "anyone"),)


class TestBetweenReadAndDelete:
    def test_an_owner_that_adds_the_ledger_keeps_it(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.owner(LIST, list_znode(5, 8, 9)))
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.IN_USE)
        assert path_of(5) in bench.left()

    def test_an_owner_that_writes_something_else_only_causes_another_round(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.owner(LIST, list_znode(8, 9, 12)))
        assert why(bench.sweep(data_request(5))) == DELETED

    def test_an_owner_that_never_stops_writing_is_tried_again_later(self, bench: Bench) -> None:
        def hook(operation: str, _paths: Sequence[str]) -> None:
            if operation == "delete_guarded":
                bench.owner(LIST, list_znode(8, 9))

        bench.store.faults.before(hook)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.OWNER_CHANGED)
        assert path_of(5) in bench.left()

    def test_an_owner_that_vanishes_is_read_again(self, bench: Bench) -> None:
        def go() -> None:
            bench.tree.remove(LIST)
            del bench.broker.topics[TOPIC]

        when(bench, "delete_guarded", go)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)

    def test_a_ledger_that_changes_is_read_again(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.ledger(data_request(5)))
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.TOO_YOUNG)
        assert path_of(5) in bench.left()

    def test_a_ledger_that_another_client_deletes_is_already_gone_and_the_others_of_its_transaction_are_deleted(
        self, bench: Bench
    ) -> None:
        when(bench, "delete_guarded", lambda: bench.tree.remove(path_of(5)))
        swept = bench.sweep(data_request(5), data_request(6))
        assert whys(swept) == [(Outcome.ALREADY_GONE, Reason.NOT_FOUND), DELETED]

    def test_old_verdicts_are_never_carried_out_with_new_versions(self, bench: Bench) -> None:
        """The first of two transactions finds a changed owner; the second must not use its new version."""
        orphans = [data_request(ledger_id) for ledger_id in range(100, 250)]
        bench.owner(LIST, list_znode(300, 301))
        for request in orphans:
            bench.ledger(request)
        bench.age()
        cached = cached_now(bench)
        bench.owner(LIST, list_znode(249, 300, 301))
        pace = Pace(100, monotonic=lambda: 0.0, sleep=lambda _s: None)
        jobs = [Job(request) for request in orphans]
        swept = bench.sweeper().sweep(jobs, cached, limiter=pace)
        assert whys(swept)[-1] == (Outcome.RETRY, Reason.IN_USE)
        assert path_of(249) in bench.left()
        assert set(whys(swept)[:-1]) == {DELETED}

    def test_two_sweepers_on_one_group_delete_each_ledger_once(self, bench: Bench) -> None:
        other: list[Swept] = []

        def second() -> None:
            store = MemoryStore(bench.tree)
            loader = InUseLoader(store, bench.broker, bench.clock)
            rules = bench.rules()
            other.extend(Sweeper(store, loader, bench.journal, bench.clock, rules).sweep([Job(data_request(5))], {}))

        when(bench, "delete_guarded", second)
        first = bench.sweep(data_request(5))
        assert whys(other) == [DELETED]
        assert why(first) == (Outcome.ALREADY_GONE, Reason.NOT_FOUND)
        assert len(bench.tree.removals) == 1


class TestEpoch:
    def test_a_sweeper_whose_epoch_was_taken_deletes_nothing_and_stops(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.tree.write(EPOCH, b""))
        before = bench.left()
        with pytest.raises(FencedError):
            bench.sweep(data_request(5), data_request(6))
        assert bench.left() == before

    def test_a_sweeper_whose_epoch_is_gone_stops_too(self, bench: Bench) -> None:
        bench.tree.remove(EPOCH)
        with pytest.raises(FencedError):
            bench.sweep(data_request(5))

    def test_a_zombie_that_wakes_between_read_and_delete_deletes_nothing_even_of_gone_owners(
        self, bench: Bench
    ) -> None:
        bench.tree.remove(LIST)
        bench.broker.topics.clear()
        job = Job(data_request(5), absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        when(bench, "delete_guarded", lambda: bench.tree.write(EPOCH, b""))
        with pytest.raises(FencedError):
            bench.sweeper().sweep([job], {})
        assert path_of(5) in bench.left()


class TestMigration:
    @pytest.mark.parametrize("nth", [1, 2, 3])
    def test_that_starts_after_the_ledgers_were_read_stops_every_delete(self, bench: Bench, nth: int) -> None:
        """The third read is the last before the delete."""
        when(bench, "read_many", lambda: put(bench.tree, MIGRATION_PATH, b'{"phase":"PREPARATION"}'), nth=nth)
        before = bench.left()
        with pytest.raises(UnavailableError, match="has phase PREPARATION"):
            bench.sweep(data_request(5), data_request(6))
        assert bench.left() == before
        assert not bench.tree.removals

    def test_that_starts_between_two_groups_stops_the_second(self, bench: Bench) -> None:
        orphans = [data_request(ledger_id) for ledger_id in range(100, 250)]
        bench.owner(LIST, list_znode(300, 301))
        for request in orphans:
            bench.ledger(request)
        bench.age()
        pace = Pace(100, monotonic=lambda: 0.0, sleep=lambda _s: None)
        when(bench, "delete_guarded", lambda: put(bench.tree, MIGRATION_PATH, b"{}"))
        with pytest.raises(UnavailableError, match="its phase is unknown"):
            bench.sweeper().sweep([Job(request) for request in orphans], {}, limiter=pace)
        assert len(bench.tree.removals) == 100

    def test_that_can_not_be_read_stops_the_delete(self, bench: Bench) -> None:
        bench.store.unreadable.add(MIGRATION_PATH)
        with pytest.raises(UnavailableError, match="too large"):
            bench.sweep(data_request(5))
        assert path_of(5) in bench.left()


class TestRefusals:
    def test_of_one_parent_do_not_delay_the_others_of_the_transaction(self, bench: Bench) -> None:
        far = data_request(20_005)
        bench.ledger(far)
        bench.owner(LIST, list_znode(8, 30_000))
        bench.broker.topics[TOPIC] = view(8, 30_000)
        bench.age()
        bench.tree.set_acl(path_of(5).rpartition("/")[0], CREATE_READ_WRITE_ADMIN)
        swept = bench.sweep(data_request(5), data_request(6), far)
        assert whys(swept) == [(Outcome.RETRY, Reason.STORE_REFUSED)] * 2 + [DELETED]
        assert "REFUSED" in swept[0].verdict.detail

    def test_of_a_check_delay_all_of_them(self, bench: Bench) -> None:
        cached = cached_now(bench)
        bench.tree.set_acl(LIST, [AclEntry(31, "digest", "broker:secret")])
        swept = bench.sweep(data_request(5), data_request(6), cached=cached)
        assert whys(swept) == [(Outcome.RETRY, Reason.STORE_REFUSED)] * 2
        assert {path_of(5), path_of(6)} <= bench.left()

    def test_of_a_znode_with_children_delay_that_ledger_only(self, bench: Bench) -> None:
        bench.tree.create(f"{path_of(5)}/child", b"")
        swept = bench.sweep(data_request(5), data_request(6))
        assert whys(swept) == [(Outcome.RETRY, Reason.STORE_REFUSED), DELETED]

    def test_to_return_an_acl_keep_the_ledger_since_it_could_not_be_restored(self, bench: Bench) -> None:
        def hide(operation: str, paths: Sequence[str]) -> None:
            if operation == "acl_of":
                bench.tree.set_acl(paths[0], [AclEntry(31, "digest", "broker:secret")])

        bench.store.faults.before(hide)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.STORE_REFUSED)
        assert bench.journal.entries == []


class TestLostAnswers:
    def test_before_the_delete_was_applied_are_sent_again(self, bench: Bench) -> None:
        bench.store.faults.fail_at(2)
        assert why(bench.sweep(data_request(5))) == DELETED
        assert path_of(5) not in bench.left()

    def test_after_the_delete_was_applied_are_detected(self, bench: Bench) -> None:
        bench.store.faults.fail_at(2, applied=True)
        swept = bench.sweep(data_request(5))
        assert why(swept) == DELETED
        assert "answer was lost" in swept[0].verdict.detail
        assert len(bench.tree.removals) == 1

    def test_keep_the_reason_with_which_the_delete_was_sent(self, bench: Bench) -> None:
        bench.tree.remove(LIST)
        bench.broker.topics.clear()
        bench.store.faults.fail_at(2, applied=True)
        job = Job(data_request(5), absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        assert why(bench.sweeper().sweep([job], {})) == (Outcome.DELETED, Reason.OWNER_GONE)

    def test_in_every_round_end_as_unavailable(self, bench: Bench) -> None:
        def away(operation: str, _paths: Sequence[str]) -> None:
            bench.store.faults.away = operation == "delete_guarded"

        bench.store.faults.before(away)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.STORE_UNAVAILABLE)
        assert path_of(5) in bench.left()

    def test_of_the_last_round_are_detected_too(self, bench: Bench) -> None:
        deletes: list[str] = []

        def lose(operation: str, _paths: Sequence[str]) -> None:
            if operation == "delete_guarded":
                deletes.append(operation)
                bench.store.faults.fail_at(1, applied=len(deletes) == 4)

        bench.store.faults.before(lose)
        assert why(bench.sweep(data_request(5))) == DELETED
        assert len(deletes) == 4

    @pytest.mark.parametrize("operation", ["read_many", "acl_of"])
    @pytest.mark.parametrize("nth", [1, 2])
    def test_of_a_read_end_the_sweep_and_the_next_sweep_ends_the_same(
        self, bench: Bench, operation: str, nth: int
    ) -> None:
        def away() -> None:
            bench.store.faults.away = True

        when(bench, operation, away, nth=nth)
        orphans = [data_request(5), replace(data_request(6))]
        try:
            bench.sweep(*orphans)
        except UnavailableError:
            bench.store.faults.away = False
            bench.sweep(*orphans)
        bench.store.faults.away = False
        assert not {path_of(5), path_of(6)} & bench.left()


class RecordingLimiter:
    """A pace without time that records the requested deletes, and the deletes done by then."""

    def __init__(self, bench: Bench, at_once: int) -> None:
        self.at_once = at_once
        self.asked: list[tuple[int, int]] = []
        self.answered = 0
        self._bench = bench

    def wait_for(self, deletes: int) -> None:
        """Record the request."""
        self.asked.append((deletes, len(self._bench.tree.removals)))

    def done(self) -> None:
        """Count the answer."""
        self.answered += 1


class TestPace:
    def test_is_kept_group_by_group(self, bench: Bench) -> None:
        orphans = [data_request(ledger_id) for ledger_id in range(100, 450)]
        bench.owner(LIST, list_znode(900))
        for request in orphans:
            bench.ledger(request)
        bench.age()
        limiter = RecordingLimiter(bench, at_once=200)
        swept = bench.sweeper().sweep([Job(request) for request in orphans], {}, limiter=limiter)
        assert set(whys(swept)) == {DELETED}
        assert limiter.asked == [(200, 0), (150, 200)]
        assert limiter.answered == 2

    def test_never_splits_a_transaction(self, bench: Bench) -> None:
        limiter = RecordingLimiter(bench, at_once=1)
        jobs = [Job(data_request(5)), Job(data_request(6))]
        bench.sweeper().sweep(jobs, {}, limiter=limiter)
        assert limiter.asked == [(2, 0)]

    def test_is_not_used_if_nothing_is_to_be_deleted(self, bench: Bench) -> None:
        limiter = RecordingLimiter(bench, at_once=1)
        bench.sweeper().sweep([Job(data_request(8))], {}, limiter=limiter)
        assert limiter.asked == []


def test_a_transaction_checks_the_epoch_then_the_owner_and_deletes_the_judged_version(bench: Bench) -> None:
    bench.ledger(data_request(5))
    bench.age()
    bench.sweep(data_request(5))
    (removal,) = bench.tree.removals
    assert removal.batch.checks == ((EPOCH, 0), (LIST, bench.tree.read(LIST).version))
    assert removal.batch.deletes == ((path_of(5), 1),)
