"""A cached reference is only a hint; a delete that no znode version protects takes two checks."""

from collections.abc import Callable

import pytest

from streaming.sweep.jobs import Job
from tests.builders import (
    CURSOR,
    DAY_MS,
    MINUTE_MS,
    TOPIC,
    compacted_request,
    cursor_request,
    cursor_znode,
    data_request,
    list_znode,
    view,
)
from tests.sweeps import DATA, DELETED, LIST, cached_now, why, whys
from tests.world import Bench, path_of
from udfs.owners.references import key_of
from udfs.paths import cursor_path
from udfs.records import Outcome, PendingDelete, Presence, Reason, Reference


class TestCachedReferences:
    def test_answer_without_reading_the_owner_again(self, bench: Bench) -> None:
        cached = cached_now(bench)
        bench.store.unreadable.add(LIST)  # reading it would keep the ledger; the version check needs no read
        swept = bench.sweep(data_request(5), cached=cached)
        assert why(swept) == DELETED
        assert not swept[0].refreshed

    def test_never_delete_ledgers_that_the_owner_has_added_since(self, bench: Bench) -> None:
        """JuiceFS 5068: written during a long scan; here the version that the delete carries is the old one."""
        cached = cached_now(bench)
        bench.owner(LIST, list_znode(5, 8, 9))
        swept = bench.sweep(data_request(5), data_request(6), cached=cached)
        assert whys(swept) == [(Outcome.RETRY, Reason.IN_USE), DELETED]
        assert swept[0].refreshed

    def test_with_the_answer_in_use_are_read_again(self, bench: Bench) -> None:
        cached = cached_now(bench)
        bench.owner(LIST, list_znode(9))
        bench.broker.topics[TOPIC] = view(9)
        swept = bench.sweep(data_request(8), cached=cached)
        assert why(swept) == DELETED
        assert swept[0].refreshed

    def test_that_are_older_than_the_ledger_are_read_again(self, bench: Bench) -> None:
        cached = cached_now(bench)
        bench.owner(LIST, list_znode(8, 9, 12, 13))
        bench.ledger(data_request(12))
        bench.age()
        assert why(bench.sweep(data_request(12), cached=cached)) == (Outcome.RETRY, Reason.IN_USE)

    def test_that_name_nothing_are_read_again_since_a_recreated_znode_may_have_the_same_version(
        self, bench: Bench
    ) -> None:
        """A subscription is deleted and created again; its znode reaches the cached version."""
        path = cursor_path(TOPIC, CURSOR)
        bench.owner(path, cursor_znode(-1))
        cached = cached_now(bench, f"cursor:{TOPIC}/{CURSOR}")
        bench.tree.remove(path)
        bench.owner(path, cursor_znode(12))
        bench.ledger(cursor_request(12))
        bench.age()
        swept = bench.sweep(cursor_request(12), cached=cached)
        assert why(swept) == (Outcome.RETRY, Reason.IN_USE)

    @pytest.mark.parametrize("presence", [Presence.GONE, Presence.UNREADABLE])
    def test_that_are_absent_or_unreadable_are_read_again(self, bench: Bench, presence: Presence) -> None:
        cached = {DATA: Reference(key=DATA, presence=presence, read_at_ms=0)}
        long_ago = Job(data_request(8), absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        swept = bench.sweeper().sweep([long_ago], cached)
        assert why(swept) == (Outcome.RETRY, Reason.IN_USE)

    @pytest.mark.parametrize("request_of", [data_request, compacted_request])
    def test_whose_brokers_gave_no_answer_keep_a_ledger_without_another_wait(
        self, bench: Bench, request_of: Callable[[int], PendingDelete]
    ) -> None:
        request = request_of(6)
        bench.ledger(request)
        bench.age()
        key = key_of(request)
        cached = {key: Reference(key=key, presence=Presence.UNREADABLE, is_unavailable=True, read_at_ms=0)}
        bench.store.unreadable.add(LIST)  # reading it would be another reason to keep the ledger
        assert why(bench.sweep(request, cached=cached)) == (Outcome.RETRY, Reason.BROKER_UNAVAILABLE)

    def test_of_a_compacted_ledger_are_read_again_since_no_znode_changes_with_it(self, bench: Bench) -> None:
        request = compacted_request(6)
        bench.ledger(request)
        bench.age()
        bench.broker.topics[TOPIC] = view(8, 9, compacted_ledger=7)
        cached = cached_now(bench, f"compacted:{TOPIC}")
        bench.broker.topics[TOPIC] = view(8, 9, compacted_ledger=6)
        job = Job(request, absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        assert why(bench.sweeper().sweep([job], cached)) == (Outcome.RETRY, Reason.IN_USE)


class TestAbsentOwners:
    REQUEST = data_request(5)

    @pytest.fixture
    def bench(self, bench: Bench) -> Bench:
        bench.tree.remove(LIST)
        bench.broker.topics.clear()
        return bench

    def test_need_two_sightings(self, bench: Bench) -> None:
        (first,) = bench.sweep(self.REQUEST)
        assert why([first]) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)
        assert first.absent_since_ms == bench.clock.now_ms()
        bench.age(10 * MINUTE_MS)
        second = bench.sweeper().sweep([Job(self.REQUEST, first.absent_since_ms)], {})
        assert why(second) == (Outcome.DELETED, Reason.OWNER_GONE)
        assert second[0].absent_since_ms is None

    def test_keep_the_first_sighting_until_the_interval_is_over(self, bench: Bench) -> None:
        (first,) = bench.sweep(self.REQUEST)
        bench.age(10 * MINUTE_MS - 1)
        (second,) = bench.sweeper().sweep([Job(self.REQUEST, first.absent_since_ms)], {})
        assert why([second]) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)
        assert second.absent_since_ms == first.absent_since_ms

    @pytest.mark.parametrize("off_ms", [pytest.param(1, id="future"), pytest.param(-DAY_MS - 1, id="too old")])
    def test_start_again_after_a_sighting_that_does_not_count(self, bench: Bench, off_ms: int) -> None:
        now_ms = bench.clock.now_ms()
        (swept,) = bench.sweeper().sweep([Job(self.REQUEST, now_ms + off_ms)], {})
        assert why([swept]) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)
        assert swept.absent_since_ms == now_ms

    def test_forget_the_sighting_when_the_owner_exists_after_all(self, bench: Bench) -> None:
        bench.owner(LIST, list_znode(5))
        bench.broker.topics[TOPIC] = view(5)
        job = Job(self.REQUEST, bench.clock.now_ms() - 10 * MINUTE_MS)
        (swept,) = bench.sweeper().sweep([job], {})
        assert why([swept]) == (Outcome.RETRY, Reason.IN_USE)
        assert swept.absent_since_ms is None

    def test_are_never_gone_by_the_znode_alone(self, bench: Bench) -> None:
        bench.broker.topics[TOPIC] = view(5)
        job = Job(self.REQUEST, bench.clock.now_ms() - 10 * MINUTE_MS)
        assert why(bench.sweeper().sweep([job], {})) == (Outcome.RETRY, Reason.OWNER_UNREADABLE)

    def test_with_partitions_are_queried_partition_by_partition(self, bench: Bench) -> None:
        request = data_request(5, f"{TOPIC}-partition-3")
        bench.ledger(request)
        bench.age()
        bench.sweep(request)
        assert bench.broker.asked[-1] == f"{TOPIC}-partition-3"

    def test_deleted_and_created_again_under_the_same_name_keep_only_ledgers_that_they_name(self, bench: Bench) -> None:
        bench.owner(LIST, list_znode(20, 21))
        bench.broker.topics[TOPIC] = view(20, 21)
        bench.ledger(data_request(20))
        bench.age()
        swept = bench.sweep(data_request(5), data_request(20))
        assert whys(swept) == [DELETED, (Outcome.RETRY, Reason.IN_USE)]

    def test_each_duplicate_keeps_its_own_sighting(self, bench: Bench) -> None:
        earlier = bench.clock.now_ms() - MINUTE_MS
        jobs = [Job(self.REQUEST), Job(self.REQUEST, earlier)]
        swept = bench.sweeper().sweep(jobs, {})
        assert [result.absent_since_ms for result in swept] == [bench.clock.now_ms(), earlier]


