"""An empty transaction is begun on one topic and committed; whatever a coordinator refuses ends it before that."""

import pytest

from streaming.adapters.pulsar import transactions
from streaming.adapters.pulsar.transactions import commit_nothing
from streaming.errors import UnavailableError
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for

TOPIC = "persistent://t/ns/orders"


def _commit(partition: Partition) -> tuple[int, int]:
    return commit_nothing(settings_for(partition), TOPIC)


def test_the_transaction_is_committed_on_the_topic() -> None:
    with serving(Partition({}, None)) as partition:
        assert _commit(partition) == (0, 7)
        assert partition.ended == [(0, 7, 0, TOPIC)]


def test_a_busy_broker_has_a_minute_for_it() -> None:
    with serving(Partition({}, None)) as partition:
        _commit(partition)
        assert partition.timeouts_ms == [60_000]


@pytest.mark.parametrize("command", [transactions.JOIN, transactions.NEW, transactions.ADD])
def test_what_is_refused_ends_it_before_anything_is_committed(command: int) -> None:
    with serving(Partition({}, None, refuses=command)) as partition:
        with pytest.raises(UnavailableError, match="it says no"):
            _commit(partition)
        assert partition.ended == []


def test_a_commit_that_is_refused_is_told() -> None:
    with serving(Partition({}, None, refuses=transactions.END)) as partition, pytest.raises(UnavailableError):
        _commit(partition)
