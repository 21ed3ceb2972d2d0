"""The Spark jobs of the two looks: each suspect and its owner are read again, and what looks bad, once more later.

One look could meet a topic between two writes. Only what both looks agree on is called ORPHAN or MISSING.
"""

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit import columns as a
from streaming.audit import join
from streaming.audit.looks.ledgers import LookTask
from streaming.audit.options import AuditOptions
from streaming.audit.stages import PhaseTools
from streaming.config.policies import policy_of
from streaming.config.settings import Settings
from udfs.judge import Policy

SECOND_LOOK_WAITS = "Waiting before the second look (--recheck-seconds)"


def look_twice(tools: PhaseTools, suspects: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the suspects after the first look, and the candidates among them after the second.

    Raises StoppedError when the audit is asked to stop between the looks.
    """
    first = _look(tools, "First look at suspects and their topics", suspects, is_second=False)
    candidates = join.candidates(first)
    if candidates.isEmpty():
        return first, tools.no_suspects()
    tools.phases.wait(SECOND_LOOK_WAITS, tools.options.recheck_seconds)
    return first, _look(tools, "Second look", candidates, is_second=True)


def audit_policy(settings: Settings, options: AuditOptions) -> Policy:
    """Take the sweep's rules, except that the two looks are as far apart as this audit's pause."""
    return replace(policy_of(settings), absence_interval_ms=options.recheck_seconds * 1000)


def _look(tools: PhaseTools, name: str, suspects: DataFrame, *, is_second: bool) -> DataFrame:
    with tools.phases.phase(name) as phase:
        task = LookTask(
            tools.settings,
            tools.layout,
            audit_policy(tools.settings, tools.options),
            tools.completeness.blocked_paths,
            tools.reads_per_second,
            is_second,
        )
        total = suspects.count()
        phase.came_to(total, "suspects")
        if not total:
            return tools.no_suspects()
        grouped = join.by_owner(suspects, tools.tasks_of(total))
        looked = grouped.mapInArrow(task, from_arrow_schema(a.SUSPECT))
        return tools.stages.keep("second" if is_second else "first", looked).rows
