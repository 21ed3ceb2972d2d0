"""A long task runs in several processes; errors, deaths and stops end it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pytest

from streaming.audit.stopping import StoppedError
from streaming.audit.workers import Workers
from streaming.errors import RefusedError, UnavailableError

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("pid", pa.int64()), pa.field("rate", pa.float64())])
HERE = os.getpid()


@dataclass(frozen=True, slots=True)
class Marked:
    """Adds the process and its rate to each id."""

    reads_per_second: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.02)  # so that each process gets some of the batches
            for number in batch.column(0).to_pylist():  # as several batches, and none for an empty one
                row = {"id": number, "pid": os.getpid(), "rate": self.reads_per_second}
                yield pa.RecordBatch.from_pylist([row], schema=SCHEMA)


@dataclass(frozen=True, slots=True)
class Refused:
    at: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self.at in batch.column(0).to_pylist():
                raise RefusedError(f"no right to {self.at}")
            yield batch


@dataclass(frozen=True, slots=True)
class Dies:
    number: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if os.getpid() != HERE or self.number:
                os.kill(os.getpid(), self.number)
            yield batch


def _batches(count: int) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.RecordBatch.from_pylist([{"id": 2 * number}, {"id": 2 * number + 1}], schema=pa.schema([SCHEMA[0]]))


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Two processes, which get all batches."""
    with closing(Workers(stop=threading.Event(), most=2, alone_seconds=0)) as opened:
        yield opened


def _rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, float]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_short_task_runs_in_this_process_at_the_whole_rate() -> None:
    done: list[int] = []
    with closing(Workers(stop=threading.Event(), most=2, alone_seconds=60)) as workers:
        rows = _rows(workers.run(Marked(10.0), _batches(3), done.append))

    assert [row["id"] for row in rows] == list(range(6))
    assert {(row["pid"], row["rate"]) for row in rows} == {(HERE, 10.0)}
    assert done == [2, 2, 2]


def test_a_long_task_runs_in_processes_that_share_the_rate(workers: Workers) -> None:
    done: list[int] = []
    rows = _rows(workers.run(Marked(10.0), _batches(40), done.append))

    assert sorted(row["id"] for row in rows) == list(range(80))
    assert {row["rate"] for row in rows} == {5.0}
    assert len({row["pid"] for row in rows} - {HERE}) == 2
    assert sum(done) == 80
    again = _rows(workers.run(Marked(4.0), _batches(40)))
    assert {row["pid"] for row in again} == {row["pid"] for row in rows}, "the processes serve the next task"


def test_the_rest_of_a_task_that_takes_long_goes_to_processes() -> None:
    with closing(Workers(stop=threading.Event(), most=2, alone_seconds=0.01)) as workers:
        rows = _rows(workers.run(Marked(0.0), _batches(40)))

    assert sorted(row["id"] for row in rows) == list(range(80))
    assert rows[0]["pid"] == HERE
    assert {row["pid"] for row in rows} != {HERE}


@pytest.mark.parametrize("alone_seconds", [60.0, 0.0])
def test_an_error_of_a_task_is_raised_as_it_is(alone_seconds: float) -> None:
    with (
        closing(Workers(stop=threading.Event(), most=2, alone_seconds=alone_seconds)) as workers,
        pytest.raises(RefusedError, match=r"^no right to 5$"),
    ):
        _rows(workers.run(Refused(5), _batches(9)))


def test_the_death_of_a_process_ends_the_audit(workers: Workers) -> None:
    with pytest.raises(UnavailableError, match=r"has ended before its work was done \(exit code -9\)"):
        _rows(workers.run(Dies(signal.SIGKILL), _batches(9)))


@pytest.mark.parametrize("alone_seconds", [60.0, 0.0])
def test_a_stop_ends_a_task_in_between(alone_seconds: float) -> None:
    stop = threading.Event()
    taken: list[int] = []

    def note(rows: int) -> None:
        taken.append(rows)
        stop.set()

    with (
        closing(Workers(stop=stop, most=2, alone_seconds=alone_seconds)) as workers,
        pytest.raises(StoppedError),
    ):
        _rows(workers.run(Marked(0.0), _batches(500), note))
    assert len(taken) < 10


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("ends", [Workers.close, lambda workers: None], ids=["closed", "given up"])
def test_no_process_outlives_its_audit(ends: Callable[[Workers], None]) -> None:
    workers = Workers(stop=threading.Event(), most=2, alone_seconds=0)
    rows = workers.run(Marked(0.0), _batches(40))
    pid = next(rows).to_pylist()[0]["pid"]
    rows.close()  # type: ignore[attr-defined]
    ends(workers)
    assert _is_gone(pid)
