"""An empty transaction is committed on a topic; a refusal of the coordinator ends it before."""

import pytest

from streaming.adapters.pulsar.snapshots import empty_transaction
from streaming.adapters.pulsar.snapshots.empty_transaction import commit_nothing
from streaming.errors import UnavailableError
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for

TOPIC = "persistent://t/ns/orders"


def _commit(partition: Partition) -> tuple[int, int]:
    return commit_nothing(settings_for(partition), TOPIC)


def test_the_transaction_is_committed_on_the_topic() -> None:
    with serving(Partition({}, None)) as partition:
        assert _commit(partition) == (0, 7)
        assert partition.ended == [(0, 7, 0, TOPIC)]


def test_the_transaction_has_a_timeout_of_a_minute() -> None:
    with serving(Partition({}, None)) as partition:
        _commit(partition)
        assert partition.timeouts_ms == [60_000]


@pytest.mark.parametrize("command", [empty_transaction.JOIN, empty_transaction.NEW, empty_transaction.ADD])
def test_a_refusal_ends_the_transaction_before_the_commit(command: int) -> None:
    with serving(Partition({}, None, refuses=command)) as partition:
        with pytest.raises(UnavailableError, match="it refuses"):
            _commit(partition)
        assert partition.ended == []


def test_a_refused_commit_is_an_error() -> None:
    with serving(Partition({}, None, refuses=empty_transaction.END)) as partition, pytest.raises(UnavailableError):
        _commit(partition)
