"""After a chunk: stale sets are forgotten, and what was in use and is gone stops everything until a person looks."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.deletion.service import LedgerDeletionService
from streaming.errors import SafetyError
from streaming.limits.breaker import Breaker
from streaming.state.receipts import ChunkSummary
from tests.services import service_of
from udfs.records import Outcome, Reason

LOST = {(str(Outcome.RETRY), str(Reason.KEPT_AND_GONE)): 1}
KEPT = {(str(Outcome.RETRY), str(Reason.IN_USE)): 1}


def _service(missing: list[str], **parts: Any) -> LedgerDeletionService:
    def look(_chunk: int, _stop: threading.Event) -> list[str]:
        return missing

    watch = SimpleNamespace(after=lambda _chunk: None, missing=look)
    return service_of(watch=watch, breaker=Breaker(MemoryStore(), "/lr/breaker"), **parts)


def _summary(outcomes: dict[tuple[str, str], int], *, has_refreshed: bool = False) -> ChunkSummary:
    return ChunkSummary(outcomes, {}, 0, has_refreshed, frozenset({1}))


def test_what_was_in_use_and_is_gone_stops_every_run_until_a_person_looks() -> None:
    service = _service(["LEDGER 7 of data:a"])
    with pytest.raises(SafetyError, match="1 kept and in use, and yet gone, for example LEDGER 7 of data:a"):
        service.follow_up.look_after(3, _summary(LOST))
    assert service.gate.stop.is_set()
    assert service.outages.fatal
    assert "(chunk 3)" in service.follow_up.breaker.reason()


@pytest.mark.parametrize(
    ("outcomes", "missing"),
    [
        pytest.param(LOST, [], id="its owner has given it up meanwhile"),
        pytest.param(KEPT, ["LEDGER 7 of data:a"], id="no receipt says that anything is gone"),
    ],
)
def test_nothing_stops_where_nothing_in_use_is_gone(outcomes: dict[tuple[str, str], int], missing: list[str]) -> None:
    service = _service(missing)
    service.follow_up.look_after(3, _summary(outcomes))
    assert not service.gate.stop.is_set()
    assert service.follow_up.breaker.reason() == ""


@pytest.mark.parametrize("has_refreshed", [True, False])
def test_in_use_sets_that_an_executor_found_stale_are_forgotten(*, has_refreshed: bool) -> None:
    forgotten: list[str] = []
    receipts = SimpleNamespace(refreshed_keys=lambda _chunk, _limit: ["data:a"])
    service = _service([], receipts=receipts, cache=SimpleNamespace(forget=forgotten.extend))
    service.follow_up.look_after(3, _summary(KEPT, has_refreshed=has_refreshed))
    assert forgotten == (["data:a"] if has_refreshed else [])
