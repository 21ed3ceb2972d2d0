"""The trend over the last audits."""

from pathlib import Path

from streaming.audit import history
from streaming.audit.history import PastAudit
from tests.unit.audit.results import output_at


def test_history_grows_and_skips_a_damaged_line(tmp_path: Path) -> None:
    output = output_at(tmp_path)
    first, second = (
        PastAudit(at_ms=at, complete=True, orphans=1, orphan_bytes=2, missing=0, ledgers=4) for at in (1, 2)
    )
    history.add(output, first)
    (tmp_path / "history.jsonl").write_bytes((tmp_path / "history.jsonl").read_bytes() + b"{broken\n")

    assert history.add(output, second) == [first, second]
    assert history.read(output) == [first, second]
