"""What becomes of an audit's orphans: a person has all asked for; an audit that repeats itself asks once for each."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streaming.audit.options import AuditOptions
from streaming.audit.place import Place
from streaming.audit.publication import asked
from streaming.audit.publication import send as publish
from streaming.audit.publication.send import PublicationPlan
from streaming.clock import Clock
from streaming.config.settings import Settings
from udfs import columns as c


@dataclass(frozen=True, slots=True)
class Published:
    """requests: sent now. before: orphans that were left out, since they were asked for already."""

    requests: int
    before: int = 0
    is_repetition: bool = False

    def told(self, topic: str) -> str:
        """One line for a log."""
        how = "were already in" if self.is_repetition else "published to"
        left_out = f"; {self.before} orphans left out that were asked for before" if self.before else ""
        return f"{self.requests} requests {how} {topic}{left_out}"


@dataclass(frozen=True, slots=True)
class Publication:
    """Sends one audit's orphans. is_repeated: leave out what was asked for from the same place."""

    settings: Settings
    place: Place
    options: AuditOptions
    clock: Clock
    is_repeated: bool

    def publish(self, audit_id: str, orphans: DataFrame) -> Published:
        """Send them, or what is missing of them where an earlier run was cut short. Raises UnavailableError."""
        if not self.is_repeated:
            return self._send(audit_id, orphans)
        resumed = sum(self._resume(plan, orphans) for plan in publish.unfinished(self.place, self.options.filters))
        sent = [plan.name for plan in publish.plans(self.place) if plan.is_done]
        new = asked.without_asked(orphans, self.place, sent)
        before = orphans.count() - new.count() - resumed
        # a plan for nothing would be a file more with every turn
        published = Published(0) if new.isEmpty() else self._send(audit_id, new)
        return Published(published.requests + resumed, max(0, before))

    def _resume(self, plan: PublicationPlan, orphans: DataFrame) -> int:
        self._finish(plan, asked.rows(orphans.sparkSession, self.place, plan.name), is_fresh=False)
        return plan.requests

    def _send(self, audit_id: str, orphans: DataFrame) -> Published:
        totals = orphans.agg(F.count(F.lit(1)).alias("n"), F.sum(c.BYTES).alias("total")).first()
        count, size = (totals["n"], totals["total"] or 0) if totals else (0, 0)
        name = publish.plan_name(audit_id, self.options.filters)
        plan = PublicationPlan(name, audit_id, self.clock.now_ms(), count, size, {})
        plan, is_fresh = publish.prepare(self.settings, self.place, plan, orphans)
        if not plan.is_done:
            self._finish(plan, asked.rows(orphans.sparkSession, self.place, plan.name), is_fresh=is_fresh)
        return Published(plan.requests, is_repetition=plan.is_done)

    def _finish(self, plan: PublicationPlan, orphans: DataFrame, *, is_fresh: bool) -> None:
        rate = self.options.publish_per_second
        publish.send(self.settings, orphans, plan, is_fresh=is_fresh, per_second=rate)
        publish.finish(self.place, plan)
