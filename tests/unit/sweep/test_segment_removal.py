"""Orphan segments: a broker gets the call only while everything is as it was judged, and never twice for one check."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from streaming.adapters.memory.segments import MemorySegmentRemover
from streaming.errors import FencedError, UnavailableError
from streaming.sweep.dry_run import DryRunSegments, DryRunStore, NoJournal
from streaming.sweep.jobs import Job, Swept
from streaming.sweep.segment_removal import SegmentSweeper
from tests.builders import (
    CURSOR,
    HOUR_MS,
    LAYOUT_PATH,
    MINUTE_MS,
    ROOT,
    SEGMENT,
    TOPIC,
    bucket_request,
    cursor_request,
    cursor_znode,
    data_request,
    layout_znode,
    list_znode,
    put,
    segment_request,
)
from tests.sweeps import when, why, whys
from tests.world import EPOCH, Bench, path_of
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.paths import BROKERS, Layout, cursor_path, managed_ledger_path
from udfs.records import BrokerView, Outcome, PendingDelete, Presence, Reason

LIST = managed_ledger_path(SEGMENT)
SCHEMA_PATH = "/schemas/public/default/orders"
REMOVED = (Outcome.DELETED, Reason.SEGMENT_UNNAMED)
OTHER = "public/default/segment/orders/8000-ffff-1"


class Brokers(MemorySegmentRemover):
    """The brokers of a bench."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.tree, Layout.HIERARCHICAL, ROOT)

    @contextmanager
    def opened(self) -> Iterator["Brokers"]:
        yield self

    def answering(self, error: Exception | None = None, *, before: Callable[[], object] = lambda: None) -> "Brokers":
        """Act before each call, which then fails without an effect if an error is given."""

        def hook(_operation: str, paths: Sequence[str]) -> None:
            before()
            if error is not None:
                self.calls.extend(paths)
                raise error

        self.faults.before(hook)
        return self


@pytest.fixture
def bench() -> Bench:
    """A pruned segment with ledgers 8 and 9, long ago, and a broker."""
    bench = Bench()
    bench.owner(LIST, list_znode(8, 9))
    bench.owner(LAYOUT_PATH, layout_znode(1, 2))
    _session(bench)
    for ledger_id in (8, 9):
        bench.ledger(data_request(ledger_id, SEGMENT))
    bench.age()
    return bench


def _session(bench: Bench) -> None:
    put(bench.tree, BROKERS)
    bench.store.create(f"{BROKERS}/a:8080", b"{}", ephemeral=True)


def _sweep(bench: Bench, brokers: Brokers, *requests: PendingDelete, seen: bool = True) -> list[Swept]:
    """Sweep requests that were seen unnamed before."""
    since_ms = bench.clock.now_ms() - 11 * MINUTE_MS if seen else None
    sweeper = SegmentSweeper(
        bench.store, bench.loader(), bench.journal, bench.clock, bench.rules(), open_remover=brokers.opened
    )
    return sweeper.sweep([Job(request, since_ms) for request in requests or (segment_request(9),)], {})


def test_an_orphan_segment_is_removed_by_a_broker_after_its_ledgers_are_in_the_journal(bench: Bench) -> None:
    journaled: list[int] = []
    brokers = Brokers(bench)
    brokers.answering(before=lambda: journaled.extend(entry.ledger_id for entry in bench.journal.entries))

    (swept,) = _sweep(bench, brokers)

    assert (swept.verdict.outcome, swept.verdict.reason) == REMOVED
    assert swept.length_bytes == 2_000
    assert brokers.calls == [SEGMENT]
    assert journaled == [8, 9]
    assert not bench.left()
    assert bench.journal.entries[0].reference.checks == ((LIST, 0), (LAYOUT_PATH, 0))


