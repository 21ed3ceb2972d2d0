"""Settlements of dead letters: a plan or a write-off is complete or absent, and is forgotten only when done."""

from pathlib import Path
from typing import Any

import pytest

from streaming.errors import ConfigError
from streaming.state.settlements import (
    REPLAYED,
    REPLAYING,
    WAITING,
    WRITTEN_OFF,
    PlanWriter,
    ReplayPlan,
    SettlementFolder,
)
from tests.builders import NOW_MS
from udfs import columns as c
from udfs.records import Reason

DLQ = "persistent://pulsar/system/__ledger_deletion-DLQ-partition-2"
REQUESTS = "persistent://pulsar/system/__ledger_deletion"


def _row(entry: int) -> dict[str, Any]:
    place = dict(zip(c.POSITION, (DLQ, 7, entry, -1), strict=True))
    return {**place, c.MESSAGE_KEY: "k", c.PAYLOAD: b"\x00\xff", c.MESSAGE_PROPERTIES: [("a", "b")]}


def _plan(folder: SettlementFolder, *entries: int) -> ReplayPlan:
    with folder.plan(NOW_MS, REQUESTS, {f"{REQUESTS}-partition-0": (5, -1)}) as writer:
        writer.add([_row(entry) for entry in entries])
    return writer.plan


def _add_and_fail(writer: PlanWriter) -> None:
    writer.add([_row(0)])
    raise KeyError


def test_a_plan_counts_from_the_moment_it_is_whole(tmp_path: Path) -> None:
    folder = SettlementFolder(str(tmp_path))
    with pytest.raises(KeyError), folder.plan(NOW_MS, REQUESTS, {}) as writer:
        _add_and_fail(writer)
    assert folder.unfinished() == []
    assert folder.settled().of((DLQ, 7, 0, -1)) == WAITING
    assert list((tmp_path / "dead-letters").iterdir()) == []


def test_a_plan_is_read_back_as_written_until_it_is_finished(tmp_path: Path) -> None:
    folder = SettlementFolder(str(tmp_path))
    plan = _plan(folder, 0, 1)
    assert folder.unfinished() == [plan]
    assert list(folder.rows(plan)) == [_row(0), _row(1)]
    assert folder.settled().of((DLQ, 7, 1, -1)) == REPLAYING

    folder.finish(plan, {0: "9:0:0", 1: "9:1:0"})

    assert folder.unfinished() == []
    assert folder.settled().of((DLQ, 7, 1, -1)) == REPLAYED
    assert folder.settled().of((DLQ, 7, 2, -1)) == WAITING
    assert folder.published_as((DLQ, 7, 1, -1)) == [(plan.run, "9:1:0")]


def test_write_offs_are_all_or_none(tmp_path: Path) -> None:
    folder = SettlementFolder(str(tmp_path))
    receipt = {**dict(zip(c.POSITION, (DLQ, 7, 3, -1), strict=True)), c.REASON: str(Reason.WRITTEN_OFF)}

    def cut_short() -> Any:
        yield [receipt]
        raise ConfigError("no such id")

    with pytest.raises(ConfigError):
        folder.write_off(NOW_MS, cut_short())
    assert list(folder.written_off()) == []

    assert folder.write_off(NOW_MS, [[receipt], [receipt]]) == 2
    assert [row[c.REASON] for row in folder.written_off()] == [Reason.WRITTEN_OFF] * 2
    assert folder.settled().of((DLQ, 7, 3, -1)) == WRITTEN_OFF


def test_old_settlements_are_forgotten_but_never_an_unfinished_replay(tmp_path: Path) -> None:
    folder = SettlementFolder(str(tmp_path))
    rows = [{c.SOURCE: DLQ, c.POSITION_LEDGER: 7, c.POSITION_ENTRY: 0, c.POSITION_BATCH: -1}]
    for at_ms in (1_000, 2_000, 3_000):
        folder.write_off(at_ms, [rows])
        with folder.plan(at_ms, REQUESTS, {}) as writer:
            pass
        if at_ms != 1_000:
            folder.finish(writer.plan, {})
    assert folder.expire(1_000) == 0
    assert folder.expire(2_000) == 1
    assert folder.expire(3_000) == 2
    assert len(folder.unfinished()) == 1
    assert folder.expire(3_000) == 0
    assert folder.expire(3_001) == 2
    assert len(list((tmp_path / "dead-letters").iterdir())) == 1
