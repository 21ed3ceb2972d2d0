"""The trend over the last audits."""

from pathlib import Path

from streaming.audit import history
from streaming.audit.history import PastAudit
from tests.unit.audit.results import place_at


def test_history_grows_and_outlives_a_damaged_line(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    first, second = (PastAudit(at, True, 1, 2, 0, 4) for at in (1, 2))
    history.add(place, first)
    (tmp_path / "history.jsonl").write_bytes((tmp_path / "history.jsonl").read_bytes() + b"{broken\n")

    assert history.add(place, second) == [first, second]
    assert history.read(place) == [first, second]
