"""Holds are read from ZooKeeper again and again, so they are right after a restart, whether or not a chunk waits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.clock import ManualClock
from streaming.coordination.pause import Pause
from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.deletion.supervision.holds import HoldWatch
from streaming.errors import UnavailableError
from streaming.limits.breaker import Breaker
from streaming.limits.tenants import TenantHolds
from streaming.metrics import Metrics
from tests.services import service_of

NOW_MS = 1_700_000_000_000


class Run:
    """A run of the service on a ZooKeeper that outlives it."""

    def __init__(self, store: MemoryStore, state_dir: Path) -> None:
        self.metrics, self.lines = Metrics(), list[str]()
        self.pause, self.breaker = Pause(store, "/lr"), Breaker(store, "/lr/breaker")
        coordination = SimpleNamespace(paused=self.pause.reason, migration=lambda: "")
        gate = service_of(
            coordination=coordination,
            blast_radius=SimpleNamespace(breaker=self.breaker),
            metrics=self.metrics,
            state_dir=str(state_dir),
        ).gate
        gate.log = self.lines.append
        self.tenants = HeldTenants(TenantHolds(store, "/lr/held"), self.metrics, self.lines.append)
        self.watch = HoldWatch(
            gate=gate, pause=self.pause, tenants=self.tenants, metrics=self.metrics, clock=ManualClock(NOW_MS)
        )

    def shown(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"ledger_reaper_{name}", labels)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_later_run_shows_what_an_earlier_one_was_held_by(store: MemoryStore, tmp_path: Path) -> None:
    first = Run(store, tmp_path)
    first.pause.set("maintenance")
    first.breaker.trip("60 deletes")
    first.tenants.hold({"shop": "161 of 200"})
    later = Run(store, tmp_path)
    assert later.shown("paused") is None, "it was not read yet"
    later.watch.look()
    assert [later.shown(name) for name in ("paused", "limit_reached", "tenants_held")] == [1, 1, 1]
    for name in ("paused", "limit_reached", "tenants_held"):
        assert (later.shown(f"{name}_since_timestamp_seconds") or 0) > 0
    assert later.shown("tenant_held", tenant="shop") == 1
    assert later.shown("holds_read_timestamp_seconds") == NOW_MS / 1000
    assert later.metrics.health.waits_for.count("\n") == 2


def test_the_end_of_each_hold_is_seen(store: MemoryStore, tmp_path: Path) -> None:
    run = Run(store, tmp_path)
    run.pause.set("maintenance")
    run.breaker.trip("60 deletes")
    run.tenants.hold({"shop": "161 of 200"})
    run.watch.look()
    pause = run.pause.read()
    assert pause is not None
    run.pause.end(pause)
    run.breaker.clear(now_ms=NOW_MS)
    run.tenants.holds.release("shop")
    run.watch.look()
    for name in ("paused", "limit_reached", "tenants_held"):
        assert (run.shown(name), run.shown(f"{name}_since_timestamp_seconds")) == (0, 0)
    assert not run.metrics.health.waits_for
    assert len(run.lines) == 4, "each hold, and the end of each; a limit is named only once the pause is over"


def test_a_zookeeper_that_does_not_answer_leaves_what_was_known(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(store, tmp_path)
    run.pause.set("maintenance")
    run.watch.look()

    def away(_paths: object) -> Any:
        raise UnavailableError("away")

    monkeypatch.setattr(store, "read_many", away)
    beside = run.watch.beside()
    with pytest.raises(UnavailableError):
        run.watch.look()
    cast("Any", beside)._work.run()
    assert run.shown("paused") == 1
    assert run.shown("holds_read_timestamp_seconds") == NOW_MS / 1000
    assert not caplog.text
