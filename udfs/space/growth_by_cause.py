"""The growth of each cause between two runs of `space`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from udfs.space.causes import Cause
from udfs.space.space_report import SpaceReport
from udfs.space.view import View, rows_by, total
from udfs.units import DAY_MS, HOUR_MS

_DAY_BEFORE_MS = DAY_MS - 2 * HOUR_MS  # daily runs are rarely exactly a day apart


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """The sums of a run."""

    at_ms: int
    cluster: str
    complete: bool
    one_copy: int
    stored: int
    causes: Mapping[Cause, tuple[int, int]] = field(default_factory=dict)  # one copy, stored


@dataclass(frozen=True, slots=True)
class Growth:
    """The stored bytes of each cause now and at an earlier run."""

    since_ms: int
    seconds: float
    rows: tuple[tuple[Cause, int, int], ...]  # cause, then, now; the largest change first


def run_of(report: SpaceReport) -> PastRun:
    """Return the sums of a report."""
    amount = total(report.shares)
    rows = rows_by(View.CAUSE, report.shares)
    return PastRun(
        at_ms=report.at_ms,
        cluster=report.cluster,
        complete=report.is_complete,
        one_copy=amount.one_copy,
        stored=amount.stored,
        causes={Cause(row.name): (row.amount.one_copy, row.amount.stored) for row in rows},
    )


def growth(past: Sequence[PastRun], now: PastRun) -> Growth | None:
    """Compare with the last run that is about a day old or older, else with the oldest; None: there is none."""
    earlier = sorted((run for run in past if run.at_ms < now.at_ms), key=lambda run: run.at_ms)
    if not earlier:
        return None
    day_before = [run for run in earlier if run.at_ms <= now.at_ms - _DAY_BEFORE_MS]
    before = day_before[-1] if day_before else earlier[0]
    stored = [(cause, _stored(before, cause), _stored(now, cause)) for cause in {**before.causes, **now.causes}]
    rows = sorted(stored, key=lambda row: (-abs(row[2] - row[1]), row[0]))
    return Growth(before.at_ms, (now.at_ms - before.at_ms) / 1000, tuple(rows))


def _stored(run: PastRun, cause: Cause) -> int:
    return run.causes.get(cause, (0, 0))[1]
