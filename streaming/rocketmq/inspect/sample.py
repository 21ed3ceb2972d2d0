"""Converts a sample of a store into a temporary folder, to test its files and to measure this machine.

The sample has a run of units of each queue file, and their messages. `plan` uses it, also beside a running broker.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, cast

from streaming.errors import SafetyError
from streaming.rocketmq.convert.job import Job
from streaming.rocketmq.convert.work import PartWork, Piece
from streaming.rocketmq.store.inventory import Inventory
from streaming.rocketmq.store.log_files import CommitLog
from streaming.rocketmq.store.queue_files import QueueFiles

if TYPE_CHECKING:
    from pyspark import Accumulator

_SAMPLED_UNITS = 300_000  # as many as a part has
_UNITS_OF_A_FILE = 100, 20_000  # at least and at most; a shorter run costs more for each unit
_SAMPLED_FILES = 3_000
_LEAST_TIMED = 20_000  # units; the time of fewer means nothing
_UNITS_PER_SECOND = 1_000_000.0  # of one core, if the sample is too small
_LOG_BLOCK_BYTES = 4 << 20
_LOG_BYTES_PER_SECOND = 500_000_000.0  # if it was not measured
_LOG_SECONDS = 0.4
_SPREAD = 0.618  # in consecutive files, the runs start at different fractions of the file


class Sample(NamedTuple):
    """Results of a sample."""

    damage: str  # "" for none
    units_per_second: float  # of one core
    log_bytes_per_second: float  # of the log's disk


class _Uncounted:
    def add(self, _count: int) -> None:
        """Ignore the count."""


def sample_of(inventory: Inventory) -> Sample:
    """Convert a sample twice, and measure the CPU time of the second conversion."""
    work = _work(inventory)
    rate = _UNITS_PER_SECOND
    try:
        _convert(inventory.log, work)
        if work.rows >= _LEAST_TIMED:
            # the second time, its pages are in memory
            started = time.process_time()
            _convert(inventory.log, work)
            rate = work.rows / max(time.process_time() - started, 1e-6)
        return Sample("", rate, _log_rate(inventory.log))
    except SafetyError as error:
        return Sample(str(error), rate, _LOG_BYTES_PER_SECOND)
    except FileNotFoundError:  # a running broker deletes expired files
        return Sample("", rate, _LOG_BYTES_PER_SECOND)


def slowdown_of(schedstat: Path) -> float:
    """Return how many times longer this process took than on an idle machine, without waits for a disk; 1 if unknown.

    Args:
        schedstat: Linux's account of the process: nanoseconds on a core, nanoseconds of waiting for one, and a count.
    """
    try:
        ran, waited, _count = map(int, schedstat.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return 1.0
    return 1 + waited / max(ran, 1)


def _work(inventory: Inventory) -> PartWork:
    runs = list(_runs(inventory))
    runs = runs[:: -(-len(runs) // _SAMPLED_FILES) or 1]
    least, most = _UNITS_OF_A_FILE
    run_units = min(max(_SAMPLED_UNITS // max(len(runs), 1), least), most)
    pieces, rows = list[Piece](), 0
    for number, piece in enumerate(runs):
        count = min(run_units, piece.end - piece.first)
        first = piece.first + int((piece.end - piece.first - count) * (number * _SPREAD % 1))
        pieces.append(piece._replace(number=number, first=first, end=first + count, position=rows))
        rows += count
    return PartWork(0, rows, tuple(pieces))


def _runs(inventory: Inventory) -> Iterator[Piece]:
    """Yield the live units of each queue file."""
    for queue in inventory.queues:
        for file in queue.files.files:
            first, end = max(file.start, queue.range.first), min(file.start + file.count, queue.range.end)
            if first < end:
                files = QueueFiles((file,))
                yield Piece(
                    number=0,
                    topic=queue.range.topic,
                    queue_id=queue.range.queue_id,
                    first=first,
                    end=end,
                    position=0,
                    files=files,
                    is_last=False,
                )


def _convert(log: CommitLog, work: PartWork) -> None:
    with TemporaryDirectory(prefix="ledger-reaper-sample-") as folder:
        (Path(folder) / ".between").mkdir()
        job = Job(log, folder, cast("Accumulator[int]", _Uncounted()))
        headers = list(job.with_headers(job.by_log([work])))
        list(job.write([(work.number, work), *headers]))


def _log_rate(log: CommitLog) -> float:
    """Measure the read rate on blocks across the log; some of them may be in memory, as for the conversion."""
    ends = [(file, min(file.size, log.end - file.start)) for file in log.used]
    blocks = [(file, at) for file, end in ends for at in range(0, end, _LOG_BLOCK_BYTES)]
    done, started = 0, time.monotonic()
    for file, at in blocks[:: len(blocks) // 100 + 1]:
        handle = os.open(file.path, os.O_RDONLY)
        try:
            done += len(os.pread(handle, min(_LOG_BLOCK_BYTES, log.end - file.start - at), at))
        finally:
            os.close(handle)
        if time.monotonic() - started > _LOG_SECONDS:
            break
    return done / max(time.monotonic() - started, 1e-6) if done else 1e9
