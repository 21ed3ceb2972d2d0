"""The pause between the two checks."""

from pathlib import Path

import pytest

from streaming.audit.audit_options import AuditOptions
from streaming.audit.checks.twice import audit_policy
from streaming.config.load import load
from streaming.config.policies import policy_of


@pytest.mark.parametrize("seconds", [0, 7])
def test_an_audit_judges_like_the_service_except_for_the_pause_between_its_checks(tmp_path: Path, seconds: int) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[safety]\nmin_age_seconds = 400\n")
    settings = load(file)

    policy, services = audit_policy(settings, AuditOptions(recheck_seconds=seconds)), policy_of(settings)

    assert policy.absence_interval_ms == seconds * 1_000
    assert policy.min_age_ms == services.min_age_ms == 400_000
    assert policy.above_newest_quarantine_ms == services.above_newest_quarantine_ms
