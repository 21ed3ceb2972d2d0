"""A dry run returns the results of a sweep, and changes nothing."""

from streaming.sweep.dry_run import DryRunStore, NoJournal
from streaming.sweep.jobs import Job
from streaming.sweep.ledgers import Sweeper
from tests.builders import OTHER_TOPIC, data_request
from tests.world import Bench


class TestDryRun:
    def test_returns_the_results_of_a_sweep_and_has_no_effect(self, bench: Bench) -> None:
        requests = [data_request(n) for n in (5, 8, 6, 77, 5)] + [data_request(6, OTHER_TOPIC)]
        jobs = [Job(request) for request in requests]
        rules = bench.rules()
        before = (bench.tree.paths(), bench.store.faults.effects)
        dry = Sweeper(DryRunStore(bench.store), bench.loader(), NoJournal(), bench.clock, rules).sweep(jobs, {})
        assert (bench.tree.paths(), bench.store.faults.effects) == before
        assert [result.verdict for result in dry] == [result.verdict for result in bench.sweeper().sweep(jobs, {})]
