"""Keeps track of the tenants that are held, and shows them in the log and in a metric."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streaming.limits.tenants import TenantHolds
from streaming.metrics import Metrics


@dataclass(slots=True)
class HeldTenants:
    """One per service, asked before and after each chunk; several threads may ask at once.

    Raises UnavailableError when ZooKeeper does not answer.
    """

    holds: TenantHolds
    metrics: Metrics
    log: Callable[[str], None]
    _shown: Mapping[str, str] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> Mapping[str, str]:
        """Return why each held tenant is held."""
        with self._guard:
            return self._show(self.holds.read())

    def hold(self, doubted: Mapping[str, str]) -> Mapping[str, str]:
        """Hold these tenants as well, until the operator resumes them; return all held tenants."""
        with self._guard:
            return self._show(self.holds.hold(doubted) if doubted else self.holds.read())

    def _show(self, held: Mapping[str, str]) -> Mapping[str, str]:
        for tenant in held.keys() - self._shown.keys():
            self.log(
                f"TENANT HELD, nothing of {tenant} is deleted: {held[tenant]}. Find out why, "
                f"then `ledger-reaper resume --tenant {tenant}`."
            )
        for tenant in self._shown.keys() - held.keys():
            self.log(f"tenant {tenant} resumed")
        self.metrics.held_tenants(held)
        self._shown = held
        return held
