"""The last audit, as summary.json remembers it."""

from pathlib import Path

import pytest

from streaming.audit.options import FindingFilters
from streaming.audit.result import remember, remembered
from streaming.errors import ConfigError
from tests.unit.audit.results import RESULT, place_at


def test_an_audit_is_remembered_as_it_was(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    remember(place, RESULT, FindingFilters())

    assert remembered(place) == RESULT


@pytest.mark.parametrize("content", [None, b"", b"{}", b"not json"])
def test_without_a_usable_audit_the_operator_is_told_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_bytes(content)

    with pytest.raises(ConfigError, match="ledger-reaper audit"):
        remembered(place_at(tmp_path))
