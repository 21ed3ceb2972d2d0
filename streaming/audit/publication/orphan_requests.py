"""Requests the deletion of an audit's orphans.

If an operator publishes, it requests all of them; in repeated audits, only those that were not requested before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streaming.audit.audit_options import AuditOptions
from streaming.audit.output import Output
from streaming.audit.publication import asked
from streaming.audit.publication.publication_plan import (
    PublicationPlan,
    finish,
    open_topics,
    plan_name,
    plans,
    prepare,
    unfinished,
)
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
    unsent: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # lane -> requests not sent, and why

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
        resumed = [self._resume(plan, orphans) for plan in unfinished(self.output, self.options.filters)]
        # what was left out of a plan that was resumed is sent by a later try of that plan
        known = [plan.name for plan in plans(self.output) if plan.is_done]
        known += [plan.name for plan in unfinished(self.output, self.options.filters)]
        new = asked.without_asked(orphans, self.output, known)
        sent = sum(each.requests for each in resumed)
        before = orphans.count() - new.count() - sent
        # otherwise every repetition would write an empty plan
        published = OrphansRequested(0) if not new.count() else self._publish(audit_id, new)
        unsent: dict[str, tuple[int, str]] = {}
        for each in (*resumed, published):
            for lane, (requests, why) in each.unsent.items():
                unsent[lane] = (unsent.get(lane, (0, ""))[0] + requests, why)
        missing = sum(requests for each in resumed for requests, _why in each.unsent.values())
        return OrphansRequested(published.requests + sent, max(0, before - missing), unsent=unsent)

    def _resume(self, plan: PublicationPlan, orphans: Rows) -> OrphansRequested:
        if not asked.has(self.output, plan.name):  # none of its orphans is left (asked.forget)
            finish(self.output, plan)
            return OrphansRequested(0)
        return self._send(plan, asked.rows(orphans.tables, self.output, plan.name), is_fresh=False)

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
        if plan.is_done:
            return OrphansRequested(plan.requests, is_repetition=True)
        return self._send(plan, asked.rows(orphans.tables, self.output, plan.name), is_fresh=is_fresh)

    def _send(self, plan: PublicationPlan, orphans: Rows, *, is_fresh: bool) -> OrphansRequested:
        counted = orphans.select(f"SELECT {asked.REQUEST_TOPIC}, count(*) AS n FROM rows GROUP BY ALL ORDER BY ALL")
        requests = {row[asked.REQUEST_TOPIC]: row["n"] for row in counted.fetched()}
        opened = open_topics(self.settings, self.output, plan, requests)
        per_second = self.options.publish_per_second
        unsent = {
            **opened.unsent,
            **send(self.settings, orphans, opened, is_fresh=is_fresh, per_second=per_second),
        }
        if not unsent:
            finish(self.output, opened.plan)
        return OrphansRequested(plan.requests - sum(count for count, _why in unsent.values()), unsent=unsent)
