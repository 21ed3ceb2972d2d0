"""The two checks: the first reads each suspect and its owner again; the second repeats this for the candidates."""

from dataclasses import replace

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.audit_options import AuditOptions
from streaming.audit.checks.suspect_ledgers import CheckTask
from streaming.audit.stages import PhaseTools
from streaming.audit.tables import Rows
from streaming.config.policies import policy_of
from streaming.config.settings import Settings
from udfs.verdicts.judge import Policy

_SUSPECTS_AT_ONCE = 2_000
WAITING = "Waiting before the second check (--recheck-seconds)"


def check_twice(tools: PhaseTools, suspects: Rows) -> tuple[Rows, Rows]:
    """Return the suspects after the first check, and the candidates among them after the second.

    Raises StoppedError when the audit is stopped between the checks.
    """
    first = _check(tools, "First check of suspects and their topics", suspects, is_second=False)
    candidates = reference_join.candidates(first)
    if not candidates.count():
        return first, tools.no_suspects()
    # a single check could meet a topic between two writes
    tools.phases.wait(WAITING, tools.options.recheck_seconds)
    return first, _check(tools, "Second check", candidates, is_second=True)


def audit_policy(settings: Settings, options: AuditOptions) -> Policy:
    """Return the sweep's rules, except that the two checks are as far apart as this audit's pause."""
    return replace(policy_of(settings), absence_interval_ms=options.recheck_seconds * 1000)


def _check(tools: PhaseTools, name: str, suspects: Rows, *, is_second: bool) -> Rows:
    with tools.phases.phase(name) as phase:
        task = CheckTask(
            settings=tools.settings,
            layout=tools.layout,
            policy=audit_policy(tools.settings, tools.options),
            unreadable=tools.completeness.blocked_paths,
            reads_per_second=tools.options.reads_per_second,
            is_second=is_second,
        )
        total = suspects.count()
        phase.processed(total, "suspects")
        if not total:
            return tools.no_suspects()
        return tools.run(phase, task, reference_join.by_owner(suspects), a.SUSPECT, at_once=_SUSPECTS_AT_ONCE)
