"""Creates and moves guards beside the service, in a thread of its own and without Spark; [snapshots] configures it."""

import logging
import threading
import time
from dataclasses import dataclass, field

from streaming.audit.audit_options import FindingFilters
from streaming.beside import Beside, Work, logged
from streaming.config.settings import Settings
from streaming.prometheus import table
from streaming.prometheus.registry import Registry
from streaming.snapshots.guard.guards import GuardState, guard_all

log = logging.getLogger("ledger-reaper")

_LEAVE_S = 3.0  # a stop waits no longer: the next run repeats an interrupted guard


def guarding(settings: Settings, registry: Registry) -> Beside:
    """Return the work that creates and moves guards, and shows them in metrics; its first run is immediate."""
    stop, metrics = threading.Event(), GuardMetrics(registry)

    def run() -> None:
        states = []
        for guarded in guard_all(settings, FindingFilters()):
            if stop.is_set():
                return
            log_line = log.error if guarded.error else log.info if guarded.is_new or guarded.moved_from else log.debug
            log_line("snapshots: %s", guarded.describe())
            states.append(guarded)
        metrics.show(states, time.time())

    every_s = settings.snapshots.guard_every_seconds
    on_failure = logged("guard of snapshots", every_s)
    return Beside(Work(name="guard", run=run, every_s=every_s, leave_s=_LEAVE_S, on_failure=on_failure), stop)


@dataclass(slots=True)
class GuardMetrics:
    """The metrics of all guards."""

    registry: Registry
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)  # namespace -> ledger, first seen there (seconds)

    def show(self, states: list[GuardState], now_s: float) -> None:
        """Show a complete pass over all guards."""
        guarded = {state.namespace: state.position[0] for state in states if not state.error}
        known = self._seen
        self._seen = {name: (ledger, now_s) for name, ledger in guarded.items()}
        self._seen |= {name: known[name] for name, ledger in guarded.items() if known.get(name, (None,))[0] == ledger}
        moved = {name: seen_s for name, (_ledger, seen_s) in self._seen.items()}
        self.registry.set(table.GUARD_PASS, now_s)
        self.registry.set(table.GUARDS, len(guarded))
        self.registry.set(table.GUARD_FAILURES, sum(1 for state in states if state.error))
        self.registry.set(table.GUARD_LOST, sum(state.lost for state in states))
        self.registry.show(table.GUARD_LEDGER, guarded, is_sum=False)
        self.registry.show(table.GUARD_MOVED, moved, is_sum=False)
