"""Deleted ledgers are read again and reported as DELETED only if they are not found; so are kept ledgers."""

import pytest

from streaming.errors import UnavailableError
from tests.builders import (
    CURSOR,
    TOPIC,
    bucket_request,
    compacted_request,
    cursor_znode,
    data_request,
    list_znode,
    view,
)
from tests.sweeps import DELETED, LIST, when, why, whys
from tests.world import Bench, path_of
from udfs.paths import cursor_path
from udfs.records import Outcome, Reason


class TestVerification:
    def test_t11_a_store_that_reports_deletes_but_did_nothing_is_detected(self, bench: Bench) -> None:
        bench.tree.deaf = True
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.STILL_THERE)

    def test_detects_a_ledger_that_came_back(self, bench: Bench) -> None:
        when(bench, "read_many", lambda: bench.ledger(data_request(5)), nth=4)
        assert why(bench.sweep(data_request(5))) == (Outcome.RETRY, Reason.STILL_THERE)

    def test_that_cannot_read_reports_nothing(self, bench: Bench) -> None:
        def away() -> None:
            bench.store.faults.away = True

        when(bench, "read_many", away, nth=4)
        with pytest.raises(UnavailableError):
            bench.sweep(data_request(5))


class TestKept:
    """After a batch, kept ledgers are read again; one that vanished while it was in use is reported."""

    def test_a_kept_ledger_that_vanishes_while_its_owner_names_it_is_reported(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.tree.remove(path_of(8)))
        swept = bench.sweep(data_request(8), data_request(5))
        assert whys(swept) == [(Outcome.RETRY, Reason.KEPT_AND_GONE), DELETED]

    @pytest.mark.parametrize("is_kept_first", [True, False])
    def test_a_ledger_that_its_owner_releases_is_not_reported_for_another_topic_that_names_it(
        self, bench: Bench, *, is_kept_first: bool
    ) -> None:
        """Otherwise a client that may set a subscription's properties could stop the service."""
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(-1, buckets=[5]))
        requests = [bucket_request(5), data_request(5)]
        results = whys(bench.sweep(*(requests if is_kept_first else requests[::-1])))
        assert (results if is_kept_first else results[::-1]) == [(Outcome.RETRY, Reason.IN_USE), DELETED]
        when(bench, "delete_guarded", lambda: bench.tree.remove(path_of(8)))
        bench.owner(cursor_path(TOPIC, CURSOR), cursor_znode(-1, buckets=[8]))
        assert whys(bench.sweep(bucket_request(8), data_request(6))) == [(Outcome.RETRY, Reason.IN_USE), DELETED]

    def test_a_kept_ledger_that_its_owner_has_released_and_deleted_since_is_not_reported(self, bench: Bench) -> None:
        def trim() -> None:
            bench.owner(LIST, list_znode(9))
            bench.broker.topics[TOPIC] = view(9)
            bench.tree.remove(path_of(8))

        when(bench, "read_many", trim, nth=3)  # after ledgers and owner
        assert why(bench.sweep(data_request(8))) == (Outcome.RETRY, Reason.IN_USE)
        assert path_of(8) not in bench.left()

    def test_an_old_compacted_ledger_that_the_cursor_still_names_may_vanish_at_any_time(self, bench: Bench) -> None:
        bench.owner(cursor_path(TOPIC, "__compaction"), cursor_znode(properties={"CompactedTopicLedger": 7}))
        bench.broker.topics[TOPIC] = view(8, 9, cursors={"__compaction": -1}, compacted_ledger=10)
        bench.ledger(compacted_request(7))
        bench.age()
        when(bench, "read_many", lambda: bench.tree.remove(path_of(7)), nth=3)
        assert why(bench.sweep(compacted_request(7))) == (Outcome.RETRY, Reason.IN_USE)
        assert path_of(7) not in bench.left()

    def test_kept_ledgers_are_read_in_bulk(self, bench: Bench) -> None:
        for ledger_id in range(100, 600):
            bench.ledger(data_request(ledger_id))
        bench.owner(LIST, list_znode(*range(100, 600)))
        bench.age()
        reads: list[int] = []
        bench.store.faults.before(lambda name, paths: reads.append(len(paths)) if name == "read_many" else None)
        bench.sweep(*(data_request(ledger_id) for ledger_id in range(100, 599)))
        assert [n for n in reads if n] == [499, 1, 499]
