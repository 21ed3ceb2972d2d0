"""The configured pauses between tries, and pauses that can't be configured."""

from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.config.policies import delays_of, policy_of
from streaming.errors import ConfigError
from udfs.requests.retry import Delays

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", Delays(600_000, 0, DAY_MS), id="the defaults: constant, as PIP-186"),
        pytest.param(
            "[two_phase]\nreconsume_later_max_seconds = 3600", Delays(600_000, 3_600_000, DAY_MS), id="doubling"
        ),
        pytest.param(
            '[safety]\nopen_quiet_period = "30d"', Delays(600_000, 0, DAY_MS), id="the quiet period costs no try"
        ),
    ],
)
def test_delays_are(text: str, expected: Delays, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert delays_of(load(file)) == expected


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        pytest.param("", 6 * 3600, id="by default six hours"),
        pytest.param('open_quiet_period = "90m"', 5400, id="a duration"),
        pytest.param('open_quiet_period = "never"', 0, id="never"),
        pytest.param("open_quiet_period = 0", 0, id="0 is never, too"),
        pytest.param("open_quarantine_days = 0", 0, id="the old key's 0 was never"),
        pytest.param("open_quarantine_days = 30", 30 * 86_400, id="the old key's days"),
        pytest.param('open_quarantine_days = 1\nopen_quiet_period = "2d"', 2 * 86_400, id="of both the longer"),
        pytest.param('open_quarantine_days = 1\nopen_quiet_period = "never"', 0, id="never is the longest"),
    ],
)
def test_the_quiet_period_of_open_ledgers_is(
    text: str, expected_s: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[safety]\n{text}")
    assert policy_of(load(file)).open_quiet_ms == expected_s * 1000
    assert ("safety.open_quarantine_days is safety.open_quiet_period now" in caplog.text) == ("_days" in text)


def test_the_old_key_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_REAPER__SAFETY__OPEN_QUARANTINE_DAYS", "2")
    assert policy_of(load(None)).open_quiet_ms == 2 * DAY_MS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(
            "[two_phase]\nreconsume_later_max_seconds = 599", "reconsume_later_max_seconds must be 0", id="cap below"
        ),
        pytest.param("[two_phase]\nreconsume_later_seconds = 604801", "604800 (a week)", id="longer than is believed"),
        pytest.param("[safety]\nopen_quiet_period = 6", "as in 6h, or", id="a quiet period without a unit"),
        pytest.param('[safety]\nopen_quiet_period = "soon"', "as in 6h, or", id="no quiet period"),
        pytest.param("[safety]\nopen_quarantine_days = -1", "open_quiet_period now", id="no number of days"),
    ],
)
def test_waits_that_can_not_work_are_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert why in str(refused.value)
