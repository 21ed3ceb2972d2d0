"""A sweep deletes ledgers that their owner does not name at that moment, once, and keeps all others."""

from dataclasses import replace

import pytest

from streaming.sweep.jobs import Job
from streaming.sweep.pace import Capped, Pace
from tests.builders import (
    CURSOR,
    DAY_MS,
    MINUTE_MS,
    OTHER_TOPIC,
    SCHEMA,
    TOPIC,
    bucket_request,
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
from tests.sweeps import DELETED, LIST, why, whys
from tests.world import Bench, path_of
from udfs.formats.ledger_metadata import serialize_v3
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.records import LedgerState, LedgerType, Outcome, PendingDelete, Presence, Reason


class TestDeletes:
    def test_an_orphan_and_nothing_else(self, bench: Bench) -> None:
        before = bench.left()
        assert why(bench.sweep(data_request(5))) == DELETED
        assert bench.left() == before - {path_of(5)}

    def test_many_at_once_and_returns_results_in_order(self, bench: Bench) -> None:
        swept = bench.sweep(data_request(8), data_request(5), data_request(77), data_request(6))
        assert whys(swept) == [
            (Outcome.RETRY, Reason.IN_USE),
            DELETED,
            (Outcome.ALREADY_GONE, Reason.NOT_FOUND),
            DELETED,
        ]

    def test_and_returns_the_bytes_of_the_ledger(self, bench: Bench) -> None:
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

    @pytest.mark.parametrize("presence", [Presence.PRESENT, Presence.UNREADABLE], ids=["knows it", "does not answer"])
    def test_nothing_of_a_schema_without_a_locator_unless_its_broker_confirms_that_it_is_gone(
        self, bench: Bench, presence: Presence
    ) -> None:
        bench.ledger(schema_request(5))
        bench.age()
        bench.broker.schemas[SCHEMA] = view(presence=presence)
        assert why(bench.sweep(schema_request(5))) == (Outcome.RETRY, Reason.OWNER_UNREADABLE)

    def test_t1_the_bookkeeper_copy_of_an_offloaded_ledger_that_the_broker_still_lists(self, bench: Bench) -> None:
        bench.owner(LIST, list_znode(offloaded(5), 8, 9))
        bench.broker.topics[TOPIC] = view(5, 8, 9)
        assert why(bench.sweep(data_request(5))) == DELETED

    @pytest.mark.parametrize(
        "state", [pytest.param(LedgerState.OPEN, id="open"), pytest.param(LedgerState.IN_RECOVERY, id="recovering")]
    )
    def test_bookkeeper_4462_nothing_that_may_still_be_written(self, bench: Bench, state: LedgerState) -> None:
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
        with pytest.raises(ValueError, match="not a ledger id"):
            bench.sweep(data_request(-1))

    def test_no_object_of_tiered_storage(self, bench: Bench) -> None:
        with pytest.raises(ValueError, match="OFFLOAD_LEDGER"):
            bench.sweep(replace(data_request(5), ledger_type=LedgerType.OFFLOAD_LEDGER))
        assert path_of(5) in bench.left()

    def test_no_requests_do_nothing(self, bench: Bench) -> None:
        assert bench.sweep() == []


class TestDuplicates:
    def test_of_one_request_are_processed_once(self, bench: Bench) -> None:
        swept = bench.sweep(*[data_request(5)] * 3)
        assert whys(swept) == [DELETED, *[(Outcome.ALREADY_GONE, Reason.DUPLICATE)] * 2]
        assert len(bench.journal.entries) == 1

    def test_of_a_kept_request_are_all_kept_for_its_reason(self, bench: Bench) -> None:
        assert whys(bench.sweep(*[data_request(8)] * 2)) == [(Outcome.RETRY, Reason.IN_USE)] * 2

    @pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]], ids=["true first", "true last", "in between"])
    def test_forged_requests_neither_decide_nor_delay_the_true_request(self, bench: Bench, order: list[int]) -> None:
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(9))
        bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(10))
        bench.broker.topics[OTHER_TOPIC] = view(10)
        cases = [
            (data_request(5), DELETED),
            (cursor_request(5), (Outcome.DEAD_LETTER, Reason.OTHER_COMPONENT)),
            (data_request(5, OTHER_TOPIC), (Outcome.DEAD_LETTER, Reason.OTHER_OWNER)),
        ]
        swept = bench.sweep(*(cases[number][0] for number in order))
        assert whys(swept) == [cases[number][1] for number in order]
        assert len(bench.tree.removals) == len(bench.journal.entries) == 1

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_a_kept_request_does_not_delay_another_request_for_the_same_ledger(
        self, bench: Bench, order: tuple[int, int]
    ) -> None:
        """A client that may set a subscription's properties can make its own topic name any ledger as its bucket."""
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(-1, buckets=[5]))
        cases = [(data_request(5), DELETED), (bucket_request(5), (Outcome.RETRY, Reason.IN_USE))]
        swept = bench.sweep(*(cases[number][0] for number in order))
        assert whys(swept) == [cases[number][1] for number in order]

    @pytest.mark.parametrize("fails", [None, "before", "after"])
    def test_one_of_several_true_requests_deletes_and_the_others_find_the_ledger_gone(
        self, bench: Bench, fails: str | None
    ) -> None:
        """All partitions of a topic share a schema, so each may request the deletion of its ledgers."""
        requests = [schema_request(5, topic=f"{TOPIC}-partition-{number}") for number in range(5)]
        bench.owner(schema_path(SCHEMA), locator_znode(3, 7))
        bench.ledger(requests[0])
        bench.age()
        if fails:
            bench.store.faults.fail_at(2, applied=fails == "after")  # the journal is the first effect
        swept = bench.sweeper().sweep([Job(result) for result in requests], {}, limiter=Capped(Pace(0), 2))
        assert whys(swept) == [DELETED, *[(Outcome.ALREADY_GONE, Reason.NOT_FOUND)] * 4]
        assert [removal.path for removal in bench.tree.removals] == [path_of(5)]
        assert len(bench.journal.entries) == (2 if fails == "before" else 1)

    def test_no_true_request_is_deleted_if_the_store_did_nothing(self, bench: Bench) -> None:
        requests = [schema_request(5, topic=f"{TOPIC}-partition-{number}") for number in range(6)]
        bench.owner(schema_path(SCHEMA), locator_znode(3, 7))
        bench.ledger(requests[0])
        bench.age()
        bench.tree.deaf = True
        results = whys(bench.sweep(*requests))
        assert {outcome for outcome, _reason in results} == {Outcome.RETRY}
        assert path_of(5) in bench.left()

    def test_a_sighting_of_its_own_makes_a_request_differ(self, bench: Bench) -> None:
        """A delayed copy keeps its sighting even if the same ledger is requested again."""
        gone = "public/default/persistent/gone"
        bench.ledger(data_request(11, gone))
        bench.age()
        seen_ms = bench.clock.now_ms() - 11 * MINUTE_MS
        jobs = [Job(data_request(11, gone)), Job(data_request(11, gone), seen_ms)]
        assert whys(bench.sweeper().sweep(jobs, {}))[1] == (Outcome.DELETED, Reason.OWNER_GONE)
