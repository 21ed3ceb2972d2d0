"""Which of an audit's orphans are requested: all when a person publishes, each once when audits repeat themselves."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streaming.audit.options import AuditOptions
from streaming.audit.place import Place
from streaming.audit.publication import asked
from streaming.audit.publication.plan import PublicationPlan, finish, plan_name, plans, prepare, unfinished
from streaming.audit.publication.send import send
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.terminal import count_of
from udfs import columns as c


@dataclass(frozen=True, slots=True)
class Published:
    """requests: how many were sent now. before: how many orphans were left out, because they were requested before.

    is_repetition: the very same publication was finished earlier, and nothing was sent.
    """

    requests: int
    before: int = 0
    is_repetition: bool = False

    def in_words(self, topic: str) -> str:
        """Return one line for a log."""
        what = "already held" if self.is_repetition else "received"
        left_out = f"; left out, as requested before: {count_of(self.before, 'orphan')}" if self.before else ""
        return f"{topic} {what} {count_of(self.requests, 'request')}{left_out}"


@dataclass(frozen=True, slots=True)
class Publication:
    """Publishes one audit's orphans. is_repeated: leave out those that were requested from the same place before."""

    settings: Settings
    place: Place
    options: AuditOptions
    clock: Clock
    is_repeated: bool

    def publish(self, audit_id: str, orphans: DataFrame) -> Published:
        """Send a request for each, or those that an interrupted run did not send. Raises UnavailableError."""
        if not self.is_repeated:
            return self._publish(audit_id, orphans)
        resumed = sum(self._resume(plan, orphans) for plan in unfinished(self.place, self.options.filters))
        sent = [plan.name for plan in plans(self.place) if plan.is_done]
        new = asked.without_asked(orphans, self.place, sent)
        before = orphans.count() - new.count() - resumed
        # without this, every turn would leave a plan for nothing behind
        published = Published(0) if new.isEmpty() else self._publish(audit_id, new)
        return Published(published.requests + resumed, max(0, before))

    def _resume(self, plan: PublicationPlan, orphans: DataFrame) -> int:
        self._send(plan, asked.rows(orphans.sparkSession, self.place, plan.name), is_fresh=False)
        return plan.requests

    def _publish(self, audit_id: str, orphans: DataFrame) -> Published:
        totals = orphans.agg(F.count(F.lit(1)).alias("n"), F.sum(c.BYTES).alias("total")).first()
        count, size = (totals["n"], totals["total"] or 0) if totals else (0, 0)
        name = plan_name(audit_id, self.options.filters)
        plan = PublicationPlan(name, audit_id, self.clock.now_ms(), count, size, {})
        plan, is_fresh = prepare(self.settings, self.place, plan, orphans)
        if not plan.is_done:
            self._send(plan, asked.rows(orphans.sparkSession, self.place, plan.name), is_fresh=is_fresh)
        return Published(plan.requests, is_repetition=plan.is_done)

    def _send(self, plan: PublicationPlan, orphans: DataFrame, *, is_fresh: bool) -> None:
        send(self.settings, orphans, plan, is_fresh=is_fresh, per_second=self.options.publish_per_second)
        finish(self.place, plan)
