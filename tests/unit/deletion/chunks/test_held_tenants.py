"""Held tenants are shown by name, once, when they are held and when an operator releases them."""

from streaming.adapters.memory.store import MemoryStore
from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.limits.tenants import TenantHolds
from streaming.metrics import Metrics


class Run:
    """A run of the service. lines: its log."""

    def __init__(self, holds: TenantHolds) -> None:
        self.lines: list[str] = []
        self.metrics = Metrics()
        self.tenants = HeldTenants(holds, self.metrics, self.lines.append)

    def shown(self, tenant: str) -> float | None:
        return self.metrics.registry.get_sample_value("ledger_reaper_tenant_held", {"tenant": tenant})


def test_a_tenant_is_named_when_it_is_held_and_when_it_is_let_go_and_not_in_between() -> None:
    holds = TenantHolds(MemoryStore(), "/lr/held-tenants")
    run = Run(holds)
    assert run.tenants.now() == {}
    assert run.tenants.hold({"shop": "161 of 200"}) == {"shop": "161 of 200"}
    assert run.tenants.hold({"bank": "all"}) == run.tenants.now() == {"shop": "161 of 200", "bank": "all"}
    assert [run.shown("shop"), run.shown("bank")] == [1, 1]
    assert holds.release("shop")
    assert holds.release("bank")
    assert run.tenants.now() == run.tenants.now() == {}
    assert [run.shown("shop"), run.shown("bank")] == [None, None]
    held = "TENANT HELD, nothing of {} is deleted: {}. Find out why, then `ledger-reaper resume --tenant {}`."
    assert run.lines[:2] == [held.format("shop", "161 of 200", "shop"), held.format("bank", "all", "bank")]
    assert sorted(run.lines[2:]) == ["tenant bank resumed", "tenant shop resumed"]


def test_a_later_run_shows_who_is_held() -> None:
    holds = TenantHolds(MemoryStore(), "/lr/held-tenants")
    Run(holds).tenants.hold({"shop": "161 of 200"})
    later = Run(holds)
    assert later.tenants.hold({}) == {"shop": "161 of 200"}
    assert later.shown("shop") == 1
    assert len(later.lines) == 1