def test_the_first_sighting_sends_nothing_and_remembers_the_time(bench: Bench) -> None:
    brokers = Brokers(bench)
    (swept,) = _sweep(bench, brokers, seen=False)
    assert (swept.verdict.reason, swept.absent_since_ms) == (Reason.UNREFERENCED_ONCE, bench.clock.now_ms())
    assert not brokers.calls


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda b: b.owner(LAYOUT_PATH, layout_znode(0, 1)), Reason.OWNER_CHANGED, id="it is named again"),
        pytest.param(lambda b: b.owner(LAYOUT_PATH, layout_znode(1, 2, 3)), Reason.OWNER_CHANGED, id="a split ended"),
        pytest.param(lambda b: b.tree.remove(LAYOUT_PATH), Reason.OWNER_CHANGED, id="its topic was deleted"),
        pytest.param(lambda b: b.owner(LIST, list_znode(8, 9, 10)), Reason.OWNER_CHANGED, id="it got a ledger"),
        pytest.param(lambda b: _created_again(b, LIST), Reason.OWNER_CHANGED, id="it was created again"),
        pytest.param(lambda b: _created_again(b, LAYOUT_PATH), Reason.OWNER_CHANGED, id="its topic was created again"),
        pytest.param(lambda b: b.owner(SCHEMA_PATH, b"s"), Reason.OWNER_CHANGED, id="its topic got a schema"),
        pytest.param(lambda b: b.owner(MIGRATION_PATH, b""), Reason.STORE_UNAVAILABLE, id="a migration has started"),
        pytest.param(
            lambda b: b.tree.remove(f"{BROKERS}/a:8080"), Reason.STORE_UNAVAILABLE, id="no broker has a session"
        ),
        pytest.param(
            lambda b: b.store.unreadable.add(LAYOUT_PATH), Reason.OWNER_CHANGED, id="its layout became unreadable"
        ),
    ],
)
def test_a_change_after_the_judgement_keeps_the_segment(
    bench: Bench, change: Callable[[Bench], object], reason: Reason
) -> None:
    brokers = Brokers(bench)
    when(bench, "journal", lambda: change(bench))
    assert why(_sweep(bench, brokers)) == (Outcome.RETRY, reason)
    assert not brokers.calls


def _created_again(bench: Bench, path: str) -> None:
    """Create a znode again, with the same content and version."""
    data = bench.tree.read(path).data
    bench.tree.remove(path)
    bench.age(1)
    put(bench.tree, path, data)


def test_a_newer_instance_ends_the_sweep(bench: Bench) -> None:
    brokers = Brokers(bench)
    when(bench, "journal", lambda: bench.owner(EPOCH, b"2"))
    with pytest.raises(FencedError):
        _sweep(bench, brokers)
    assert not brokers.calls


def test_without_a_journal_nothing_is_sent(bench: Bench) -> None:
    brokers = Brokers(bench)

    def full(operation: str, _paths: object) -> None:
        if operation == "journal":
            raise UnavailableError("disk full")

    bench.store.faults.before(full)
    with pytest.raises(UnavailableError, match="disk full"):
        _sweep(bench, brokers)
    assert not brokers.calls


@pytest.mark.parametrize(
    ("create", "detail"),
    [
        pytest.param(
            lambda b: b.owner(cursor_path(SEGMENT, CURSOR), cursor_znode(7)), "names ledger 7", id="its cursor's ledger"
        ),
        pytest.param(
            lambda b: b.owner(
                cursor_path(SEGMENT, CURSOR),
                cursor_znode(buckets=[7]),
            ),
            "names ledger 7",
            id="a bucket that a subscriber may have written",
        ),
        pytest.param(lambda b: b.owner(LIST, list_znode(7, 8, 9)), "names ledger 7", id="a ledger in its list"),
        pytest.param(
            lambda b: (
                b.owner(cursor_path(SEGMENT, CURSOR), b"x"),
                b.store.unreadable.add(cursor_path(SEGMENT, CURSOR)),
            ),
            "could not be read",
            id="a cursor that can't be read",
        ),
        pytest.param(lambda b: b.store.unreadable.add(path_of(8)), "could not be read", id="an unreadable ledger"),
        pytest.param(
            lambda b: b.owner(f"{LIST}/a\x7fb", cursor_znode()),
            "control character",
            id="a cursor that no broker writes",
        ),
        pytest.param(lambda b: b.owner(path_of(8), b"x"), "", id="a ledger that can't be parsed"),
    ],
)
def test_a_segment_that_names_another_topics_ledger_stays(
    bench: Bench, create: Callable[[Bench], object], detail: str
) -> None:
    bench.ledger(data_request(7, TOPIC))
    create(bench)
    bench.age()
    brokers = Brokers(bench)
    (swept,) = _sweep(bench, brokers)
    assert swept.verdict.reason is Reason.NOT_REMOVABLE
    assert detail in swept.verdict.detail
    assert not brokers.calls
    assert path_of(7) in bench.left()


