"""What follows from a chunk's receipts: metrics, a log line, what the sources of in-use sets said; and the alarm.

The alarm: a ledger that we kept because it was in use, and that is gone all the same, was deleted by somebody. Where
that may be us, or concerns more than one tenant, nobody goes on before a person has looked. Where it is one tenant's
alone and we had not meant to delete it, that tenant is held: it may have deleted a topic with its broker still at it,
and nobody may stop the others' requests by what he does to his own topics.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streaming.deletion.outages import Outages
from streaming.deletion.tenants import HeldTenants
from streaming.errors import SafetyError
from streaming.in_use.cache import InUseCache
from streaming.in_use.missing import Missing, MissingOnes
from streaming.in_use.watch import SourceWatch
from streaming.limits.breaker import Breaker
from streaming.metrics import Metrics
from streaming.state.receipts import ChunkSummary, Receipts
from udfs.records import Reason
from udfs.topic_pattern import PULSARS_TENANTS

_FORGET_AT_ONCE = 10_000
_LOST = "KEPT_AND_GONE: "  # begins the reason of a tenant that is held for this
_SHOWN = 200  # characters of an example, which may be thousands long and would stand in every receipt


@dataclass(slots=True)
class FollowUp:
    """One per service."""

    receipts: Receipts
    cache: InUseCache
    watch: SourceWatch
    missing: MissingOnes
    tenants: HeldTenants
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
        """Learn from the receipts of a published chunk. Raises SafetyError where we may have deleted what is in use."""
        if summary.has_refreshed:
            self.cache.forget(self.receipts.refreshed_keys(chunk, _FORGET_AT_ONCE))
        self.watch.after(chunk)
        if any(reason == Reason.KEPT_AND_GONE for _outcome, reason in summary.outcomes):
            self.outages.wait_through(lambda: self._sound_alarm(chunk))

    def _sound_alarm(self, chunk: int) -> None:
        missing = self.missing.of(chunk, self.outages.stop)
        if not missing.tenants:
            return
        if missing.is_one_tenants and missing.tenants.keys() == self._lost_one(missing):
            self.tenants.hold({tenant: f"{_LOST}{_told(lost, chunk)}" for tenant, lost in missing.tenants.items()})
            return
        why = _told(missing.ours or [each for lost in missing.tenants.values() for each in lost], chunk)
        self.breaker.trip(why)
        failure = SafetyError(f"{why}. Find out who deletes; `ledger-reaper undo` puts back what we did")
        self.outages.fail(failure)
        raise failure

    def _lost_one(self, missing: Missing) -> set[str]:
        """Return the tenants that have lost something since a person resumed last, Pulsar's own counting as another."""
        held = {tenant for tenant, why in self.tenants.now().items() if why.startswith(_LOST)}
        return (held | missing.tenants.keys()) - PULSARS_TENANTS


def _told(lost: Sequence[str], chunk: int) -> str:
    return f"{len(lost)} kept and in use, and yet gone, for example {lost[0][:_SHOWN]} (chunk {chunk})"
