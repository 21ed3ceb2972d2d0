import json
from pathlib import Path

import pytest

from streaming.errors import ConfigError
from streaming.rocketmq.plan import expected_seconds, lines, plan_of
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import files_below, place
from udfs.rocketmq.refusals import Code


def test_a_plan_counts_what_there_is_and_writes_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path).write(expired_files=1)
    before = files_below(tmp_path)
    plan = plan_of(place(tmp_path), "5.3.3")
    assert (plan.queues, plan.units) == (len(store.units), sum(map(len, store.units.values())))
    assert plan.live_units == sum(len(store.live(*queue)) for queue in store.units)
    assert (plan.log_start, plan.log_end, plan.offsets) == (2048, store.end, 3)
    assert plan.refusals == ()
    assert files_below(tmp_path) == before
    assert not place(tmp_path).own.exists()


def test_as_json_it_has_every_refusal_with_its_code(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "abort").write_bytes(b"")
    value = json.loads(json.dumps(plan_of(place(tmp_path)).as_json()))
    assert [each["code"] for each in value["refusals"]] == [Code.ABORT]
    assert value["lmq"] is True
    assert [each["stage"] for each in value["stages"]] == [1, 2, 3]


def test_a_version_that_is_none_is_said(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(ConfigError, match=r"5\.3 is no version"):
        plan_of(place(tmp_path), "5.3")


def test_an_unreadable_store_is_planned_too(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "commitlog" / "x").write_bytes(b"")
    plan = plan_of(place(tmp_path))
    assert [each.code for each in plan.refusals] == [Code.BAD_BYTES]
    assert any("REFUSED" in line and "commitlog/x" in line for line in lines(plan))


def test_a_bak_that_is_read_is_named(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "config" / "topics.json").rename(tmp_path / "config" / "topics.json.bak")
    assert any("topics.json.bak is read" in note for note in plan_of(place(tmp_path)).notes)


def test_more_cores_take_less_time() -> None:
    assert expected_seconds(100_000_000, 0, 2) < expected_seconds(100_000_000, 0, 1)
    assert expected_seconds(0, 150_000_000_000, 8) > 1000