def test_the_ledgers_of_its_cursors_are_in_the_journal(bench: Bench) -> None:
    bench.owner(
        cursor_path(SEGMENT, CURSOR),
        cursor_znode(5, buckets=[6]),
    )
    bench.ledger(cursor_request(5, SEGMENT))
    bench.ledger(bucket_request(6, SEGMENT))
    bench.age()
    brokers = Brokers(bench)
    assert why(_sweep(bench, brokers)) == REMOVED
    assert [entry.ledger_id for entry in bench.journal.entries] == [8, 9, 5, 6]


def test_a_call_without_an_answer_is_looked_up_and_nothing_more_is_sent(bench: Bench) -> None:
    bench.owner(managed_ledger_path(OTHER), list_znode(18))
    bench.owner(LAYOUT_PATH, layout_znode(2))
    bench.age()
    brokers = Brokers(bench)
    brokers.faults.fail_at(1, applied=True)

    swept = _sweep(bench, brokers, segment_request(9), segment_request(18, OTHER))

    assert whys(swept) == [REMOVED, (Outcome.RETRY, Reason.UNREFERENCED_ONCE)]
    assert swept[1].verdict.wait_ms > 0, "the other request costs no try"
    assert swept[1].absent_since_ms == bench.clock.now_ms() - 11 * MINUTE_MS, "and keeps its first sighting"
    assert brokers.calls == [SEGMENT]


def test_a_call_without_an_answer_and_without_effect_comes_back(bench: Bench) -> None:
    brokers = Brokers(bench).answering(UnavailableError("no answer in time"))
    (swept,) = _sweep(bench, brokers)
    assert (swept.verdict.outcome, swept.verdict.reason) == (Outcome.RETRY, Reason.STORE_UNAVAILABLE)
    assert "may happen later" in swept.verdict.detail
    assert swept.absent_since_ms is None, "the next try needs two sightings again"


def test_a_refusal_costs_a_try_and_the_next_segment_is_tried(bench: Bench) -> None:
    bench.owner(managed_ledger_path(OTHER), list_znode(18))
    bench.owner(LAYOUT_PATH, layout_znode(2))
    bench.age()
    brokers = Brokers(bench)
    brokers.connected = {SEGMENT, OTHER}
    swept = _sweep(bench, brokers, segment_request(9), segment_request(18, OTHER))
    assert whys(swept) == [(Outcome.RETRY, Reason.STORE_REFUSED)] * 2
    assert brokers.calls == [SEGMENT, OTHER]


def test_a_segment_that_is_still_there_after_a_confirmed_deletion_is_reported(bench: Bench) -> None:

    class Deaf(Brokers):
        def delete(self, segment: str, may_send: Callable[[], bool]) -> bool:
            return may_send()

    assert why(_sweep(bench, Deaf(bench))) == (Outcome.RETRY, Reason.STILL_THERE)


def test_ledgers_that_the_broker_leaves_are_named(bench: Bench) -> None:
    brokers = Brokers(bench)
    brokers.leaked = {8}
    (swept,) = _sweep(bench, brokers)
    assert (swept.verdict.outcome, swept.verdict.reason) == REMOVED
    assert "1 of its ledgers are left" in swept.verdict.detail


