"""Losses are logged and noted, and the note only grows."""

import logging
from pathlib import Path

import pytest

from streaming.errors import UnavailableError
from streaming.state.notes import lost_entries
from streaming.state.notes.lost_entries import Loss, LostEntries

CERTAIN, POSSIBLE = Loss((7, 3), True, "entry 3 is gone"), Loss((9, 0), False, "perhaps entries are gone")


def test_a_certain_loss_is_an_error_and_noted_and_a_possible_loss_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ledger-reaper"):
        LostEntries(str(tmp_path)).report({"p": [CERTAIN, POSSIBLE]})
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "p: entry 3 is gone"),
        (logging.WARNING, "p: perhaps entries are gone"),
    ]
    assert LostEntries(str(tmp_path)).recall() == {"p": {7: 4}}


def test_the_note_grows_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = LostEntries(str(tmp_path))
    assert lost.recall() == {}
    for partition, ledger in (("a", 1), ("b", 2), ("a", 3)):
        lost.report({partition: [Loss((ledger, 0), True, "")]})
    assert lost.recall() == {"b": {2: 1}, "a": {1: 1, 3: 1}}
    monkeypatch.setattr(lost_entries, "_LEDGERS", 2)
    monkeypatch.setattr(lost_entries, "_PARTITIONS", 1)
    lost.report({"a": [Loss((5, 0), True, "")]})
    assert lost.recall() == {"a": {3: 1, 5: 1}}


def test_a_loss_that_can_not_be_noted_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    with pytest.raises(UnavailableError):
        LostEntries(str(tmp_path / "state")).report({"p": [CERTAIN]})
