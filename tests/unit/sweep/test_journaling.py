"""The journal is durable before the first delete, and contains everything that an undo needs."""

import pytest

from streaming.errors import UnavailableError
from tests.builders import data_request, list_znode
from tests.sweeps import DELETED, LIST, when, whys
from tests.world import Bench, path_of
from udfs.formats.acl import AclEntry


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

    def test_that_cannot_be_written_deletes_nothing(self, bench: Bench) -> None:
        bench.store.faults.fail_at(1)
        before = bench.left()
        with pytest.raises(UnavailableError):
            bench.sweep(data_request(5))
        assert bench.left() == before

    def test_holds_an_acl_of_its_own_for_a_ledger_whose_acl_was_changed(self, bench: Bench) -> None:
        bench.tree.set_acl(path_of(6), [AclEntry(31, "world", "anyone"), AclEntry(1, "digest", "audit:secret")])
        expected = bench.store.acl_of(path_of(6))
        bench.sweep(data_request(5), data_request(6))
        first, second = bench.journal.entries
        assert first.acl != second.acl == expected

    def test_keeps_the_acls_of_other_ledgers_if_a_ledger_vanishes(self, bench: Bench) -> None:
        when(bench, "acl_of", lambda: bench.tree.remove(path_of(5)))
        swept = bench.sweep(data_request(5), data_request(6))
        assert whys(swept)[1] == DELETED
        assert next(entry.acl for entry in bench.journal.entries if entry.ledger_id == 6)

    def test_is_written_again_for_a_second_round(self, bench: Bench) -> None:
        when(bench, "delete_guarded", lambda: bench.owner(LIST, list_znode(8, 9, 12)))
        bench.sweep(data_request(5))
        assert [entry.ledger_id for entry in bench.journal.entries] == [5, 5]
