"""Each window in which a broker leaks (W1 to W10): the service deletes the leaked ledgers and no others.

The model test reaches the windows in any order; here each window has its own test.
"""

from collections.abc import Callable

import pytest

from tests.builders import DAY_MS, HOUR_MS, SCHEMA, exists
from tests.invariants import PROMISES
from tests.model.pulsar import CURSORS, TOPICS, Pulsar
from tests.model.service import Cluster
from tests.world import path_of
from udfs.paths import cursor_path, managed_ledger_path

NAME, CURSOR = TOPICS[0], CURSORS[0]


def _roll(pulsar: Pulsar, times: int = 3) -> None:
    for _ in range(times):
        pulsar.roll_over(NAME, stalls=False)


def _w1(pulsar: Pulsar) -> None:
    pulsar.trim(NAME, written=True, lost=True)


def _w2(pulsar: Pulsar) -> None:
    pulsar.trim(NAME, written=False, lost=True)
    _roll(pulsar, 1)


def _w3(pulsar: Pulsar) -> None:
    """The broker tries each delete for minutes."""
    for _ in range(2):
        pulsar.trim(NAME, written=True, lost=True)


def _w4(pulsar: Pulsar) -> None:
    pulsar.roll_over(NAME, stalls=True)
    _roll(pulsar, 1)
    pulsar.wake(0)


def _w5(pulsar: Pulsar) -> None:
    """The broker considers the creation failed; no list names the ledger, and no broker closes it."""
    pulsar.roll_over(NAME, stalls=True)
    pulsar.pass_time(DAY_MS)
    _roll(pulsar, 1)


def _w6(pulsar: Pulsar) -> None:
    pulsar.switch_cursor(NAME, CURSOR, stalls=False, lost=True)
    pulsar.delete_cursor(NAME, CURSOR, lost=True)


def _w7(pulsar: Pulsar) -> None:
    pulsar.put_schema(stalls=False, lost=True)
    pulsar.delete_schema(lost=True)


def _w8(pulsar: Pulsar) -> None:
    pulsar.compact(NAME, durable=True, lost=True)
    pulsar.compact(NAME, durable=True, lost=True)
    pulsar.seal_bucket(NAME, CURSOR, stalls=False)
    pulsar.drop_bucket(NAME, CURSOR, lost=True)


def _w9(pulsar: Pulsar) -> None:
    """The BookKeeper copy leaks; tests/unit/sweep/tiered_storage/test_offloads.py has the objects of failed uploads."""
    pulsar.offload(NAME, lost=True)


def _w10(pulsar: Pulsar) -> None:
    pulsar.lose_metadata(NAME, loaded=False)


