"""The last audit in summary.json."""

from pathlib import Path

import pytest

from streaming.audit.audit_options import FindingFilters
from streaming.audit.result import remember, remembered
from streaming.errors import ConfigError
from tests.unit.audit.results import RESULT, output_at


def test_an_audit_survives_a_round_trip_through_summary_json(tmp_path: Path) -> None:
    output = output_at(tmp_path)
    remember(output, RESULT, FindingFilters())

    assert remembered(output) == RESULT


@pytest.mark.parametrize("content", [None, b"", b"{}", b"not json"])
def test_without_a_usable_audit_the_error_has_a_remedy(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)

    with pytest.raises(ConfigError, match="ledger-reaper audit"):
        remembered(output_at(tmp_path))
