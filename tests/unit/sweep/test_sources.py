"""Each result contains its owner's sources; an owner that names far fewer ledgers than before keeps all."""

from dataclasses import replace

import pytest

from streaming.sweep.jobs import Job
from tests.builders import OTHER_TOPIC, TOPIC, data_request, list_znode, view
from tests.sweeps import LIST, cached_now, when
from tests.world import Bench, path_of
from udfs.paths import managed_ledger_path
from udfs.records import Counts, Presence, Reason


class TestSources:
    def test_a_result_contains_the_sources(self, bench: Bench) -> None:
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

    @pytest.mark.parametrize("is_forged_first", [True, False])
    def test_each_result_contains_its_own_owner_even_if_two_requests_name_one_ledger(
        self, bench: Bench, *, is_forged_first: bool
    ) -> None:
        bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(*range(100, 317)))
        bench.broker.topics[OTHER_TOPIC] = view(*range(100, 317))
        requests = [data_request(5, OTHER_TOPIC), data_request(5)]
        swept = bench.sweep(*(requests if is_forged_first else requests[::-1]))
        named = [one.sources.split("@")[0] for one in (swept if is_forged_first else swept[::-1])]
        assert named == ["zookeeper=217", "zookeeper=2"]

    def test_an_owner_that_shrinks_between_read_and_delete_keeps_its_ledgers(self, bench: Bench) -> None:
        """The cached set is complete; the set that is read because the version changed is not."""
        bench.policy = replace(bench.policy, max_shrink=0.8, shrink_applies_above=9)
        many = range(8, 40)
        bench.owner(LIST, list_znode(*many))
        bench.broker.topics[TOPIC] = view(*many)
        when(bench, "delete_guarded", lambda: bench.owner(LIST, list_znode(8, 9)))
        job = Job(data_request(5), baseline=Counts(32, 32))
        (swept,) = bench.sweeper().sweep([job], cached_now(bench))
        assert swept.verdict.reason is Reason.SOURCE_SHRANK
