"""Forged requests for a leaked ledger in the same batch as the true request: each gets its own answer."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.builders import DAY_MS
from tests.invariants import PROMISES
from tests.model.pulsar import CURSORS, TOPICS
from tests.model.service import UNDISTURBED, Cluster, Message
from udfs.records import LedgerComponent, Outcome, PendingDelete

NAME, OTHER = TOPICS


def _forged(request: PendingDelete) -> Sequence[PendingDelete]:
    """Return requests of a sender that knows only the ledger's id: another topic, component or cursor."""
    return (
        replace(request, managed_ledger=OTHER),
        *(replace(request, component=LedgerComponent.MANAGED_CURSOR, cursor_name=cursor) for cursor in CURSORS),
        replace(request, component=LedgerComponent.DELAYED_INDEX_BUCKET),
        replace(request, component=LedgerComponent.COMPACTED_LEDGER, managed_ledger=OTHER),
    )


@pytest.fixture
def cluster() -> Cluster:
    """A topic whose first ledger has leaked, and another topic that names many more ledgers."""
    cluster = Cluster()
    pulsar = cluster.pulsar
    pulsar.create_topic(NAME, stalls=False)
    pulsar.create_topic(OTHER, stalls=False)
    for cursor in CURSORS:
        pulsar.open_cursor(NAME, cursor)
    for topic, times in ((NAME, 3), (OTHER, 30)):
        for _ in range(times):
            pulsar.roll_over(topic, stalls=False)
    cluster.take_over(0)
    pulsar.trim(NAME, written=True, lost=True)
    pulsar.pass_time(2 * DAY_MS)
    return cluster


def _batch(cluster: Cluster, place: str) -> tuple[Message, list[Message]]:
    """Return the true request (as the model's broker sent it), and a batch that also has forged requests."""
    (true,) = cluster.due()
    for request in _forged(true.request):
        cluster.publish(request)
    forged = [message for message in cluster.due() if message is not true]
    at = {"first": 0, "in between": 2, "last": len(forged)}[place]
    return true, [*forged[:at], true, *forged[at:]]


@pytest.mark.parametrize("uses_cache", [True, False])
@pytest.mark.parametrize("place", ["first", "in between", "last"])
def test_the_true_request_is_processed_at_once_at_any_position_of_the_batch(
    cluster: Cluster, place: str, *, uses_cache: bool
) -> None:
    true, batch = _batch(cluster, place)
    cluster.sweep(0, batch, replace(UNDISTURBED, uses_cache=uses_cache))
    ends = {final.message: final.outcome for final in cluster.finals}
    assert ends[true.number] is Outcome.DELETED
    assert [deletion.ledger_id for deletion in cluster.deletions] == [true.request.ledger_id]
    assert Outcome.DELETED not in {outcome for number, outcome in ends.items() if number != true.number}
    for promise in PROMISES:
        promise(cluster)


@pytest.mark.parametrize("place", ["first", "in between", "last"])
def test_each_receipt_has_the_certificate_of_its_own_owner(cluster: Cluster, place: str) -> None:
    _true, batch = _batch(cluster, place)
    cluster.sweep(0, batch)
    assert len(cluster.certificates) == len(batch)
    assert cluster.mistaken_certificates() == []
    named = {text.split("@")[0] for key, text in cluster.certificates if key == f"data:{NAME}"}
    assert named == {"zookeeper=3"}


def test_forged_requests_that_are_retried_delay_no_true_request(cluster: Cluster) -> None:
    """Requests that were retried together are judged in one batch again."""
    true, batch = _batch(cluster, "last")
    cluster.unreadable.add("/managed-ledgers/" + NAME)
    cluster.sweep(0, batch)
    assert true.number in cluster.waiting()
    cluster.unreadable.clear()
    cluster.pulsar.pass_time(DAY_MS // 2)
    cluster.sweep(0, sorted(cluster.due(), key=lambda message: -message.number))
    assert {final.message: final.outcome for final in cluster.finals}[true.number] is Outcome.DELETED
