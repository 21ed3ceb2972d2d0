"""Reads the holds, also while no chunk waits for one, and shows them in log, metrics and /readyz."""

import contextlib
from dataclasses import dataclass

from streaming.beside import Beside, Work, logged
from streaming.clock import Clock
from streaming.coordination.pause import Pause
from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.deletion.gate import Gate
from streaming.errors import UnavailableError
from streaming.metrics import Holds, Metrics

_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldWatch:
    """One per service."""

    gate: Gate
    pause: Pause
    tenants: HeldTenants
    metrics: Metrics
    clock: Clock
    every_s: float = _EVERY_S

    def look(self) -> None:
        """Read all holds once. Raises UnavailableError."""
        self.gate.log_hold()  # also ends a pause whose time is over, before it is read below
        self.tenants.now()  # logs and shows the held tenants
        pause = self.pause.read()
        limit, limit_since_ms = self.gate.blast_radius.breaker.tripped()
        holds = Holds(
            paused="" if pause is None else pause.text,
            paused_since_ms=0 if pause is None else pause.since_ms,
            limit=limit,
            limit_since_ms=limit_since_ms,
            migration=self.gate.coordination.migration(),
            tenants_since_ms=self.tenants.holds.since_ms(),
        )
        self.metrics.holds(holds, self.clock.now_ms() / 1000)

    def beside(self) -> Beside:
        """Return the thread that reads the holds at each interval."""

        def look() -> None:
            # the last values stay, and HOLDS_READ shows their age; the next chunk waits for ZooKeeper and logs that
            with contextlib.suppress(UnavailableError):
                self.look()

        work = Work(name="holds", run=look, every_s=self.every_s, on_failure=logged("reading the holds", self.every_s))
        return Beside(work)
