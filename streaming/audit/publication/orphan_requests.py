"""Requests the deletion of an audit's orphans.

If an operator publishes, it requests all of them; in repeated audits, only those that were not requested before.
"""

from dataclasses import dataclass

from streaming.audit.audit_options import AuditOptions
from streaming.audit.output import Output
from streaming.audit.publication import asked
from streaming.audit.publication.publication_plan import PublicationPlan, finish, plan_name, plans, prepare, unfinished
from streaming.audit.publication.send import send
from streaming.audit.tables import Rows
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.terminal import count_of
from udfs import columns as c


@dataclass(frozen=True, slots=True)
class OrphansRequested:
    """The result of a publication."""

    requests: int  # sent now
    before: int = 0  # orphans that were left out because they were requested before
    is_repetition: bool = False  # the same publication was finished earlier, and nothing was sent

    def log_line(self, topic: str) -> str:
        """Return one line for a log."""
        what = "already held" if self.is_repetition else "received"
        left_out = f"; not requested again: {count_of(self.before, 'orphan')}" if self.before else ""
        return f"{topic} {what} {count_of(self.requests, 'request')}{left_out}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanRequests:
    """Publishes the orphans of an audit."""

    settings: Settings
    output: Output
    options: AuditOptions
    clock: Clock
    is_repeated: bool  # leave out orphans that audits of the same folder have requested before

    def publish(self, audit_id: str, orphans: Rows) -> OrphansRequested:
        """Send a request for each orphan, except those an interrupted run has sent. Raises UnavailableError."""
        if not self.is_repeated:
            return self._publish(audit_id, orphans)
        resumed = sum(self._resume(plan, orphans) for plan in unfinished(self.output, self.options.filters))
        sent = [plan.name for plan in plans(self.output) if plan.is_done]
        new = asked.without_asked(orphans, self.output, sent)
        before = orphans.count() - new.count() - resumed
        # otherwise every repetition would write an empty plan
        published = OrphansRequested(0) if not new.count() else self._publish(audit_id, new)
        return OrphansRequested(published.requests + resumed, max(0, before))

    def _resume(self, plan: PublicationPlan, orphans: Rows) -> int:
        self._send(plan, asked.rows(orphans.tables, self.output, plan.name), is_fresh=False)
        return plan.requests

    def _publish(self, audit_id: str, orphans: Rows) -> OrphansRequested:
        (totals,) = orphans.select(f"SELECT count(*) AS n, sum({c.BYTES}) AS total FROM rows").fetched()
        name = plan_name(audit_id, self.options.filters)
        plan = PublicationPlan(
            name=name,
            audit_id=audit_id,
            at_ms=self.clock.now_ms(),
            requests=totals["n"],
            size_bytes=totals["total"] or 0,
            after={},
        )
        plan, is_fresh = prepare(self.settings, self.output, plan, orphans)
        if not plan.is_done:
            self._send(plan, asked.rows(orphans.tables, self.output, plan.name), is_fresh=is_fresh)
        return OrphansRequested(plan.requests, is_repetition=plan.is_done)

    def _send(self, plan: PublicationPlan, orphans: Rows, *, is_fresh: bool) -> None:
        send(self.settings, orphans, plan, is_fresh=is_fresh, per_second=self.options.publish_per_second)
        finish(self.output, plan)
