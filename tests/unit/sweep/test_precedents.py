"""How other programs lost live data, or reported deletes that did not happen: each case with BookKeeper ledgers."""

import pytest

from streaming.errors import FencedError, UnavailableError
from streaming.sweep.jobs import Job
from tests.builders import DAY_MS, MINUTE_MS, OTHER_TOPIC, TOPIC, data_custom, data_request, list_znode, metadata, view
from tests.world import EPOCH, Bench, Removal, path_of
from udfs.formats.ledger_metadata import serialize_v3
from udfs.paths import managed_ledger_path
from udfs.records import LedgerState, Outcome, Presence, Reason

LIST = managed_ledger_path(TOPIC)


@pytest.fixture
def bench() -> Bench:
    """Two topics with ledgers in use (8, 9 and 18, 19) and one orphan each (5 and 15), all old."""
    bench = Bench()
    for topic, first in ((TOPIC, 5), (OTHER_TOPIC, 15)):
        bench.owner(managed_ledger_path(topic), list_znode(first + 3, first + 4))
        bench.broker.topics[topic] = view(first + 3, first + 4)
        for ledger_id in (first, first + 3):
            bench.ledger(data_request(ledger_id, topic))
        bench.ledger(data_request(first + 4, topic), state=LedgerState.OPEN)
    bench.age()
    return bench


EVERYTHING = [data_request(n, TOPIC) for n in (5, 8, 9)] + [data_request(n, OTHER_TOPIC) for n in (15, 18, 19)]
IN_USE = {path_of(n) for n in (8, 9, 18, 19)}


def hook(bench: Bench, operation: str, act: object) -> None:
    bench.store.faults.before(lambda now, _paths: act() if now == operation else None)  # type: ignore[operator]