def test_two_requests_for_one_segment_are_one_call(bench: Bench) -> None:
    brokers = Brokers(bench)
    swept = _sweep(bench, brokers, segment_request(9), segment_request(9), segment_request(8))
    assert whys(swept) == [
        REMOVED,
        (Outcome.ALREADY_GONE, Reason.DUPLICATE),
        (Outcome.RETRY, Reason.DUPLICATE),
    ]
    assert brokers.calls == [SEGMENT]


def test_many_segments_leave_time_for_other_requests(bench: Bench) -> None:
    names = [f"public/default/segment/orders/0000-7fff-{number}" for number in range(100)]
    bench.owner(LAYOUT_PATH, layout_znode(next_id=1_000))
    for number, name in enumerate(names):
        bench.owner(managed_ledger_path(name), list_znode(100 + number))
    bench.age()
    brokers = Brokers(bench).answering(before=lambda: bench.age(1_000))
    swept = _sweep(bench, brokers, *(segment_request(100 + number, name) for number, name in enumerate(names)))
    assert len(brokers.calls) == 20
    assert whys(swept) == [REMOVED] * 20 + [(Outcome.RETRY, Reason.UNREFERENCED_ONCE)] * 80


def test_a_segment_that_had_no_turn_was_not_seen(bench: Bench) -> None:
    names = [f"public/default/segment/orders/0000-7fff-{number}" for number in range(51)]
    bench.owner(LAYOUT_PATH, layout_znode(next_id=1_000))
    for number, name in enumerate(names):
        bench.owner(managed_ledger_path(name), list_znode(100 + number))
    bench.age()
    brokers = Brokers(bench).answering(UnavailableError("no answer in time"))
    since_ms = bench.clock.now_ms() - 11 * MINUTE_MS
    jobs = [Job(segment_request(100 + number, name), since_ms) for number, name in enumerate(names[:50])]
    sweeper = SegmentSweeper(
        bench.store, bench.loader(), bench.journal, bench.clock, bench.rules(), open_remover=brokers.opened
    )
    last = sweeper.sweep([*jobs, Job(segment_request(150, names[50]))], {})[-1]
    assert len(brokers.calls) == 1, "the second group is not judged"
    assert (last.verdict.outcome, last.absent_since_ms) == (Outcome.RETRY, None)


def test_pause_and_limits_are_asked_before_each_call(bench: Bench) -> None:
    class Paused:
        at_once = 1

        def wait_for(self, deletes: int) -> None:
            raise UnavailableError(f"paused before {deletes}")

        def done(self) -> None:
            """Do nothing."""

    brokers = Brokers(bench)
    sweeper = SegmentSweeper(
        bench.store, bench.loader(), bench.journal, bench.clock, bench.rules(), open_remover=brokers.opened
    )
    with pytest.raises(UnavailableError, match="paused before 1"):
        sweeper.sweep([Job(segment_request(9), bench.clock.now_ms() - HOUR_MS)], {}, limiter=Paused())
    assert not brokers.calls


def test_a_dry_run_counts_the_segment_and_removes_nothing(bench: Bench) -> None:
    store = DryRunStore(bench.store)

    @contextmanager
    def opened() -> Iterator[DryRunSegments]:
        yield DryRunSegments(store)

    sweeper = SegmentSweeper(store, bench.loader(), NoJournal(), bench.clock, bench.rules(), open_remover=opened)
    swept = sweeper.sweep([Job(segment_request(9), bench.clock.now_ms() - HOUR_MS)], {})
    assert why(swept) == REMOVED
    assert LIST in bench.tree.paths()


def test_without_the_brokers_answers_nothing_is_removed(bench: Bench) -> None:
    brokers = Brokers(bench)
    bench.broker.layouts[SEGMENT] = BrokerView(presence=Presence.UNREADABLE, is_unavailable=True)
    assert why(_sweep(bench, brokers)) == (Outcome.RETRY, Reason.BROKER_UNAVAILABLE)
    assert not brokers.calls
