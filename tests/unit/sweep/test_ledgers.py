"""A sweep deletes what its owner does not name at that moment, on a durable record, and looks before it says so."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from streaming.adapters.memory.store import CrashError, MemoryStore
from streaming.errors import FencedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.sweep.dry_run import DryRunStore, NoJournal
from streaming.sweep.jobs import Job, Swept
from streaming.sweep.ledgers import Sweeper
from streaming.sweep.pace import Pace
from tests.builders import (
    CURSOR,
    DAY_MS,
    MINUTE_MS,
    OTHER_TOPIC,
    SCHEMA,
    TOPIC,
    bucket_request,
    compacted_request,
    cursor_request,
    cursor_znode,
    data_custom,
    data_request,
    list_znode,
    locator_znode,
    metadata,
    offloaded,
    put,
    schema_request,
    view,
)
from tests.world import EPOCH, Bench, path_of
from udfs.formats.acl import AclEntry
from udfs.formats.ledger_metadata import serialize_v3
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.records import Counts, LedgerState, LedgerType, Outcome, PendingDelete, Presence, Reason, Reference

LIST = managed_ledger_path(TOPIC)
DATA = f"data:{TOPIC}"
CREATE_READ_WRITE_ADMIN = (AclEntry(1 | 2 | 4 | 16, "world", "anyone"),)


@pytest.fixture
def bench() -> Bench:
    """A topic that names ledgers 8 and 9, and its orphans 5 and 6, all old."""
    bench = Bench()
    bench.owner(LIST, list_znode(8, 9))
    bench.broker.topics[TOPIC] = view(8, 9)
    for ledger_id in (5, 6, 8):
        bench.ledger(data_request(ledger_id))
    bench.ledger(data_request(9), state=LedgerState.OPEN)
    bench.age()
    return bench


def whys(swept: Sequence[Swept]) -> list[tuple[Outcome, Reason]]:
    return [(one.verdict.outcome, one.verdict.reason) for one in swept]


def why(swept: Sequence[Swept]) -> tuple[Outcome, Reason]:
    (only,) = whys(swept)
    return only


DELETED = (Outcome.DELETED, Reason.UNREFERENCED)


def cached_now(bench: Bench, *keys: str) -> dict[str, Reference]:
    return bench.loader().load(keys or [DATA])


def when(bench: Bench, operation: str, act: Callable[[], object], *, nth: int = 1) -> None:
    """Let somebody else act right before the n-th such operation."""
    calls: list[str] = []

    def hook(now: str, _paths: Sequence[str]) -> None:
        if now == operation:
            calls.append(now)
            if len(calls) == nth:
                act()

    bench.store.faults.before(hook)


class TestDeletes:
    def test_an_orphan_and_nothing_else(self, bench: Bench) -> None:
        before = bench.left()
        assert why(bench.sweep(data_request(5))) == DELETED
        assert bench.left() == before - {path_of(5)}

    def test_many_in_one_go_answering_in_order(self, bench: Bench) -> None:
        swept = bench.sweep(data_request(8), data_request(5), data_request(77), data_request(6))
        assert whys(swept) == [
            (Outcome.RETRY, Reason.IN_USE),
            DELETED,
            (Outcome.ALREADY_GONE, Reason.NOT_FOUND),
            DELETED,
        ]

    def test_and_tells_how_many_bytes_the_ledger_had(self, bench: Bench) -> None:
        assert bench.sweep(data_request(5))[0].length_bytes == 1_000

    @pytest.mark.parametrize(
        ("request_", "owner", "unreferenced"),
        [
            pytest.param(cursor_request(5), cursor_path(TOPIC, CURSOR), cursor_znode(7), id="cursor"),
            pytest.param(schema_request(5), schema_path(SCHEMA), locator_znode(3, 7), id="schema"),
            pytest.param(
                bucket_request(5), cursor_path(TOPIC, CURSOR), cursor_znode(-1, buckets=[7]), id="delayed bucket"
            ),
        ],
    )
    def test_orphans_of_every_component(
        self, bench: Bench, request_: PendingDelete, owner: str, unreferenced: bytes
    ) -> None:
        bench.owner(owner, unreferenced)
        put(bench.tree, path_of(5), bench.tree.read(bench.ledger(request_)).data)
        bench.age()
        assert why(bench.sweep(request_)) == DELETED

    @pytest.mark.parametrize(
        ("request_", "owner", "referring"),
        [
            pytest.param(cursor_request(5), cursor_path(TOPIC, CURSOR), cursor_znode(5), id="cursor"),
            pytest.param(schema_request(5), schema_path(SCHEMA), locator_znode(5, 7), id="schema"),
            pytest.param(
                bucket_request(5), cursor_path(TOPIC, CURSOR), cursor_znode(-1, buckets=[5]), id="delayed bucket"
            ),
        ],
    )
    def test_nothing_of_any_component_while_it_is_referred_to(
        self, bench: Bench, request_: PendingDelete, owner: str, referring: bytes
    ) -> None:
        bench.owner(owner, referring)
        bench.ledger(request_)
        bench.age()
        assert why(bench.sweep(request_)) == (Outcome.RETRY, Reason.IN_USE)

    def test_t1_the_bookkeeper_copy_of_an_offloaded_ledger_that_the_broker_still_lists(self, bench: Bench) -> None:
        bench.owner(LIST, list_znode(offloaded(5), 8, 9))
        bench.broker.topics[TOPIC] = view(5, 8, 9)
        assert why(bench.sweep(data_request(5))) == DELETED

    @pytest.mark.parametrize(
        "state", [pytest.param(LedgerState.OPEN, id="open"), pytest.param(LedgerState.IN_RECOVERY, id="recovering")]
    )
    def test_bookkeeper_4462_nothing_that_somebody_may_be_writing(self, bench: Bench, state: LedgerState) -> None:
        bench.ledger(data_request(5), state=state)
        bench.age()
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.NOT_CLOSED)

    def test_nothing_young(self, bench: Bench) -> None:
        bench.ledger(data_request(5))
        bench.age(5 * MINUTE_MS - 1)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.TOO_YOUNG)
        bench.age(1)
        assert why(bench.sweep(data_request(5))) == DELETED

    def test_nothing_of_another_owner(self, bench: Bench) -> None:
        bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(10))
        bench.broker.topics[OTHER_TOPIC] = view(10)
        assert why(bench.sweep(data_request(5, OTHER_TOPIC))) == (Outcome.DEAD_LETTER, Reason.OTHER_OWNER)
        assert path_of(5) in bench.left()

    def test_trino_19965_nothing_of_a_component_it_does_not_know(self, bench: Bench) -> None:
        unknown = serialize_v3(metadata({**data_custom(), "component": b"topic-policies"}))
        bench.ledger(data_request(5), data=unknown)
        bench.age()
        assert why(bench.sweep(data_request(5))) == (Outcome.DEAD_LETTER, Reason.OTHER_COMPONENT)

    @pytest.mark.parametrize("data", [b"", b"junk", b"BookieMetadataFormatVersion\t9\n"])
    def test_nothing_whose_metadata_can_not_be_parsed(self, bench: Bench, data: bytes) -> None:
        bench.ledger(data_request(5), data=data)
        bench.age()
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.LEDGER_UNREADABLE)

    def test_nothing_that_can_not_be_read_and_the_rest_all_the_same(self, bench: Bench) -> None:
        bench.store.unreadable.add(path_of(5))
        swept = bench.sweep(data_request(5), data_request(6))
        assert whys(swept) == [(Outcome.RETRY, Reason.LEDGER_UNREADABLE), DELETED]

    @pytest.mark.parametrize("how", ["too large", "broken", "broker silent"])
    def test_nothing_of_an_owner_that_can_not_be_read(self, bench: Bench, how: str) -> None:
        if how == "too large":
            bench.store.unreadable.add(LIST)
        elif how == "broken":
            bench.owner(LIST, b"\xff")
        else:
            bench.broker.topics[TOPIC] = view(presence=Presence.UNREADABLE)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.OWNER_UNREADABLE)

    def test_nothing_newer_than_all_its_owner_names(self, bench: Bench) -> None:
        bench.ledger(data_request(12))
        bench.age(DAY_MS - 1)
        assert why(bench.sweep(data_request(12))) == (Outcome.RETRY, Reason.ABOVE_NEWEST)
        bench.age(1)
        assert why(bench.sweep(data_request(12))) == DELETED

    def test_nothing_of_an_unknown_layouts_paths(self, bench: Bench) -> None:
        with pytest.raises(ValueError, match="no ledger id"):
            bench.sweep(data_request(-1))

    def test_no_object_of_tiered_storage(self, bench: Bench) -> None:
        with pytest.raises(ValueError, match="OFFLOAD_LEDGER"):
            bench.sweep(replace(data_request(5), ledger_type=LedgerType.OFFLOAD_LEDGER))
        assert path_of(5) in bench.left()

    def test_no_requests_do_nothing(self, bench: Bench) -> None:
        assert bench.sweep() == []


class TestDuplicates:
    def test_of_one_request_are_done_once(self, bench: Bench) -> None:
        swept = bench.sweep(*[data_request(5)] * 3)
        assert whys(swept) == [DELETED, *[(Outcome.ALREADY_GONE, Reason.DUPLICATE)] * 2]
        assert len(bench.journal.entries) == 1

    def test_of_one_kept_request_are_all_kept_for_its_reason(self, bench: Bench) -> None:
        assert whys(bench.sweep(*[data_request(8)] * 2)) == [(Outcome.RETRY, Reason.IN_USE)] * 2

    def test_a_different_request_for_the_same_ledger_waits_for_its_own_turn(self, bench: Bench) -> None:
        swept = bench.sweep(cursor_request(5), data_request(5))
        assert whys(swept)[1] == (Outcome.RETRY, Reason.DUPLICATE)
        assert path_of(5) in bench.left()

    def test_a_forged_request_that_goes_first_does_not_answer_for_the_true_one(self, bench: Bench) -> None:
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(9))
        swept = bench.sweep(data_request(5), cursor_request(5))
        assert whys(swept) == [DELETED, (Outcome.RETRY, Reason.DUPLICATE)]
        assert why(bench.sweep(cursor_request(5))) == (Outcome.ALREADY_GONE, Reason.NOT_FOUND)


class TestCachedReferences:
    def test_answer_without_reading_the_owner_again(self, bench: Bench) -> None:
        cached = cached_now(bench)
        bench.store.unreadable.add(LIST)  # reading it would keep the ledger; the version check needs no read
        swept = bench.sweep(data_request(5), cached=cached)
        assert why(swept) == DELETED
        assert not swept[0].refreshed

    def test_never_delete_what_the_owner_took_up_since(self, bench: Bench) -> None:
        """JuiceFS 5068: written during a long scan; here the version that the delete carries is the old one."""
        cached = cached_now(bench)
        bench.owner(LIST, list_znode(5, 8, 9))
        swept = bench.sweep(data_request(5), data_request(6), cached=cached)
        assert whys(swept) == [(Outcome.RETRY, Reason.IN_USE), DELETED]
        assert swept[0].refreshed

    def test_that_say_in_use_are_read_again(self, bench: Bench) -> None:
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
        """A subscription is deleted and made again; its znode reaches the version that was cached."""
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
        cached = {DATA: Reference(DATA, presence, 0)}
        long_ago = Job(data_request(8), absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        swept = bench.sweeper().sweep([long_ago], cached)
        assert why(swept) == (Outcome.RETRY, Reason.IN_USE)

    def test_of_a_compacted_ledger_are_read_again_since_no_znode_moves_with_it(self, bench: Bench) -> None:
        request = compacted_request(6)
        bench.ledger(request)
        bench.age()
        bench.broker.topics[TOPIC] = view(8, 9, compacted_ledger=7)
        cached = cached_now(bench, f"compacted:{TOPIC}")
        bench.broker.topics[TOPIC] = view(8, 9, compacted_ledger=6)
        job = Job(request, absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        assert why(bench.sweeper().sweep([job], cached)) == (Outcome.RETRY, Reason.IN_USE)


class TestBetweenLookAndDelete:
    def test_an_owner_that_takes_the_ledger_up_keeps_it(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.owner(LIST, list_znode(5, 8, 9)))
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.IN_USE)
        assert path_of(5) in bench.left()

    def test_an_owner_that_writes_something_else_only_costs_another_round(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.owner(LIST, list_znode(8, 9, 12)))
        assert why(bench.sweep(data_request(5))) == DELETED

    def test_an_owner_that_never_stops_writing_is_tried_again_later(self, bench: Bench) -> None:
        def hook(operation: str, _paths: Sequence[str]) -> None:
            if operation == "delete_guarded":
                bench.owner(LIST, list_znode(8, 9))

        bench.store.faults.before(hook)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.OWNER_CHANGED)
        assert path_of(5) in bench.left()

    def test_an_owner_that_goes_is_looked_at_again(self, bench: Bench) -> None:
        def go() -> None:
            bench.tree.remove(LIST)
            del bench.broker.topics[TOPIC]

        when(bench, "delete_guarded", go)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)

    def test_a_ledger_that_changes_is_looked_at_again(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.ledger(data_request(5)))
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.TOO_YOUNG)
        assert path_of(5) in bench.left()

    def test_a_ledger_that_somebody_else_deletes_is_already_gone_and_the_others_of_its_transaction_go(
        self, bench: Bench
    ) -> None:
        when(bench, "delete_guarded", lambda: bench.tree.remove(path_of(5)))
        swept = bench.sweep(data_request(5), data_request(6))
        assert whys(swept) == [(Outcome.ALREADY_GONE, Reason.NOT_FOUND), DELETED]

    def test_new_versions_never_serve_old_verdicts_of_the_same_owner(self, bench: Bench) -> None:
        """More ledgers than one transaction takes: the first finds the owner changed, the second must not profit."""
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

    def test_a_zombie_that_wakes_between_look_and_delete_deletes_nothing_even_of_gone_owners(
        self, bench: Bench
    ) -> None:
        bench.tree.remove(LIST)
        bench.broker.topics.clear()
        job = Job(data_request(5), absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        when(bench, "delete_guarded", lambda: bench.tree.write(EPOCH, b""))
        with pytest.raises(FencedError):
            bench.sweeper().sweep([job], {})
        assert path_of(5) in bench.left()


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
    def test_begin_anew_after_a_sighting_that_does_not_count(self, bench: Bench, off_ms: int) -> None:
        now_ms = bench.clock.now_ms()
        (swept,) = bench.sweeper().sweep([Job(self.REQUEST, now_ms + off_ms)], {})
        assert why([swept]) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)
        assert swept.absent_since_ms == now_ms

    def test_forget_the_sighting_when_the_owner_is_there_after_all(self, bench: Bench) -> None:
        bench.owner(LIST, list_znode(5))
        bench.broker.topics[TOPIC] = view(5)
        job = Job(self.REQUEST, bench.clock.now_ms() - 10 * MINUTE_MS)
        (swept,) = bench.sweeper().sweep([job], {})
        assert why([swept]) == (Outcome.RETRY, Reason.IN_USE)
        assert swept.absent_since_ms is None

    def test_are_never_gone_on_the_znodes_word_alone(self, bench: Bench) -> None:
        bench.broker.topics[TOPIC] = view(5)
        job = Job(self.REQUEST, bench.clock.now_ms() - 10 * MINUTE_MS)
        assert why(bench.sweeper().sweep([job], {})) == (Outcome.RETRY, Reason.OWNER_UNREADABLE)

    def test_with_partitions_are_asked_for_partition_by_partition(self, bench: Bench) -> None:
        request = data_request(5, f"{TOPIC}-partition-3")
        bench.ledger(request)
        bench.age()
        bench.sweep(request)
        assert bench.broker.asked[-1] == f"{TOPIC}-partition-3"

    def test_deleted_and_made_again_under_the_same_name_keep_only_what_they_name(self, bench: Bench) -> None:
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
        assert [one.absent_since_ms for one in swept] == [bench.clock.now_ms(), earlier]


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

    def test_are_kept_when_the_broker_falls_back_to_them_meanwhile(self, bench: Bench) -> None:
        """Its memory ran ahead of what was durable; after a crash the old one is the compacted ledger again."""
        (first,) = bench.sweep(compacted_request(5))
        bench.age(10 * MINUTE_MS)
        bench.broker.topics[TOPIC] = view(8, 9, compacted_ledger=5)
        second = bench.sweeper().sweep([Job(compacted_request(5), first.absent_since_ms)], {})
        assert why(second) == (Outcome.RETRY, Reason.IN_USE)
        assert second[0].absent_since_ms is None


class TestRefusals:
    def test_of_one_parent_do_not_hold_up_the_others_of_the_transaction(self, bench: Bench) -> None:
        far = data_request(20_005)
        bench.ledger(far)
        bench.owner(LIST, list_znode(8, 30_000))
        bench.broker.topics[TOPIC] = view(8, 30_000)
        bench.age()
        bench.tree.set_acl(path_of(5).rpartition("/")[0], CREATE_READ_WRITE_ADMIN)
        swept = bench.sweep(data_request(5), data_request(6), far)
        assert whys(swept) == [(Outcome.RETRY, Reason.STORE_REFUSED)] * 2 + [DELETED]
        assert "REFUSED" in swept[0].verdict.detail

    def test_of_a_check_hold_all_of_them(self, bench: Bench) -> None:
        cached = cached_now(bench)
        bench.tree.set_acl(LIST, [AclEntry(31, "digest", "broker:secret")])
        swept = bench.sweep(data_request(5), data_request(6), cached=cached)
        assert whys(swept) == [(Outcome.RETRY, Reason.STORE_REFUSED)] * 2
        assert {path_of(5), path_of(6)} <= bench.left()

    def test_of_a_znode_with_children_hold_that_one_only(self, bench: Bench) -> None:
        bench.tree.create(f"{path_of(5)}/child", b"")
        swept = bench.sweep(data_request(5), data_request(6))
        assert whys(swept) == [(Outcome.RETRY, Reason.STORE_REFUSED), DELETED]

    def test_to_show_an_acl_keep_the_ledger_since_it_could_not_be_put_back(self, bench: Bench) -> None:
        def hide(operation: str, paths: Sequence[str]) -> None:
            if operation == "acl_of":
                bench.tree.set_acl(paths[0], [AclEntry(31, "digest", "broker:secret")])

        bench.store.faults.before(hide)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.STORE_REFUSED)
        assert bench.journal.entries == []


class TestLostAnswers:
    def test_before_it_was_applied_are_asked_again(self, bench: Bench) -> None:
        bench.store.faults.fail_at(2)
        assert why(bench.sweep(data_request(5))) == DELETED
        assert path_of(5) not in bench.left()

    def test_after_it_was_applied_are_looked_up(self, bench: Bench) -> None:
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

    def test_of_the_last_round_are_looked_up_too(self, bench: Bench) -> None:
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
    def test_of_a_read_end_the_sweep_and_the_next_one_ends_the_same(
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


class TestJournal:
    def test_is_written_before_the_first_delete_with_all_that_undo_needs(self, bench: Bench) -> None:
        before = bench.tree.read(path_of(5))
        order: list[str] = []
        bench.store.faults.before(lambda operation, _paths: order.append(operation))
        bench.sweep(data_request(5))
        assert order.index("journal") < order.index("delete_guarded")
        (entry,) = bench.journal.entries
        assert (entry.ledger_id, entry.path, entry.data, entry.version) == (5, path_of(5), before.data, before.version)
        assert entry.acl == bench.store.acl_of(path_of(6))
        assert entry.reference.checks == ((LIST, bench.tree.read(LIST).version),)

    def test_that_can_not_be_written_deletes_nothing(self, bench: Bench) -> None:
        bench.store.faults.fail_at(1)
        before = bench.left()
        with pytest.raises(UnavailableError):
            bench.sweep(data_request(5))
        assert bench.left() == before

    def test_holds_an_acl_of_its_own_for_a_ledger_whose_acl_was_changed(self, bench: Bench) -> None:
        bench.tree.set_acl(path_of(6), [AclEntry(31, "world", "anyone"), AclEntry(1, "digest", "audit:secret")])
        wanted = bench.store.acl_of(path_of(6))
        bench.sweep(data_request(5), data_request(6))
        first, second = bench.journal.entries
        assert first.acl != second.acl == wanted

    def test_does_not_lose_acls_to_a_ledger_that_vanishes_meanwhile(self, bench: Bench) -> None:
        when(bench, "acl_of", lambda: bench.tree.remove(path_of(5)))
        swept = bench.sweep(data_request(5), data_request(6))
        assert whys(swept)[1] == DELETED
        assert next(entry.acl for entry in bench.journal.entries if entry.ledger_id == 6)

    def test_is_written_anew_for_a_second_round(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.owner(LIST, list_znode(8, 9, 12)))
        bench.sweep(data_request(5))
        assert [entry.ledger_id for entry in bench.journal.entries] == [5, 5]


class TestVerification:
    def test_t11_a_store_that_says_deleted_and_did_nothing_is_found_out(self, bench: Bench) -> None:
        bench.tree.deaf = True
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.STILL_THERE)

    def test_finds_out_a_ledger_that_came_back(self, bench: Bench) -> None:
        when(bench, "read_many", lambda: bench.ledger(data_request(5)), nth=3)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.STILL_THERE)

    def test_that_can_not_read_says_nothing(self, bench: Bench) -> None:
        def away() -> None:
            bench.store.faults.away = True

        when(bench, "read_many", away, nth=3)
        with pytest.raises(UnavailableError):
            bench.sweep(data_request(5))


class RecordingLimiter:
    """Pace without time; remembers what it was asked for, and what had been deleted by then."""

    def __init__(self, bench: Bench, at_once: int) -> None:
        self.at_once = at_once
        self.asked: list[tuple[int, int]] = []
        self.answered = 0
        self._bench = bench

    def wait_for(self, deletes: int) -> None:
        """Take a note."""
        self.asked.append((deletes, len(self._bench.tree.removals)))

    def done(self) -> None:
        """Count."""
        self.answered += 1


class TestPace:
    def test_is_kept_portion_by_portion(self, bench: Bench) -> None:
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

    def test_never_cuts_a_transaction(self, bench: Bench) -> None:
        limiter = RecordingLimiter(bench, at_once=1)
        jobs = [Job(data_request(5)), Job(data_request(6))]
        bench.sweeper().sweep(jobs, {}, limiter=limiter)
        assert limiter.asked == [(2, 0)]

    def test_is_not_asked_when_nothing_is_to_be_deleted(self, bench: Bench) -> None:
        limiter = RecordingLimiter(bench, at_once=1)
        bench.sweeper().sweep([Job(data_request(8))], {}, limiter=limiter)
        assert limiter.asked == []


class TestDryRun:
    def test_says_what_a_sweep_would_and_has_no_effect(self, bench: Bench) -> None:
        requests = [data_request(n) for n in (5, 8, 6, 77, 5)] + [data_request(6, OTHER_TOPIC)]
        jobs = [Job(request) for request in requests]
        rules = bench.rules()
        before = (bench.tree.paths(), bench.store.faults.effects)
        dry = Sweeper(DryRunStore(bench.store), bench.loader(), NoJournal(), bench.clock, rules).sweep(jobs, {})
        assert (bench.tree.paths(), bench.store.faults.effects) == before
        assert [one.verdict for one in dry] == [one.verdict for one in bench.sweeper().sweep(jobs, {})]


class TestCrashes:
    """style.md: kill it at every effect, start again, compare the end."""

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
    def test_a_sweep_cut_short_at_any_effect_ends_the_same_when_repeated(
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
        assert Outcome.DELETED not in {one.verdict.outcome for one in again}

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_the_order_of_requests_changes_nothing(self, bench: Bench, order: tuple[int, int]) -> None:
        halves = (self.BATCH[:2], self.BATCH[2:])
        for index in order:
            bench.sweep(*halves[index])
        assert bench.left() == {path_of(8), path_of(9)}


def test_a_transaction_checks_the_epoch_first_then_the_owner_and_deletes_the_version_seen(bench: Bench) -> None:
    bench.ledger(data_request(5))
    bench.age()
    bench.sweep(data_request(5))
    (removal,) = bench.tree.removals
    assert removal.batch.checks == ((EPOCH, 0), (LIST, bench.tree.read(LIST).version))
    assert removal.batch.deletes == ((path_of(5), 1),)


class TestKept:
    """After a batch, what was kept is confirmed present; who deleted it, and whether that was right, is told apart."""

    def test_a_kept_ledger_that_vanishes_while_its_owner_names_it_is_told(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.tree.remove(path_of(8)))
        swept = bench.sweep(data_request(8), data_request(5))
        assert whys(swept) == [(Outcome.RETRY, Reason.KEPT_AND_GONE), DELETED]

    def test_a_kept_ledger_that_its_owner_gave_up_and_deleted_meanwhile_is_nothing_strange(self, bench: Bench) -> None:
        def trim() -> None:
            bench.owner(LIST, list_znode(9))
            bench.broker.topics[TOPIC] = view(9)
            bench.tree.remove(path_of(8))

        when(bench, "read_many", trim, nth=3)  # after ledgers and owner
        assert why(bench.sweep(data_request(8))) == (Outcome.RETRY, Reason.IN_USE)
        assert path_of(8) not in bench.left()

    def test_an_old_compacted_ledger_that_the_cursor_still_names_may_go_at_any_time(self, bench: Bench) -> None:
        bench.owner(cursor_path(TOPIC, "__compaction"), cursor_znode(properties={"CompactedTopicLedger": 7}))
        bench.broker.topics[TOPIC] = view(8, 9, cursors={"__compaction": -1}, compacted_ledger=10)
        bench.ledger(compacted_request(7))
        bench.age()
        when(bench, "read_many", lambda: bench.tree.remove(path_of(7)), nth=3)
        assert why(bench.sweep(compacted_request(7))) == (Outcome.RETRY, Reason.IN_USE)
        assert path_of(7) not in bench.left()

    def test_kept_ledgers_are_looked_for_in_bulk(self, bench: Bench) -> None:
        for ledger_id in range(100, 600):
            bench.ledger(data_request(ledger_id))
        bench.owner(LIST, list_znode(*range(100, 600)))
        bench.age()
        reads: list[int] = []
        bench.store.faults.before(lambda name, paths: reads.append(len(paths)) if name == "read_many" else None)
        bench.sweep(*(data_request(ledger_id) for ledger_id in range(100, 599)))
        assert [n for n in reads if n] == [499, 1, 499]


class TestSources:
    """Each result carries what its owner's sources said; an owner that names far less than before keeps all."""

    def test_a_result_tells_what_was_read(self, bench: Bench) -> None:
        (swept,) = bench.sweep(data_request(5))
        version = bench.tree.read(LIST).version
        assert swept.sources == f"zookeeper=2@{version} broker=2 at={bench.clock.now_ms()}"

    def test_a_source_that_could_not_be_read_is_named(self, bench: Bench) -> None:
        bench.broker.topics[TOPIC] = view(presence=Presence.UNREADABLE)
        (swept,) = bench.sweep(data_request(5))
        assert swept.sources.startswith("? broker: 503")

    @pytest.mark.parametrize(
        ("baseline", "reason"),
        [
            pytest.param(Counts(2, 500), Reason.SOURCE_SHRANK, id="the broker named 500"),
            pytest.param(Counts(500, 2), Reason.SOURCE_SHRANK, id="the list named 500"),
            pytest.param(Counts(10, 10), Reason.UNREFERENCED, id="as much as may go"),
            pytest.param(None, Reason.UNREFERENCED, id="never seen before"),
        ],
    )
    def test_an_owner_that_names_far_less_than_before_keeps_its_ledgers(
        self, bench: Bench, baseline: Counts | None, reason: Reason
    ) -> None:
        bench.policy = replace(bench.policy, max_shrink=0.8, shrink_applies_above=9)
        (swept,) = bench.sweeper().sweep([Job(data_request(5), baseline=baseline)], cached_now(bench))
        assert swept.verdict.reason is reason
        assert ("was=" in swept.sources) == (reason is Reason.SOURCE_SHRANK)
        assert (path_of(5) in bench.left()) == (reason is Reason.SOURCE_SHRANK)

    def test_what_shrank_between_look_and_delete_is_kept(self, bench: Bench) -> None:
        """The cached set is whole; the one that is read because the version changed is not."""
        bench.policy = replace(bench.policy, max_shrink=0.8, shrink_applies_above=9)
        many = range(8, 40)
        bench.owner(LIST, list_znode(*many))
        bench.broker.topics[TOPIC] = view(*many)
        when(bench, "delete_guarded", lambda: bench.owner(LIST, list_znode(8, 9)))
        job = Job(data_request(5), baseline=Counts(32, 32))
        (swept,) = bench.sweeper().sweep([job], cached_now(bench))
        assert swept.verdict.reason is Reason.SOURCE_SHRANK
