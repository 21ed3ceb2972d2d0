"""A metadata store with the znodes that BookKeeper has next to its ledgers."""

from collections.abc import Iterator

import pytest

from streaming.adapters.memory.store import MemoryStore
from tests.builders import ROOT, put


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    made = MemoryStore()
    for name in ("LAYOUT", "INSTANCEID", "available/127.0.0.1:3181", "idgen/ID-1", "underreplication/ledgers"):
        put(made.tree, f"{ROOT}/{name}")
    yield made
    made.close()
