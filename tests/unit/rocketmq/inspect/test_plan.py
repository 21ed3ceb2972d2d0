import json
import struct
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from streaming.errors import ConfigError
from streaming.rocketmq.inspect.plan import lines, plan_of, work_seconds
from streaming.rocketmq.inspect.sample import Sample, sample_of, slowdown_of
from streaming.rocketmq.store.inventory import inventory_of
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.convert.test_backfill import damaged
from tests.unit.rocketmq.converted import everything_below, files_below, paths
from udfs.rocketmq.refusals import Code


def test_a_plan_counts_what_there_is_and_writes_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path).write(expired_files=1)
    before = files_below(tmp_path)
    plan = plan_of(paths(tmp_path), "5.3.3")
    assert (plan.size.queues, plan.size.units) == (len(store.units), sum(map(len, store.units.values())))
    assert plan.size.live_units == sum(len(store.live(*queue)) for queue in store.units)
    assert (plan.size.log_start, plan.size.log_end, plan.offsets) == (2048, store.end, 3)
    assert plan.refusals == ()
    assert files_below(tmp_path) == before
    assert not paths(tmp_path).own.exists()


def test_as_json_it_has_every_refusal_with_its_code(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "abort").write_bytes(b"")
    value = json.loads(json.dumps(plan_of(paths(tmp_path)).as_json()))
    assert [each["code"] for each in value["refusals"]] == [Code.ABORT]
    assert value["lmq"] is True
    assert " ".join(value) == (
        "store topics queues units live_units log_files log_bytes log_start log_end disk_needed_bytes disk_free_bytes "
        "seconds_expected seconds_if_busy offsets_file groups offsets refusals notes stages lmq"
    )
    assert [each["stage"] for each in value["stages"]] == [1, 2, 3]


def test_a_text_that_is_no_version_is_refused(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(ConfigError, match=r"5\.3 is no version"):
        plan_of(paths(tmp_path), "5.3")


def test_an_unreadable_store_is_planned_too(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "commitlog" / "x").write_bytes(b"")
    plan = plan_of(paths(tmp_path))
    assert [each.code for each in plan.refusals] == [Code.BAD_BYTES]
    assert any("REFUSED" in line and "commitlog/x" in line for line in lines(plan))


def test_a_bak_that_is_read_is_named(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "config" / "topics.json").rename(tmp_path / "config" / "topics.json.bak")
    assert any("topics.json.bak is read" in note for note in plan_of(paths(tmp_path)).notes)


@pytest.mark.parametrize(
    ("units", "log_bytes", "cores", "expected"),
    [
        pytest.param(0, 0, 2, 0, id="an empty store"),
        pytest.param(100_000_000, 0, 1, 100, id="units of one core"),
        pytest.param(100_000_000, 0, 2, 50, id="units of two cores"),
        pytest.param(1_000_000, 20_000_000_000, 1, 101, id="a log that the disk has to read"),
        pytest.param(1000, 10**15, 1, 0.16484, id="of large messages, not all is read"),
    ],
)
def test_the_work_takes_the_time_of_the_units_and_of_the_log(
    units: int, log_bytes: int, cores: int, expected: float
) -> None:
    sample = Sample("", units_per_second=1_000_000, log_bytes_per_second=200_000_000)
    assert work_seconds(units, log_bytes, cores, sample) == pytest.approx(expected)


def test_the_start_takes_longer_on_slower_cores(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    usual, slower = (plan_of(paths(tmp_path), start_cpu_seconds=cpu).seconds_expected for cpu in (1.0, 3.0))
    assert slower == 3 * usual > 0


@pytest.mark.parametrize(
    ("schedstat", "expected"),
    [
        pytest.param("2000000000 0 41", 1.0, id="it never waited for a core"),
        pytest.param("2000000000 6000000000 41\n", 4.0, id="it waited three times as long as it ran"),
        pytest.param("0 5 1", 6.0, id="it has not run for a nanosecond"),
        pytest.param("nonsense", 1.0, id="another format"),
        pytest.param(None, 1.0, id="no such file"),
    ],
)
def test_the_slowdown_comes_from_the_waits_for_a_core(tmp_path: Path, schedstat: str | None, expected: float) -> None:
    file = tmp_path / "schedstat"
    if schedstat is not None:
        file.write_text(schedstat)
    assert slowdown_of(file) == expected


def test_a_plan_on_a_busy_machine_names_both_times(tmp_path: Path) -> None:
    store, schedstat = tmp_path / "store", tmp_path / "schedstat"
    small_store(store).write()
    schedstat.write_text("1000000000 4000000000 9")
    busy = plan_of(paths(store), start_cpu_seconds=1.0, schedstat=schedstat)
    assert busy.seconds_if_busy == pytest.approx(5 * busy.seconds_expected, abs=3)
    (line,) = (line for line in lines(busy) if line.startswith("time"))
    assert f"about {busy.seconds_expected} s with the broker stopped" in line
    assert f"about {busy.seconds_if_busy} s if the machine stays as busy as now" in line


def test_a_plan_on_an_idle_machine_names_one_time(tmp_path: Path) -> None:
    store, schedstat = tmp_path / "store", tmp_path / "schedstat"
    small_store(store).write()
    schedstat.write_text("1000000000 100000000 9")
    idle = plan_of(paths(store), start_cpu_seconds=1.0, schedstat=schedstat)
    (line,) = (line for line in lines(idle) if line.startswith("time"))
    assert line.endswith("with the broker stopped")


@pytest.mark.parametrize(
    ("name", "position", "data"),
    [
        ("consumequeue/Orders/0/" + "0" * 20, 20, struct.pack(">q", 2**40)),
        ("consumequeue/Orders/0/" + "0" * 20, 28, struct.pack(">i", 99)),
        ("commitlog/" + "0" * 20, 4, b"\0\0\0\1"),
    ],
    ids=["a unit after the end of the log", "a unit of another size", "a message"],
)
def test_damage_in_a_sample_of_each_file_is_a_refusal(tmp_path: Path, name: str, position: int, data: bytes) -> None:
    small_store(tmp_path).write()
    damaged(tmp_path / name, position, data)
    before = everything_below(tmp_path)
    (refusal,) = plan_of(paths(tmp_path)).refusals
    assert refusal.code is Code.BAD_BYTES
    assert "byte" in refusal.text
    assert everything_below(tmp_path) == before


def test_a_sample_of_many_units_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_seconds = iter([7.0, 7.5])
    clocks = SimpleNamespace(process_time=lambda: next(cpu_seconds), monotonic=time.monotonic)
    monkeypatch.setattr("streaming.rocketmq.inspect.sample.time", clocks)
    store = Store(tmp_path, log_file_bytes=1 << 23, queue_file_units=30_000)
    for _number in range(25_000):
        store.put(Message())
    store.write()
    sample = sample_of(inventory_of(paths(tmp_path)))
    assert sample.damage == ""
    assert sample.units_per_second == 20_000 / 0.5  # one run of the only queue file
    assert sample.log_bytes_per_second > 0
