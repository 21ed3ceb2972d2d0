"""Work of an audit before its phases."""

from pathlib import Path

from streaming.audit.ledger_audit import audit_id_at, stale_folders
from tests.unit.audit.results import output_at


def test_stages_of_a_killed_audit_are_removed_a_day_later(tmp_path: Path) -> None:
    now_ms = 1_700_000_000_000
    for hours in (25, 23):
        (tmp_path / f".work-{audit_id_at(now_ms - hours * 3_600_000)}").mkdir()
    (tmp_path / "findings").mkdir()

    found = stale_folders(output_at(tmp_path).folders(), now_ms)

    assert found == [f".work-{audit_id_at(now_ms - 25 * 3_600_000)}"]