class TestCompactedLedgers:
    @pytest.fixture
    def bench(self, bench: Bench) -> Bench:
        bench.ledger(compacted_request(5))
        bench.broker.topics[TOPIC] = view(8, 9, compacted_ledger=7)
        bench.age()
        return bench

    def test_must_be_seen_unreferenced_twice(self, bench: Bench) -> None:
        (first,) = bench.sweep(compacted_request(5))
        assert why([first]) == (Outcome.RETRY, Reason.UNREFERENCED_ONCE)
        bench.age(10 * MINUTE_MS)
        second = bench.sweeper().sweep([Job(compacted_request(5), first.absent_since_ms)], {})
        assert why(second) == DELETED

    def test_are_kept_while_the_broker_has_not_opened_the_cursor_that_names_them(self, bench: Bench) -> None:
        bench.owner(cursor_path(TOPIC, "__compaction"), cursor_znode(11))
        bench.broker.topics[TOPIC] = view(8, 9)
        long_ago = Job(compacted_request(5), absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        assert why(bench.sweeper().sweep([long_ago], {})) == (Outcome.RETRY, Reason.OWNER_UNREADABLE)
        assert path_of(5) in bench.left()

    def test_are_kept_when_the_broker_falls_back_to_them(self, bench: Bench) -> None:
        """Its memory was ahead of its durable state; after a crash the old ledger is the compacted ledger again."""
        (first,) = bench.sweep(compacted_request(5))
        bench.age(10 * MINUTE_MS)
        bench.broker.topics[TOPIC] = view(8, 9, compacted_ledger=5)
        second = bench.sweeper().sweep([Job(compacted_request(5), first.absent_since_ms)], {})
        assert why(second) == (Outcome.RETRY, Reason.IN_USE)
        assert second[0].absent_since_ms is None
