"""The note that names parked queries: it exists while a query is parked, and never stops the service."""

from pathlib import Path

import pytest

from streaming.state.notes import parked_queries
from streaming.state.notes.parked_queries import ParkedQuery

LANE = ParkedQuery(topic="persistent://acme/reaper/d", why="long overflow", since_ms=5, failures=2, is_read=True)


def test_a_note_exists_until_no_query_is_parked(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    assert parked_queries.noted(state) == {}
    parked_queries.note(state, {})
    assert not (tmp_path / "state").exists()
    parked_queries.note(state, {"requests-1": LANE})
    assert parked_queries.noted(state) == {"requests-1": LANE}
    parked_queries.note(state, {})
    assert parked_queries.noted(state) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"requests": {"why": "x"}}', b'{"requests": 1}'])
def test_a_damaged_note_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lanes.json").write_bytes(content)
    assert parked_queries.noted(str(tmp_path)) == {}


def test_a_note_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    parked_queries.note(str(tmp_path / "state"), {"requests": LANE})
    assert parked_queries.noted(str(tmp_path / "state")) == {}
