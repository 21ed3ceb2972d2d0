"""Evaluates a chunk's receipts: updates metrics, log, cache and baselines, and raises the alarm.

The alarm: the service kept a ledger because it was in use, and the ledger is gone nevertheless, so another program or
this service has deleted it. If this service may have deleted it, or if more than one tenant lost ledgers, the service
stops until the operator has checked. If only one tenant lost ledgers, and this service had not planned to delete them,
the tenant is held: the service deletes nothing of this tenant until the operator resumes it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.deletion.gate import Outages
from streaming.errors import SafetyError
from streaming.in_use.cache import InUseCache
from streaming.in_use.missing import LossCheck, Missing
from streaming.in_use.source_watch import SourceWatch
from streaming.limits.breaker import Breaker
from streaming.metrics import Metrics
from streaming.state.receipts import ChunkSummary, Receipts
from streaming.terminal import count_of
from udfs.records import Reason
from udfs.requests.topic_pattern import PULSARS_TENANTS

_FORGET_AT_ONCE = 10_000
_LOST = "KEPT_AND_GONE: "  # prefix of the reason why a tenant that lost ledgers is held
_SHOWN = 200  # characters of an example; it may be thousands of characters long, and every receipt would contain it


@dataclass(slots=True, kw_only=True)
class FollowUp:
    """Evaluates the receipts of published chunks. A service has one instance."""

    receipts: Receipts
    cache: InUseCache
    watch: SourceWatch
    missing: LossCheck
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
        self.log(f"{query}: chunk {chunk}: {count_of(summary.total, 'request')}, {took}: {parts}")

    def look_after(self, chunk: int, summary: ChunkSummary) -> None:
        """Evaluate the receipts of a published chunk. Raises SafetyError if ledgers in use may have been deleted."""
        if summary.has_refreshed:
            self.cache.forget(self.receipts.refreshed_keys(chunk, _FORGET_AT_ONCE))
        self.watch.after(chunk)
        if any(reason == Reason.KEPT_AND_GONE for _outcome, reason in summary.outcomes):
            self.outages.wait_through(lambda: self._sound_alarm(chunk))

    def _sound_alarm(self, chunk: int) -> None:
        missing = self.missing.of(chunk, self.outages.stop)
        if not missing.tenants:
            return
        if missing.is_one_tenants and missing.tenants.keys() == self._tenants_with_losses(missing):
            # the tenant may have deleted a topic while its broker was still deleting ledgers, and no tenant may block
            # the requests of others by what it does to its own topics
            self.tenants.hold({tenant: f"{_LOST}{_summary(lost, chunk)}" for tenant, lost in missing.tenants.items()})
            return
        why = _summary(missing.ours or [ledger for lost in missing.tenants.values() for ledger in lost], chunk)
        # before the failure: the breaker is a znode, so the next start finds the work blocked (decision 17)
        self.breaker.trip(why)
        failure = SafetyError(
            f"{why}. Find out which program deleted them; `ledger-reaper undo` restores what we deleted"
        )
        self.outages.fail(failure)
        raise failure

    def _tenants_with_losses(self, missing: Missing) -> set[str]:
        """Return the tenants that lost ledgers since the operator last resumed, without Pulsar's own tenants."""
        held = {tenant for tenant, why in self.tenants.now().items() if why.startswith(_LOST)}
        # a loss of Pulsar's own tenants is never a single tenant's loss
        return (held | missing.tenants.keys()) - PULSARS_TENANTS


def _summary(lost: Sequence[str], chunk: int) -> str:
    return f"ledgers or objects in use are gone: {len(lost)}, for example {lost[0][:_SHOWN]} (chunk {chunk})"
