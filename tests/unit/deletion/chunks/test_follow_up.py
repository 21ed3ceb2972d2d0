"""After a chunk: stale sets are forgotten; if a ledger in use is gone, its tenant is held, or everything stops."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.errors import SafetyError
from streaming.in_use.missing import Missing
from streaming.limits.breaker import Breaker
from streaming.limits.tenants import TenantHolds
from streaming.metrics import Metrics
from streaming.state.receipts import ChunkSummary
from tests.services import service_of
from udfs.records import Outcome, Reason

LOST = {(str(Outcome.RETRY), str(Reason.KEPT_AND_GONE)): 1}
KEPT = {(str(Outcome.RETRY), str(Reason.IN_USE)): 1}


LEDGER = "LEDGER 7 of data:shop/ns/persistent/t"


class Scene:
    """A service whose chunks end with a loss. missing: the result of the search for each, in turn."""

    def __init__(self, *missing: Missing, **parts: Any) -> None:
        left = iter(missing)

        def look(_chunk: int, _stop: threading.Event) -> Missing:
            return next(left)

        self.lines: list[str] = []
        self.holds = TenantHolds(MemoryStore(), "/lr/held-tenants")
        self.service = service_of(
            watch=SimpleNamespace(after=lambda _chunk: None),
            missing=SimpleNamespace(of=look),
            tenants=HeldTenants(self.holds, Metrics(), self.lines.append),
            breaker=Breaker(MemoryStore(), "/lr/breaker"),
            **parts,
        )
        self.follow_up = self.service.follow_up

    @property
    def is_stopped(self) -> bool:
        stopped = self.service.gate.stop.is_set()
        assert stopped is bool(self.follow_up.breaker.reason()) is bool(self.service.outages.fatal)
        return stopped


def _summary(outcomes: dict[tuple[str, str], int], *, has_refreshed: bool = False) -> ChunkSummary:
    by_type: dict[tuple[str | None, str, str], int] = {
        ("LEDGER", outcome, reason): n for (outcome, reason), n in outcomes.items()
    }
    return ChunkSummary(by_type=by_type, copies={}, deleted_bytes=0, has_refreshed=has_refreshed, epochs=frozenset({1}))


def test_a_tenants_loss_that_is_not_ours_holds_that_tenant_only() -> None:
    scene = Scene(Missing({"shop": [LEDGER]}), Missing({"shop": [LEDGER, LEDGER]}))
    for chunk in (3, 4):
        scene.follow_up.look_after(chunk, _summary(LOST))
    assert not scene.is_stopped
    why = f"KEPT_AND_GONE: ledgers or objects in use are gone: 2, for example {LEDGER} (chunk 4)"
    assert scene.holds.read() == {"shop": why}
    assert any("TENANT HELD, nothing of shop is deleted" in line for line in scene.lines)


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        pytest.param(Missing({"shop": ["another", LEDGER]}, [LEDGER]), "1", id="we may have deleted it"),
        pytest.param(Missing({"shop": [LEDGER], "bank": ["another"]}), "2", id="several tenants lost something"),
        pytest.param(Missing({"pulsar": [LEDGER]}), "1", id="Pulsar's own, which no tenant deletes"),
    ],
)
def test_a_loss_that_may_be_ours_stops_every_run_until_an_operator_resumes(missing: Missing, told: str) -> None:
    scene = Scene(missing)
    with pytest.raises(SafetyError, match=f"in use are gone: {told}, for example {LEDGER}"):
        scene.follow_up.look_after(3, _summary(LOST))
    assert scene.is_stopped
    assert "(chunk 3)" in scene.follow_up.breaker.reason()


def test_tenants_that_lose_something_one_after_the_other_stop_every_run() -> None:
    scene = Scene(Missing({"shop": [LEDGER]}), Missing({"bank": [LEDGER]}))
    scene.follow_up.look_after(3, _summary(LOST))
    with pytest.raises(SafetyError):
        scene.follow_up.look_after(4, _summary(LOST))
    assert scene.is_stopped


def test_a_tenant_that_is_held_for_something_else_or_was_resumed_lost_nothing() -> None:
    scene = Scene(Missing({"bank": [LEDGER]}), Missing({"shop": [LEDGER]}))
    scene.holds.hold({"shop": "161 of the 200 owners known of tenant shop are gone at once"})
    scene.follow_up.look_after(3, _summary(LOST))
    for tenant in ("shop", "bank"):
        scene.holds.release(tenant)  # a person resumes
    scene.follow_up.look_after(4, _summary(LOST))
    assert not scene.is_stopped
    assert scene.holds.read().keys() == {"shop"}


@pytest.mark.parametrize(
    ("outcomes", "missing"),
    [
        pytest.param(LOST, Missing(), id="its owner has released it since"),
        pytest.param(KEPT, Missing({"shop": [LEDGER]}, [LEDGER]), id="no receipt has a deleted ledger"),
    ],
)
def test_nothing_stops_if_nothing_in_use_is_gone(outcomes: dict[tuple[str, str], int], missing: Missing) -> None:
    scene = Scene(missing)
    scene.follow_up.look_after(3, _summary(outcomes))
    assert not scene.is_stopped
    assert scene.holds.read() == {}


@pytest.mark.parametrize("has_refreshed", [True, False])
def test_in_use_sets_that_an_executor_found_stale_are_forgotten(*, has_refreshed: bool) -> None:
    forgotten: list[str] = []
    receipts = SimpleNamespace(refreshed_keys=lambda _chunk, _limit: ["data:a"])
    scene = Scene(receipts=receipts, cache=SimpleNamespace(forget=forgotten.extend))
    scene.follow_up.look_after(3, _summary(KEPT, has_refreshed=has_refreshed))
    assert forgotten == (["data:a"] if has_refreshed else [])
