"""Parked queries are shown: a metric for each, and a note that names those that are parked now."""

from pathlib import Path

from streaming.deletion.supervision.board import Board
from streaming.metrics import Metrics
from streaming.state.notes import parked_queries
from streaming.state.notes.parked_queries import ParkedQuery

LANE = ParkedQuery(topic="persistent://acme/reaper/d", why="long overflow", since_ms=5)


def test_a_parked_query_is_shown_until_it_is_read_again(tmp_path: Path) -> None:
    metrics = Metrics()
    board = Board(str(tmp_path), metrics)

    def shown(query: str) -> float | None:
        return metrics.registry.get_sample_value("ledger_reaper_query_parked", {"query": query})

    board.show("requests", LANE)
    board.show("retry", LANE)
    assert parked_queries.noted(str(tmp_path)) == {"requests": LANE, "retry": LANE}
    board.show("requests", None)
    assert (shown("requests"), shown("retry")) == (0, 1)
    assert parked_queries.noted(str(tmp_path)) == {"retry": LANE}
    board.show("requests", None)


def test_notes_of_an_earlier_run_are_cleared(tmp_path: Path) -> None:
    parked_queries.note(str(tmp_path), {"requests": LANE})
    Board(str(tmp_path), Metrics()).clear()
    assert parked_queries.noted(str(tmp_path)) == {}
