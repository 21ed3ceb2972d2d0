"""The watcher's state outlives it: the contents of znodes and the requests to publish, both or neither."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError

from streaming.errors import FencedError
from streaming.state import watched
from streaming.state.delta.delta_tables import Table
from streaming.state.watched import KeptRequest, Watched

TOPIC, OTHER = "/managed-ledgers/t/n/persistent/a", "/managed-ledgers/t/n/persistent/b"


def known(table: Watched) -> tuple[object, ...]:
    return table.nodes, table.notes, list(table.requests.values())


def test_saved_names_are_read_at_the_next_start(tmp_path: Path) -> None:
    table = Watched(str(tmp_path))
    assert table.is_new
    table.save({TOPIC: b"1", OTHER: b"2"}, at_ms=1)
    table.save({TOPIC: b"3", OTHER: None}, [(OTHER, b"first"), (OTHER, b"second")], notes={"made": b"x"}, at_ms=2)
    table.save({}, [(TOPIC, b"third")], at_ms=3)
    again = Watched(str(tmp_path))
    assert not again.is_new
    assert known(again) == known(table)
    assert again.nodes == {TOPIC: b"3"}
    assert list(again.requests.values()) == [
        KeptRequest(0, OTHER, b"first", 2),
        KeptRequest(1, OTHER, b"second", 2),
        KeptRequest(2, TOPIC, b"third", 3),
    ]
    again.save({}, [(TOPIC, b"fourth")], at_ms=4)
    assert list(again.requests) == [0, 1, 2, 3]


def test_a_published_request_no_longer_waits_and_its_number_is_never_used_again(tmp_path: Path) -> None:
    table = Watched(str(tmp_path))
    table.save({}, [(TOPIC, b"first"), (TOPIC, b"second")], at_ms=1)
    table.forget_through(1)
    again = Watched(str(tmp_path))
    again.forget_through(1)
    assert (table.requests, again.requests) == ({}, {})
    for each in (table, again):
        each.forget_through(7)
    again.save({}, [(TOPIC, b"third")], at_ms=2)
    assert list(again.requests) == [8]


@pytest.mark.parametrize("is_cut", [False, True])
def test_everything_is_rewritten_after_many_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_cut: bool
) -> None:
    monkeypatch.setattr(watched, "_COMMITS_BEFORE_FOLD", 3)
    monkeypatch.setattr(watched, "_ROWS_PER_BATCH", 2)
    table = Watched(str(tmp_path))
    table.save({f"{TOPIC}{each}": bytes([each]) for each in range(5)}, at_ms=1)
    table.save({TOPIC: b"1"}, [(TOPIC, b"r")], notes={"made": b"x"}, at_ms=2)
    assert not table.fold_if_due(at_ms=3)
    table.save({f"{TOPIC}0": None}, at_ms=3)
    if is_cut:  # the files are written, and the process dies before the commit
        monkeypatch.setattr(watched, "commit", _die)
        with pytest.raises(KeyboardInterrupt):
            table.fold_if_due(at_ms=4)
        monkeypatch.undo()
    else:
        assert table.fold_if_due(at_ms=4)
        assert not table.fold_if_due(at_ms=5)
        table.save({TOPIC: b"2"}, at_ms=6)
    again = Watched(str(tmp_path))
    assert known(again) == known(table)
    assert len(again.nodes) == 5


def _die(*_arguments: object, **_named: object) -> None:
    raise KeyboardInterrupt


def test_a_stalled_writer_is_refused(tmp_path: Path) -> None:
    stalled = Watched(str(tmp_path))
    newer = Watched(str(tmp_path))
    with pytest.raises(FencedError):
        stalled.save({TOPIC: b"1"}, at_ms=1)
    newer.save({TOPIC: b"2"}, at_ms=1)
    assert Watched(str(tmp_path)).nodes == {TOPIC: b"2"}


class AnswersLost(Table):
    """The store takes a commit, and refuses the client's own second try."""

    def create_write_transaction(self, *args: Any, **kwargs: Any) -> None:
        super().create_write_transaction(*args, **kwargs)
        raise CommitFailedError("412")


def test_a_take_over_whose_answer_was_lost_succeeds(tmp_path: Path) -> None:
    Watched(str(tmp_path))
    newer = Watched(str(tmp_path), lambda _state, _name: AnswersLost(str(tmp_path / "watched")))
    newer.save({TOPIC: b"1"}, at_ms=1)
    assert Watched(str(tmp_path)).nodes == {TOPIC: b"1"}


class Sleeper(Table):
    """A table whose owner is suspended right after a rewrite."""

    meanwhile: Callable[[], None]

    def create_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super().create_checkpoint(*args, **kwargs)
        self.meanwhile()


def test_a_writer_that_was_suspended_during_a_rewrite_removes_nothing_of_a_newer_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun_by_another() -> None:
        Watched(str(tmp_path)).save({OTHER: b"2"}, [(OTHER, b"request")], at_ms=2)
        for each in tmp_path.glob("watched/*.parquet"):
            os.utime(each, (0, 0))

    Watched(str(tmp_path))
    sleeper = Sleeper(str(tmp_path / "watched"))
    sleeper.meanwhile = begun_by_another
    table = Watched(str(tmp_path), lambda _state, _name: sleeper)
    table.save({TOPIC: b"1"}, at_ms=1)
    monkeypatch.setattr(watched, "_COMMITS_BEFORE_FOLD", 1)
    assert table.fold_if_due(at_ms=1)
    newer = Watched(str(tmp_path))
    assert newer.nodes == {TOPIC: b"1", OTHER: b"2"}
    assert [each.payload for each in newer.requests.values()] == [b"request"]


def test_waiting_requests_are_counted_for_each_tenant_and_in_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_MOST_WAITING_BYTES_OF_TENANT", 2_000)
    monkeypatch.setattr(watched, "_MOST_WAITING_BYTES", 3_000)
    each = watched.cost_of(b"x" * 100)
    table = Watched(str(tmp_path))
    table.save({}, [(TOPIC, b"x" * 100), ("/schemas/t/n/a", b"x" * 100), ("unlisted ledger 5", b"x" * 100)], at_ms=1)
    for now in (table, Watched(str(tmp_path))):
        assert (now.quota_left_of("t"), now.quota_left_of("other"), now.quota_left()) == (
            2_000 - 2 * each,
            2_000,
            3_000 - 3 * each,
        )
        now.forget_through(0)
        assert (now.quota_left_of("t"), now.quota_left()) == (2_000 - each, 3_000 - 2 * each)


def test_many_bytes_of_requests_cause_an_early_rewrite_and_published_requests_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_BYTES_BEFORE_FOLD", 10_000)
    table = Watched(str(tmp_path))
    for number in range(20):
        table.save({}, [(TOPIC, b"x" * 600)], at_ms=number)
        table.forget_through(number)
        table.fold_if_due(at_ms=number)
    assert len(Watched(str(tmp_path)).requests) <= 10