class TestLostLiveData:
    @pytest.mark.parametrize("operation", ["read_many", "acl_of", "journal", "delete_guarded"])
    def test_juicefs_6479_a_failed_listing_counted_as_empty(self, bench: Bench, operation: str) -> None:
        def away() -> None:
            bench.store.faults.away = True

        hook(bench, operation, away)
        try:
            swept = bench.sweep(*EVERYTHING)
        except UnavailableError:
            swept = []
        assert Outcome.DELETED not in {result.verdict.outcome for result in swept}
        assert bench.left() >= IN_USE | {path_of(5), path_of(15)}

    @pytest.mark.parametrize("silent", [TOPIC, OTHER_TOPIC])
    def test_juicefs_6479_one_witness_that_fails_spares_its_own_owner_only(self, bench: Bench, silent: str) -> None:
        bench.broker.topics[silent] = view(presence=Presence.UNREADABLE)
        bench.sweep(*EVERYTHING)
        spared = 5 if silent == TOPIC else 15
        assert bench.left() == IN_USE | {path_of(spared)}

    def test_juicefs_5068_files_written_during_the_scan_were_not_in_its_list(self, bench: Bench) -> None:
        cached = bench.loader().load([f"data:{TOPIC}", f"data:{OTHER_TOPIC}"])
        bench.owner(LIST, list_znode(8, 9, 21, 22))
        bench.ledger(data_request(21))
        bench.age(DAY_MS)
        swept = bench.sweep(data_request(21), cached=cached)
        assert swept[0].verdict.reason is Reason.IN_USE

    def test_yahoo_bookkeeper_15_empty_parents_were_deleted_during_a_read(self, bench: Bench) -> None:
        bench.owner(LIST, list_znode(30))
        bench.owner(managed_ledger_path(OTHER_TOPIC), list_znode(31))
        bench.broker.topics = {TOPIC: view(30), OTHER_TOPIC: view(31)}
        for ledger_id, topic in ((9, TOPIC), (19, OTHER_TOPIC)):
            bench.ledger(data_request(ledger_id, topic))
        bench.age()
        bench.sweep(*EVERYTHING)
        assert bench.left() == set()
        assert "/ledgers/00/0000" in bench.tree.paths()

    def test_bookkeeper_870_a_single_wrong_read_was_trusted(self, bench: Bench) -> None:
        """Here two sources have to be wrong twice: neither the znode nor the broker alone makes an owner gone."""
        bench.tree.remove(LIST)
        job = Job(data_request(8), absent_since_ms=bench.clock.now_ms() - 10 * MINUTE_MS)
        (only_znode,) = bench.sweeper().sweep([job], {})
        bench.owner(LIST, list_znode(8, 9))
        del bench.broker.topics[TOPIC]
        (only_broker,) = bench.sweeper().sweep([job], {})
        assert only_znode.verdict.reason is Reason.OWNER_UNREADABLE
        assert only_broker.verdict.reason is Reason.IN_USE

    def test_bookkeeper_4462_a_ledger_was_deleted_under_its_writer(self, bench: Bench) -> None:
        bench.owner(LIST, list_znode(8, 12))
        bench.broker.topics[TOPIC] = view(8, 12)
        (swept,) = bench.sweep(data_request(9))
        assert swept.verdict.reason is Reason.NOT_CLOSED

    def test_trino_19965_a_new_kind_of_file_counted_as_unused(self, bench: Bench) -> None:
        bench.ledger(data_request(5), data=serialize_v3(metadata({**data_custom(), "component": b"new-kind"})))
        bench.age()
        (swept,) = bench.sweep(data_request(5))
        assert swept.verdict.outcome is Outcome.DEAD_LETTER
        assert path_of(5) in bench.left()

    def test_tomjo_a_partition_was_searched_by_its_parents_name(self, bench: Bench) -> None:
        partition = f"{TOPIC}-partition-0"
        bench.owner(managed_ledger_path(partition), list_znode(25, 26))
        bench.broker.topics[partition] = view(25, 26)
        bench.ledger(data_request(25, partition))
        bench.owner(LIST, list_znode(8, 30))
        bench.age()
        by_partition, by_parent = bench.sweep(data_request(25, partition))[0], bench.sweep(data_request(25))[0]
        assert by_partition.verdict.reason is Reason.IN_USE
        assert by_parent.verdict.reason is Reason.OTHER_OWNER
        assert path_of(25) in bench.left()

    def test_ceph_in_the_wrong_pool_everything_is_an_orphan(self, bench: Bench) -> None:
        """A wrong chroot has no owner at all, but the brokers know them."""
        for topic in (TOPIC, OTHER_TOPIC):
            bench.tree.remove(managed_ledger_path(topic))
        before = bench.left()
        since_ms = bench.clock.now_ms() - 10 * MINUTE_MS
        swept = bench.sweeper().sweep([Job(request, since_ms) for request in EVERYTHING], {})
        assert {result.verdict.reason for result in swept} == {Reason.OWNER_UNREADABLE}
        assert bench.left() == before

    def test_kopia_a_cleaner_that_slept_too_long_continued_with_old_facts(self, bench: Bench) -> None:
        def sleep_long() -> None:
            bench.age(30 * DAY_MS)
            bench.owner(LIST, list_znode(5, 8, 9))

        hook(bench, "journal", sleep_long)
        (swept,) = bench.sweep(data_request(5))
        assert swept.verdict.reason is Reason.IN_USE

    def test_kopia_a_cleaner_that_slept_while_another_took_over_does_nothing(self, bench: Bench) -> None:
        hook(bench, "journal", lambda: bench.tree.write(EPOCH, b""))
        before = bench.left()
        with pytest.raises(FencedError):
            bench.sweep(*EVERYTHING)
        assert bench.left() == before

    def test_pulsar_16420_a_broker_that_paused_published_the_ledger_after_all(self, bench: Bench) -> None:
        """Closed by a bookie's recovery, older than min_age, not named yet: it is above the newest, so it stays."""
        bench.ledger(data_request(12))
        bench.age(DAY_MS - 1)
        (swept,) = bench.sweep(data_request(12))
        assert swept.verdict.reason is Reason.ABOVE_NEWEST
        bench.owner(LIST, list_znode(8, 9, 12))
        assert path_of(12) in bench.left()


class TestReportedDeletesThatDidNotHappen:
    """Pravega, lakeFS 4774, Iceberg 4817, Pulsar 14693 (T11): the answer was positive, but nothing had happened."""

    def test_a_positive_answer_is_not_trusted(self, bench: Bench) -> None:
        bench.tree.deaf = True
        swept = bench.sweep(data_request(5), data_request(15, OTHER_TOPIC))
        assert {(result.verdict.outcome, result.verdict.reason) for result in swept} == {
            (Outcome.RETRY, Reason.STILL_THERE)
        }

    def test_a_positive_answer_for_some_is_not_trusted_for_all(self, bench: Bench) -> None:
        def deaf_from_now_on(_removal: Removal) -> None:
            bench.tree.deaf = True

        bench.tree.on_removal = deaf_from_now_on
        swept = bench.sweep(data_request(5), data_request(15, OTHER_TOPIC))
        assert [result.verdict.outcome for result in swept] == [Outcome.DELETED, Outcome.RETRY]

    def test_not_found_is_reported_and_never_counted_as_deleted(self, bench: Bench) -> None:
        (swept,) = bench.sweep(data_request(77))
        assert (swept.verdict.outcome, swept.verdict.reason) == (Outcome.ALREADY_GONE, Reason.NOT_FOUND)
        assert bench.journal.entries == []
