"""What follows from a chunk's receipts: metrics, a log line, what the sources of in-use sets said; and the alarm.

The alarm: a ledger that we kept because it was in use, and that is gone all the same, was deleted by somebody, us
perhaps. Then nobody goes on before a person has looked.
"""

from collections.abc import Callable
from dataclasses import dataclass

from streaming.deletion.outages import Outages
from streaming.errors import SafetyError
from streaming.in_use.cache import InUseCache
from streaming.in_use.watch import SourceWatch
from streaming.limits.breaker import Breaker
from streaming.metrics import Metrics
from streaming.state.receipts import ChunkSummary, Receipts
from udfs.records import Reason

_FORGET_AT_ONCE = 10_000


@dataclass(slots=True)
class FollowUp:
    """One per service."""

    receipts: Receipts
    cache: InUseCache
    watch: SourceWatch
    breaker: Breaker
    outages: Outages
    metrics: Metrics
    log: Callable[[str], None]

    def report(self, query: str, chunk: int, summary: ChunkSummary, took: str) -> None:
        """Count and log a chunk that this run has published."""
        self.metrics.count(query, summary)
        self.metrics.cache(self.cache)
        parts = ", ".join(f"{n} {outcome}/{reason}" for (outcome, reason), n in sorted(summary.outcomes.items()))
        self.log(f"{query}: chunk {chunk}: {summary.total} requests, {took}: {parts}")

    def look_after(self, chunk: int, summary: ChunkSummary) -> None:
        """Learn from the receipts of a published chunk. Raises SafetyError where something in use is gone."""
        if summary.has_refreshed:
            self.cache.forget(self.receipts.refreshed_keys(chunk, _FORGET_AT_ONCE))
        self.watch.after(chunk)
        if any(reason == Reason.KEPT_AND_GONE for _outcome, reason in summary.outcomes):
            self.outages.wait_through(lambda: self._stop_if_lost(chunk))

    def _stop_if_lost(self, chunk: int) -> None:
        missing = self.watch.missing(chunk, self.outages.stop)
        if missing:
            why = f"{len(missing)} kept and in use, and yet gone, for example {missing[0]} (chunk {chunk})"
            self.breaker.trip(why)
            failure = SafetyError(f"{why}. Find out who deletes; `ledger-reaper undo` puts back what we did")
            self.outages.fail(failure)
            raise failure