@pytest.mark.parametrize(
    "leak",
    [
        pytest.param(_w1, id="W1 crash between the list and the delete"),
        pytest.param(_w2, id="W2 the list was written later, without a delete"),
        pytest.param(_w3, id="W3 BookKeeper was down for longer than the tries"),
        pytest.param(_w4, id="W4 created, and another broker wrote the list first"),
        pytest.param(_w5, id="W5 created after the broker had given up waiting"),
        pytest.param(_w6, id="W6 cursor switched and deleted"),
        pytest.param(_w7, id="W7 schema deleted"),
        pytest.param(_w8, id="W8 compaction and delayed-delivery buckets"),
        pytest.param(_w9, id="W9 offloaded"),
        pytest.param(_w10, id="W10 metadata deleted by hand"),
    ],
)
@pytest.mark.parametrize("recovers", [pytest.param(True, id="recovered"), pytest.param(False, id="left open")])
def test_only_the_ledgers_that_leak_in_a_window_are_deleted(leak: Callable[[Pulsar], None], *, recovers: bool) -> None:
    cluster = Cluster()
    pulsar = cluster.pulsar
    pulsar.create_topic(NAME, stalls=False)
    pulsar.open_cursor(NAME, CURSOR)
    pulsar.switch_cursor(NAME, CURSOR, stalls=False, lost=False)
    _roll(pulsar)
    before = len(cluster.requests)
    cluster.take_over(0)  # only the instance that started last may delete
    leak(pulsar)
    if recovers:
        pulsar.recover_open_ledgers()
    requests = cluster.requests[before:]
    leaked = {request.ledger_id for request in requests if request.ledger_id not in pulsar.references()}
    assert leaked, "the window leaked nothing"

    for _ in range(12):
        pulsar.pass_time(DAY_MS // 2)
        cluster.sweep(0, cluster.due())
        for promise in PROMISES:
            promise(cluster)

    assert {deletion.ledger_id for deletion in cluster.deletions} == leaked
    assert all(exists(cluster.tree, path_of(ledger_id)) for ledger_id in pulsar.references())


def _stalled_roll_over(pulsar: Pulsar) -> None:
    pulsar.roll_over(NAME, stalls=True)


def _stalled_switch(pulsar: Pulsar) -> None:
    pulsar.switch_cursor(NAME, CURSOR, stalls=True, lost=True)


def _stalled_switch_of_a_closed_cursor(pulsar: Pulsar) -> None:
    """The broker itself has written -1, and continues from there."""
    pulsar.close_cursor(NAME, CURSOR, lost=False)
    _stalled_switch(pulsar)


@pytest.mark.parametrize(
    ("stall", "others", "is_deleted"),
    [
        pytest.param(_stalled_roll_over, _roll, True, id="data, and its list names a newer ledger"),
        pytest.param(_stalled_roll_over, lambda _: None, False, id="data, newer than its list"),
        pytest.param(
            _stalled_switch,
            lambda p: p.switch_cursor(NAME, CURSOR, stalls=False, lost=False),
            True,
            id="cursor, and its znode names a newer ledger",
        ),
        pytest.param(_stalled_switch, lambda _: None, False, id="cursor, newer than the ledger that its znode names"),
        pytest.param(
            _stalled_switch, lambda p: p.close_cursor(NAME, CURSOR, lost=False), False, id="cursor that was closed"
        ),
        pytest.param(
            _stalled_switch_of_a_closed_cursor, lambda _: None, False, id="cursor whose znode names no ledger"
        ),
        pytest.param(
            lambda p: p.compact(NAME, durable=True, lost=True, stalls=True),
            lambda p: p.compact(NAME, durable=True, lost=True),
            False,
            id="compacted ledger, although a newer ledger is in use",
        ),
        pytest.param(
            lambda p: p.seal_bucket(NAME, CURSOR, stalls=True),
            lambda p: p.seal_bucket(NAME, CURSOR, stalls=False),
            False,
            id="bucket, although a newer bucket is in use",
        ),
        pytest.param(
            lambda p: (p.delete_schema(lost=False), p.put_schema(stalls=True, lost=True)),
            lambda p: (p.put_schema(stalls=False, lost=True), p.put_schema(stalls=False, lost=True)),
            False,
            id="schema, although the locator names newer ledgers",
        ),
    ],
)
@pytest.mark.parametrize("wakes", [True, False], ids=["wakes", "never wakes"])
def test_an_open_ledger_of_a_stalled_broker_is_deleted_only_if_the_broker_can_not_publish_it_later(
    stall: Callable[[Pulsar], object], others: Callable[[Pulsar], object], *, is_deleted: bool, wakes: bool
) -> None:
    """The quiet period is over, the quarantine is not; the broker wakes up before the quarantine ends, or never."""
    cluster = Cluster()
    pulsar = cluster.pulsar
    pulsar.create_topic(NAME, stalls=False)
    pulsar.open_cursor(NAME, CURSOR)
    pulsar.switch_cursor(NAME, CURSOR, stalls=False, lost=False)
    pulsar.put_schema(stalls=False, lost=False)
    cluster.take_over(0)
    stall(pulsar)
    (stalled,) = pulsar.stalled
    others(pulsar)
    for _ in range(3):
        pulsar.pass_time(7 * HOUR_MS)
        cluster.sweep(0, cluster.due())
        assert exists(cluster.tree, path_of(stalled.ledger_id))
    if wakes:
        pulsar.wake(0)
    else:
        pulsar.pass_time(7 * HOUR_MS)
        cluster.sweep(0, cluster.due())
        assert exists(cluster.tree, path_of(stalled.ledger_id)) != is_deleted
    for promise in PROMISES:
        promise(cluster)
    assert all(exists(cluster.tree, path_of(ledger_id)) for ledger_id in pulsar.references())


def _topic_again(pulsar: Pulsar) -> None:
    pulsar.delete_topic(NAME, lost=True)
    pulsar.create_topic(NAME, stalls=False)


def _cursor_again(pulsar: Pulsar) -> None:
    pulsar.delete_cursor(NAME, CURSOR, lost=True)
    pulsar.open_cursor(NAME, CURSOR)


@pytest.mark.parametrize("is_recovered", [True, False], ids=["closed by a recovery", "open"])
@pytest.mark.parametrize("is_deleted_first", [True, False], ids=["before the sweeps", "after the sweeps"])
@pytest.mark.parametrize(
    ("stall", "recreate", "advance", "path"),
    [
        pytest.param(
            _stalled_switch,
            _cursor_again,
            lambda p: p.switch_cursor(NAME, CURSOR, stalls=False, lost=False),
            cursor_path(NAME, CURSOR),
            id="cursor",
        ),
        pytest.param(
            _stalled_roll_over,
            _topic_again,
            lambda p: p.roll_over(NAME, stalls=False),
            managed_ledger_path(NAME),
            id="list",
        ),
    ],
)
def test_a_ledger_of_a_stalled_broker_stays_even_if_its_owners_znode_reaches_the_expected_version_again(
    stall: Callable[[Pulsar], object],
    recreate: Callable[[Pulsar], object],
    advance: Callable[[Pulsar], object],
    path: str,
    *,
    is_deleted_first: bool,
    is_recovered: bool,
) -> None:
    """The owner is deleted and created again, until its version is the one that the stalled broker expects."""
    cluster = Cluster()
    pulsar = cluster.pulsar
    pulsar.create_topic(NAME, stalls=False)
    pulsar.open_cursor(NAME, CURSOR)
    advance(pulsar)
    pulsar.pass_time(HOUR_MS)
    cluster.take_over(0)
    stall(pulsar)
    if is_recovered:  # a bookie died, and its ledgers are replicated again
        pulsar.recover_open_ledgers()
    expected = cluster.tree.read(path).version
    advance(pulsar)

    def reach_the_expected_version() -> None:
        recreate(pulsar)
        while cluster.tree.read(path).version < expected:
            advance(pulsar)
        assert cluster.tree.read(path).version == expected

    if is_deleted_first:
        reach_the_expected_version()
    for _ in range(3):
        pulsar.pass_time(7 * HOUR_MS)
        cluster.sweep(0, cluster.due())
    if not is_deleted_first:
        reach_the_expected_version()
    (stalled,) = pulsar.stalled
    pulsar.wake(0)
    assert stalled.ledger_id in pulsar.references(), "ZooKeeper refused the write"
    assert exists(cluster.tree, path_of(stalled.ledger_id))
    for promise in PROMISES:
        promise(cluster)


def test_a_ledger_that_a_compaction_writes_for_days_exists_at_its_end() -> None:
    cluster = Cluster()
    pulsar = cluster.pulsar
    pulsar.create_topic(NAME, stalls=False)
    cluster.take_over(0)
    pulsar.compact(NAME, durable=True, lost=False, stalls=True)
    pulsar.compact(NAME, durable=True, lost=False)
    for _ in range(6):
        pulsar.pass_time(DAY_MS)
        cluster.sweep(0, cluster.due())
    pulsar.wake(0)
    for promise in PROMISES:
        promise(cluster)
    assert all(exists(cluster.tree, path_of(ledger_id)) for ledger_id in pulsar.references())


def test_ledgers_of_a_deleted_schema_stay_while_no_broker_answers() -> None:
    cluster = Cluster()
    pulsar = cluster.pulsar
    cluster.take_over(0)
    _w7(pulsar)
    pulsar.silent = {SCHEMA}
    for _ in range(4):
        pulsar.pass_time(DAY_MS // 2)
        cluster.sweep(0, cluster.due())
        for promise in PROMISES:
            promise(cluster)
    assert cluster.deletions == []

    pulsar.silent = set()
    for _ in range(4):
        pulsar.pass_time(DAY_MS // 2)
        cluster.sweep(0, cluster.due())
    assert len(cluster.deletions) == 1
