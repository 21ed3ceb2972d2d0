"""The world that most tests of a sweep start with."""

import pytest

from tests.builders import TOPIC, data_request, list_znode, view
from tests.sweeps import LIST
from tests.world import Bench
from udfs.records import LedgerState


@pytest.fixture
def bench() -> Bench:
    """A topic that names ledgers 8 and 9, and its orphans 5 and 6, all old."""
    bench = Bench()
    bench.owner(LIST, list_znode(8, 9))
    bench.broker.topics[TOPIC] = view(8, 9)
    for ledger_id in (5, 6, 8):
        bench.ledger(data_request(ledger_id))
    bench.ledger(data_request(9), state=LedgerState.OPEN)
    bench.age()
    return bench
