"""Segments of scalable topics: their ledgers are deleted only under the version of the layout they were judged by."""

from dataclasses import replace

import pytest

from streaming.sweep.jobs import Job
from tests.builders import (
    CURSOR,
    DAY_MS,
    LAYOUT_PATH,
    MINUTE_MS,
    SEGMENT,
    TOPIC,
    cursor_request,
    cursor_znode,
    data_request,
    layout_znode,
    list_znode,
)
from tests.sweeps import DELETED, when, why
from tests.world import Bench, path_of
from udfs.paths import cursor_path, managed_ledger_path
from udfs.records import BrokerView, Outcome, PendingDelete, Presence, Reason

LIST = managed_ledger_path(SEGMENT)
HIDDEN = BrokerView(presence=Presence.PRESENT, is_hidden=True)
UNLOADED = BrokerView(presence=Presence.PRESENT, is_loaded=False)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.owner(LIST, list_znode(8, 9))
    bench.owner(LAYOUT_PATH, layout_znode(0, 1))
    bench.broker.topics[SEGMENT] = UNLOADED
    bench.ledger(data_request(5, SEGMENT))
    bench.age()
    return bench


def _request(ledger_id: int = 5) -> PendingDelete:
    return data_request(ledger_id, SEGMENT)


def test_a_ledger_that_its_segment_does_not_name_is_deleted_under_both_versions(bench: Bench) -> None:
    assert why(bench.sweep(_request())) == DELETED
    (removal,) = bench.tree.removals
    assert {path for path, _version in removal.batch.checks} > {LIST, LAYOUT_PATH}


def test_a_ledger_that_its_segment_names_is_kept(bench: Bench) -> None:
    bench.ledger(_request(8))
    bench.age()
    assert why(bench.sweep(_request(8))) == (Outcome.RETRY, Reason.IN_USE)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        pytest.param(b"{}", (Outcome.RETRY, Reason.OWNER_UNREADABLE), id="a layout of an unknown form keeps it"),
        pytest.param(layout_znode(1, 2, sealed=[0]), DELETED, id="a new epoch only causes another round"),
    ],
)
def test_a_layout_that_changes_between_read_and_delete_is_read_again(
    bench: Bench, layout: bytes, reason: tuple[Outcome, Reason]
) -> None:
    when(bench, "delete_guarded", lambda: bench.owner(LAYOUT_PATH, layout))
    assert why(bench.sweep(_request())) == reason
    assert (path_of(5) in bench.left()) is (reason != DELETED)


def test_a_segment_that_is_created_again_between_the_second_check_and_the_delete_keeps_its_ledgers(
    bench: Bench,
) -> None:
    bench.tree.remove(LIST)
    bench.owner(LAYOUT_PATH, layout_znode(1, 2))
    del bench.broker.topics[SEGMENT]
    since_ms = bench.clock.now_ms()
    bench.age(11 * MINUTE_MS)

    def name_it_again() -> None:
        bench.owner(LIST, list_znode(5))
        bench.owner(LAYOUT_PATH, layout_znode(0, 1, 2))

    when(bench, "delete_guarded", name_it_again)
    (swept,) = bench.sweeper().sweep([Job(_request(), absent_since_ms=since_ms)], {})
    assert swept.verdict.outcome is Outcome.RETRY
    assert path_of(5) in bench.left()


def test_ledgers_of_a_pruned_segment_are_deleted_at_the_second_check(bench: Bench) -> None:
    bench.tree.remove(LIST)
    bench.owner(LAYOUT_PATH, layout_znode(1, 2))
    del bench.broker.topics[SEGMENT]
    assert why(bench.sweep(_request())) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)
    since_ms = bench.clock.now_ms()
    bench.age(11 * MINUTE_MS)
    (swept,) = bench.sweeper().sweep([Job(_request(), absent_since_ms=since_ms)], {})
    assert (swept.verdict.outcome, swept.verdict.reason) == (Outcome.DELETED, Reason.OWNER_GONE)


