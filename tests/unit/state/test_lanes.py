"""The note that names parked lanes: there while one is parked, gone afterwards, and never a reason to stop."""

from pathlib import Path

import pytest

from streaming.state import lanes
from streaming.state.lanes import ParkedLane

LANE = ParkedLane("persistent://acme/reaper/d", "long overflow", 5, failures=2, is_read=True)


def test_a_note_is_there_until_no_lane_is_parked(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    assert lanes.noted(state) == {}
    lanes.note(state, {})
    assert not (tmp_path / "state").exists()
    lanes.note(state, {"requests-1": LANE})
    assert lanes.noted(state) == {"requests-1": LANE}
    lanes.note(state, {})
    assert lanes.noted(state) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"requests": {"why": "x"}}', b'{"requests": 1}'])
def test_a_damaged_note_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lanes.json").write_bytes(content)
    assert lanes.noted(str(tmp_path)) == {}


def test_a_note_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    lanes.note(str(tmp_path / "state"), {"requests": LANE})
    assert lanes.noted(str(tmp_path / "state")) == {}
