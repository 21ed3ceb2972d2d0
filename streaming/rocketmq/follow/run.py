"""Follows a running broker: indexes new records of its log in a database beside it, by Spark Structured Streaming.

The driver reads the end of the log, and writes a small file, a note, about the records that have become complete. These
notes are the stream: each batch is a note, whose ranges of the log are read in the executors. The driver then writes
their units into the database, in one atomic batch (streaming/rocketmq/convert/index_database.py).
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streaming.clock import Clock
from streaming.errors import SafetyError, UnavailableError
from streaming.rocketmq.convert.index_database import IndexDatabase, OvertakenError, open_index_database, rules_of
from streaming.rocketmq.convert.ranges import LogRange, RangeJob
from streaming.rocketmq.failures import is_file_gone, our_errors
from streaming.rocketmq.follow.acceptance import require_accepted
from streaming.rocketmq.follow.base import Base
from streaming.rocketmq.follow.lag import CaughtUp, Lag
from streaming.rocketmq.follow.tail import Tail, TailNews, TruncatedError
from streaming.rocketmq.progress import Say
from streaming.rocketmq.store.disk import require_room
from streaming.rocketmq.store.locks import one_writer
from streaming.rocketmq.store.log_files import LogFile, commitlog_being_written
from streaming.rocketmq.store.owner import require_owner
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.handover import delete_follow_result, give_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_NOTE = "note long, path string, file_start long, file_size long, start long, end long"
_PASS_SECONDS = 0.2
_REPORT_SECONDS = 2.0
_MOST_WAITING = 3
_BAD_SECONDS = 30.0
_RETRY_SECONDS = 1.0
_MOST_RETRIES = 1000


def _nothing(_lag: Lag) -> None:
    """Ignore the lag."""


@dataclass(slots=True, kw_only=True)
class Follow:
    """A run of `follow`."""

    paths: StorePaths
    clock: Clock
    say: Say
    rows_per_file: int = 300_000
    is_stopping: threading.Event = field(default_factory=threading.Event)  # set it to end the run
    report: Callable[[Lag], None] | None = None  # gets the lag every other second, instead of `say`
    export: Callable[[Lag], None] = _nothing  # gets the lag at every pass

    def run(self, spark: "SparkSession", *, until_caught_up: bool) -> Lag:
        """Follow until `is_stopping` is set, or until everything is indexed that the log had a few seconds ago.

        Raises BusyError if another command writes to the store. Raises SafetyError if a queue would get a hole, if the
        log contains bytes that no broker writes, and if the disk gets so full that a broker would delete messages.
        """
        require_owner(self.paths)
        require_accepted(self.paths, self.say)
        with one_writer(self.paths):
            give_back(self.paths)
            for _retry in range(_MOST_RETRIES):
                try:
                    return self._run_once(spark, until_caught_up=until_caught_up)
                except TruncatedError as error:
                    self.say(f"the broker has cut off the end of its log: {error}")
                except OvertakenError as error:
                    self.say(f"starting over: {error}")
                    # Allowed here: the folder is ours, and the log has none of its messages any more.
                    delete_follow_result(self.paths)
                except Exception as error:
                    if not is_file_gone(error):
                        raise
                    self.say("the broker has deleted a file while it was read: trying again")
                self.is_stopping.wait(_RETRY_SECONDS)
        raise UnavailableError("the broker keeps deleting files while they are read: start again later")

    def _run_once(self, spark: "SparkSession", *, until_caught_up: bool) -> Lag:
        Base(self.paths, self.clock, self.say, self.rows_per_file).make(spark.sparkContext)
        with open_index_database(self.paths) as index:
            return _Stream(self, spark, index).run(until_caught_up=until_caught_up)


class _Stream:
    """A streaming query, until the log is truncated or the run is stopped."""

    def __init__(self, follow: Follow, spark: "SparkSession", index: IndexDatabase) -> None:
        self._follow, self._spark, self._index = follow, spark, index
        self._folder = follow.paths.follow / "stream"
        self._indexed, self._units, self._written_notes, self._done = 0, 0, 0, 0
        self._failure: Exception | None = None
        self._batch_lock, self._is_over = threading.Lock(), False

    def run(self, *, until_caught_up: bool) -> Lag:
        # Allowed here: the database contains everything that notes and checkpoint of an earlier run record. Spark's
        # checkpoint would be a second truth, so each start uses a new one.
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "notes").mkdir(parents=True)
        log = commitlog_being_written(self._follow.paths.commitlog)
        self._indexed = self._index.resume(log)
        tail = Tail(self._follow.paths.commitlog, self._indexed)
        query = self._started()
        try:
            return self._watch(query, tail, until_caught_up=until_caught_up)
        finally:
            query.stop()
            with self._batch_lock:  # a running batch ends before the database is closed
                self._is_over = True

    def _started(self) -> "StreamingQuery":
        notes = self._spark.readStream.schema(_NOTE).option("maxFilesPerTrigger", 1).option("cleanSource", "delete")
        return (
            notes.json(str(self._folder / "notes"))
            .writeStream.queryName("rocketmq-follow")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .foreachBatch(self._index_batch)
            .start()
        )

    def _index_batch(self, note: "DataFrame", _batch: int) -> None:
        """Index the ranges of a note."""
        with self._batch_lock:
            if self._is_over or self._failure:
                return
            try:
                self._index_note(note)
            except Exception as error:
                self._failure = error
                raise

    def _index_note(self, note: "DataFrame") -> None:
        rows = note.collect()
        if {row.note for row in rows} != {self._done}:
            raise SafetyError(f"expected note {self._done}, and got: {rows}")
        ranges = sorted(LogRange(LogFile(row.path, row.file_start, row.file_size), row.start, row.end) for row in rows)
        with our_errors():
            chunks = RangeJob(rules_of(self._follow.paths)).run(self._spark.sparkContext, ranges)
        self._units += self._index.add(chunks)
        self._indexed = ranges[-1].end
        self._done += 1

    def _watch(self, query: "StreamingQuery", tail: Tail, *, until_caught_up: bool) -> Lag:
        reported_at = bad_since = time.monotonic()
        caught_up = CaughtUp()
        while True:
            failure = self._failure or query.exception()
            news = TailNews((), tail.position, is_all=False)
            if failure is not None or self._written_notes - self._done < _MOST_WAITING:
                news = tail.read()  # if the log was truncated, this raises instead of the failure
            if failure is not None:
                raise failure
            require_room(self._follow.paths)
            # a broker may be writing just these bytes; what no broker writes stays bad
            bad_since = bad_since if news.bad else time.monotonic()
            if time.monotonic() - bad_since > _BAD_SECONDS:
                raise SafetyError(f"the commitlog at {news.end}: {news.bad}")
            if news.ranges:
                self._write_note(news.ranges)
            is_done = news.is_all and not news.ranges and self._written_notes == self._done
            lag = Lag(tail.position, tail.position if is_done else self._indexed, self._units)
            self._follow.export(lag)
            has_all = caught_up.update(time.monotonic(), lag.end, lag.indexed, is_all=news.is_all)
            if self._follow.is_stopping.is_set() or (until_caught_up and has_all):
                return lag
            if time.monotonic() - reported_at > _REPORT_SECONDS:
                reported_at = time.monotonic()
                self._report(lag)
            self._follow.is_stopping.wait(_PASS_SECONDS)

    def _report(self, lag: Lag) -> None:
        if self._follow.report is not None:
            self._follow.report(lag)
        else:
            self._follow.say(f"{lag.units:,} units are new, {lag.bytes_behind:,} bytes of the log are not indexed")

    def _write_note(self, ranges: tuple[LogRange, ...]) -> None:
        lines = [
            json.dumps(
                {
                    "note": self._written_notes,
                    "path": log_range.file.path,
                    "file_start": log_range.file.start,
                    "file_size": log_range.file.size,
                    "start": log_range.start,
                    "end": log_range.end,
                }
            )
            for log_range in ranges
        ]
        name = f"{self._written_notes:012d}.json"
        aside = self._folder / f"{name}.aside"
        # under another name first: Spark must not read half a note
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
        # Spark orders files by the time of their last change, in milliseconds: each note is later than the one before
        stamp_ns = (time.time_ns() // 1_000_000 + self._written_notes) * 1_000_000
        os.utime(aside, ns=(stamp_ns, stamp_ns))
        aside.replace(self._folder / "notes" / name)
        self._written_notes += 1
