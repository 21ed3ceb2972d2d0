"""The Spark jobs of the two checks: each suspect and its owner are read again, and those of candidates once more."""

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.audit_options import AuditOptions
from streaming.audit.checks.suspect_ledgers import CheckTask
from streaming.audit.stages import PhaseTools
from streaming.config.policies import policy_of
from streaming.config.settings import Settings
from udfs.verdicts.judge import Policy

WAITING = "Waiting before the second check (--recheck-seconds)"


def check_twice(tools: PhaseTools, suspects: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the suspects after the first check, and the candidates among them after the second.

    Raises StoppedError when the audit is stopped between the checks.
    """
    first = _check(tools, "First check of suspects and their topics", suspects, is_second=False)
    candidates = reference_join.candidates(first)
    if candidates.isEmpty():
        return first, tools.no_suspects()
    # a single check could meet a topic between two writes
    tools.phases.wait(WAITING, tools.options.recheck_seconds)
    return first, _check(tools, "Second check", candidates, is_second=True)


def audit_policy(settings: Settings, options: AuditOptions) -> Policy:
    """Return the sweep's rules, except that the two checks are as far apart as this audit's pause."""
    return replace(policy_of(settings), absence_interval_ms=options.recheck_seconds * 1000)


def _check(tools: PhaseTools, name: str, suspects: DataFrame, *, is_second: bool) -> DataFrame:
    with tools.phases.phase(name) as phase:
        task = CheckTask(
            settings=tools.settings,
            layout=tools.layout,
            policy=audit_policy(tools.settings, tools.options),
            unreadable=tools.completeness.blocked_paths,
            reads_per_second=tools.reads_per_second,
            is_second=is_second,
        )
        total = suspects.count()
        phase.processed(total, "suspects")
        if not total:
            return tools.no_suspects()
        # so that each owner is read once
        grouped = reference_join.by_owner(suspects, tools.tasks_of(total))
        checked = grouped.mapInArrow(task, from_arrow_schema(a.SUSPECT))
        return tools.stages.keep("second" if is_second else "first", checked).rows