@pytest.mark.parametrize(
    ("name", "view", "reason"),
    [
        pytest.param(SEGMENT, HIDDEN, Reason.OWNER_HIDDEN, id="a segment, whose broker does not show it"),
        pytest.param(
            TOPIC, BrokerView(presence=Presence.PRESENT, ledgers=(8, 9, 12)), Reason.IN_USE, id="another topic"
        ),
    ],
)
@pytest.mark.parametrize("ledger_id", [5, 12], ids=["below the newest", "above the newest"])
def test_a_ledger_that_only_the_memory_of_a_broker_names_is_kept(
    bench: Bench, name: str, view: BrokerView, reason: Reason, ledger_id: int
) -> None:
    """ZooKeeper was rolled back, or a list was edited, while brokers kept running."""
    bench.owner(managed_ledger_path(name), list_znode(8, 9))
    bench.broker.topics[name] = replace(view, ledgers=(ledger_id, *view.ledgers) if view.ledgers else ())
    request = data_request(ledger_id, name)
    bench.ledger(request)
    bench.age(30 * DAY_MS)
    assert why(bench.sweep(request)) == (Outcome.RETRY, reason)
    assert path_of(ledger_id) in bench.left()


@pytest.mark.parametrize(
    "znodes",
    [
        pytest.param({}, id="its broker may be about to write its znode"),
        pytest.param({cursor_path(SEGMENT, CURSOR): cursor_znode(7)}, id="its znode names another"),
    ],
)
def test_a_cursor_that_its_broker_hides_keeps_its_ledger(bench: Bench, znodes: dict[str, bytes]) -> None:
    for path, data in znodes.items():
        bench.owner(path, data)
    bench.broker.topics[SEGMENT] = HIDDEN
    request = cursor_request(6, SEGMENT)
    bench.ledger(request)
    bench.age(30 * DAY_MS)
    assert why(bench.sweep(request)) == (Outcome.RETRY, Reason.OWNER_HIDDEN)
    assert path_of(6) in bench.left()


def _absent_cursor(bench: Bench, since_ms: int | None = None) -> tuple[Outcome, Reason]:
    (swept,) = bench.sweeper().sweep([Job(cursor_request(6, SEGMENT), absent_since_ms=since_ms)], {})
    return swept.verdict.outcome, swept.verdict.reason


def test_the_ledger_of_a_deleted_cursor_is_deleted_under_the_version_of_its_segments_list(bench: Bench) -> None:
    bench.ledger(cursor_request(6, SEGMENT))
    bench.age()
    since_ms = bench.clock.now_ms()
    assert _absent_cursor(bench) == (Outcome.RETRY, Reason.OWNER_ABSENT_ONCE)
    bench.age(11 * MINUTE_MS)
    assert _absent_cursor(bench, since_ms) == (Outcome.DELETED, Reason.OWNER_GONE)
    (removal,) = bench.tree.removals
    assert {path for path, _version in removal.batch.checks} > {LIST, LAYOUT_PATH}
    assert bench.broker.listed == []  # brokers need not read a layout for it


def test_a_deleted_cursor_that_comes_back_before_the_delete_keeps_its_ledger(bench: Bench) -> None:
    """A broker that loads the segment writes its list."""
    bench.ledger(cursor_request(6, SEGMENT))
    bench.age()
    since_ms = bench.clock.now_ms()
    bench.age(11 * MINUTE_MS)

    def load() -> None:
        bench.owner(LIST, list_znode(8, 9, 10))
        bench.owner(cursor_path(SEGMENT, CURSOR), cursor_znode(6))

    when(bench, "delete_guarded", load)
    assert _absent_cursor(bench, since_ms) == (Outcome.RETRY, Reason.IN_USE)
    assert path_of(6) in bench.left()


@pytest.mark.parametrize(
    "layout", [layout_znode(0, 1), layout_znode(1, 2)], ids=["ZooKeeper's layout names it", "the brokers' layout alone"]
)
def test_a_cursor_is_not_gone_with_the_list_of_a_segment_that_a_layout_names(bench: Bench, layout: bytes) -> None:
    bench.ledger(cursor_request(6, SEGMENT))
    bench.age()
    bench.tree.remove(LIST)
    bench.owner(LAYOUT_PATH, layout)
    assert _absent_cursor(bench, bench.clock.now_ms() - 11 * MINUTE_MS) == (Outcome.RETRY, Reason.OWNER_UNREADABLE)


def test_a_ledger_of_a_loaded_segment_that_is_gone_already_needs_no_wait(bench: Bench) -> None:
    bench.broker.topics[SEGMENT] = HIDDEN
    assert why(bench.sweep(_request(4))) == (Outcome.ALREADY_GONE, Reason.NOT_FOUND)
