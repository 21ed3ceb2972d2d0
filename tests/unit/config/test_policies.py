"""How far apart tries are, as the configuration says it, and what it can't say."""

from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.config.policies import delays_of
from streaming.errors import ConfigError
from udfs.disposition import Delays

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", Delays(600_000, 0, DAY_MS), id="the defaults: constant, as PIP-186"),
        pytest.param(
            "[two_phase]\nreconsume_later_max_seconds = 3600", Delays(600_000, 3_600_000, DAY_MS), id="doubling"
        ),
        pytest.param(
            "[safety]\nopen_quarantine_days = 30", Delays(600_000, 0, 3 * DAY_MS + 1), id="ten tries outlast 30 days"
        ),
        pytest.param(
            "[two_phase]\nmax_retry_delete_count = 2\n[safety]\nopen_quarantine_days = 14",
            Delays(600_000, 0, 7 * DAY_MS + 1),
            id="the longest quarantine that two tries can outlast",
        ),
    ],
)
def test_delays_are(text: str, expected: Delays, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert delays_of(load(file)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(
            "[two_phase]\nreconsume_later_max_seconds = 599", "reconsume_later_max_seconds must be 0", id="cap below"
        ),
        pytest.param("[two_phase]\nreconsume_later_seconds = 604801", "604800 (a week)", id="longer than is believed"),
        pytest.param(
            "[safety]\nopen_quarantine_days = 71", "open_quarantine_days 71", id="tries end before quarantine"
        ),
    ],
)
def test_waits_that_can_not_work_are_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert why in str(refused.value)
