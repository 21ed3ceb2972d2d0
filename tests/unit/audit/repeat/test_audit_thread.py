"""Audits next to the service: the time of the first audit."""

from pathlib import Path

import pytest

from streaming.audit import history
from streaming.audit.history import PastAudit
from streaming.audit.repeat.audit_thread import due_in_seconds
from streaming.clock import ManualClock
from tests.unit.audit.results import output_at

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("ages_s", "due_s"),
    [
        pytest.param([], 0, id="never audited"),
        pytest.param([50], 50, id="in the middle"),
        pytest.param([500, 10], 90, id="the last one counts"),
        pytest.param([100], 0, id="just due"),
        pytest.param([130], -30, id="overdue"),
    ],
)
def test_a_restart_does_not_repeat_an_audit_that_is_not_due(tmp_path: Path, ages_s: list[int], due_s: int) -> None:
    output = output_at(tmp_path)
    for age_s in ages_s:
        history.add(
            output,
            PastAudit(at_ms=NOW_MS - age_s * 1000, complete=True, orphans=0, orphan_bytes=0, missing=0, ledgers=0),
        )

    assert due_in_seconds(output, 100, ManualClock(NOW_MS)) == due_s
