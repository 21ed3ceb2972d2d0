"""Audits beside the service: when the first one is due."""

from pathlib import Path

import pytest

from streaming.audit import history
from streaming.audit.history import PastAudit
from streaming.audit.repeat.beside_service import due_in_seconds
from streaming.clock import ManualClock
from tests.unit.audit.results import place_at

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
def test_a_restart_does_not_make_an_audit_due_that_was_made(tmp_path: Path, ages_s: list[int], due_s: int) -> None:
    place = place_at(tmp_path)
    for age_s in ages_s:
        history.add(place, PastAudit(NOW_MS - age_s * 1000, True, 0, 0, 0, 0))

    assert due_in_seconds(place, 100, ManualClock(NOW_MS)) == due_s
