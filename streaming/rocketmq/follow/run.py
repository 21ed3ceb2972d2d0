"""Follows a broker that writes: what its log gets becomes rows of a database beside it, by Spark Structured Streaming.

The driver looks at the end of the log, and notes what has become whole as a small file. These notes are the stream: a
note a batch, whose ranges of the log are read in the executors. What the database has counts, and not what Spark's
checkpoint says, so that each start has a new one.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streaming.clock import Clock
from streaming.errors import SafetyError, UnavailableError
from streaming.rocketmq.disk import require_room
from streaming.rocketmq.failures import is_file_gone, our_errors
from streaming.rocketmq.follow.acceptance import require_accepted
from streaming.rocketmq.follow.base import Base
from streaming.rocketmq.follow.caught_up import CaughtUp
from streaming.rocketmq.follow.followed import Followed, followed_of, rules_of
from streaming.rocketmq.follow.handover import give_back, throw_away_followed
from streaming.rocketmq.follow.ranges import RangeJob
from streaming.rocketmq.follow.tail import LogRange, Look, OvertakenError, Tail, TruncatedError
from streaming.rocketmq.locks import one_writer
from streaming.rocketmq.log_files import LogFile, commitlog_being_written
from streaming.rocketmq.owner import require_owner
from streaming.rocketmq.place import Place
from streaming.rocketmq.progress import Say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_NOTE = "note long, path string, file_start long, file_size long, start long, end long"
_LOOK_SECONDS = 0.2
_TELL_SECONDS = 2.0
_MOST_WAITING = 3
_BAD_SECONDS = 30.0
_AGAIN_SECONDS = 1.0
_MOST_AGAIN = 1000


class Lag(NamedTuple):
    """How far the database is. end: of the whole records in the log. indexed: what begins before it has its rows."""

    end: int
    indexed: int
    units: int

    @property
    def bytes_behind(self) -> int:
        """Bytes of the log that are whole and not indexed yet."""
        return max(self.end - self.indexed, 0)


def _nothing(_lag: Lag) -> None:
    """Show nobody."""


@dataclass(slots=True)
class Follow:
    """One run. is_stopping: set it, and the run ends. tell: gets the lag every other second, instead of say.

    show: gets the lag at every look.
    """

    place: Place
    clock: Clock
    say: Say
    rows_per_file: int = 300_000
    is_stopping: threading.Event = field(default_factory=threading.Event)
    tell: Callable[["Lag"], None] | None = None
    show: Callable[["Lag"], None] = _nothing

    def run(self, spark: "SparkSession", *, until_caught_up: bool) -> Lag:
        """Follow until it is told to stop, or until all is indexed that the log had a few seconds ago.

        Raises BusyError beside another writer of ours, SafetyError where a queue would get a hole and where a log holds
        bytes that no broker writes, and where the disk gets so full that a broker would delete messages.
        """
        require_owner(self.place)
        require_accepted(self.place, self.say)
        with one_writer(self.place):
            give_back(self.place)
            for _again in range(_MOST_AGAIN):
                try:
                    return self._run_once(spark, until_caught_up=until_caught_up)
                except TruncatedError as error:
                    self.say(f"the broker has cut off the end of its log: {error}")
                except OvertakenError as error:
                    self.say(f"beginning anew: {error}")
                    # Allowed here: the folder is ours, and the log has none of its messages any more.
                    throw_away_followed(self.place)
                except Exception as error:
                    if not is_file_gone(error):
                        raise
                    self.say("the broker has deleted a file while it was read: looking again")
                self.is_stopping.wait(_AGAIN_SECONDS)
        raise UnavailableError("the broker deletes files again and again while they are read: start again later")

    def _run_once(self, spark: "SparkSession", *, until_caught_up: bool) -> Lag:
        Base(self.place, self.clock, self.say, self.rows_per_file).make(spark.sparkContext)
        with followed_of(self.place) as followed:
            return _Stream(self, spark, followed).run(until_caught_up=until_caught_up)


class _Stream:
    """One streaming query, until the log is cut off, or someone says stop."""

    def __init__(self, follow: Follow, spark: "SparkSession", followed: Followed) -> None:
        self._follow, self._spark, self._followed = follow, spark, followed
        self._folder = follow.place.followed / "stream"
        self._indexed, self._units, self._noted, self._done = 0, 0, 0, 0
        self._failure: Exception | None = None
        self._working, self._is_over = threading.Lock(), False

    def run(self, *, until_caught_up: bool) -> Lag:
        # Allowed here: notes and checkpoint of an earlier run say nothing that the database does not say.
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "notes").mkdir(parents=True)
        log = commitlog_being_written(self._follow.place.commitlog)
        self._indexed = self._followed.resume(log)
        tail = Tail(self._follow.place.commitlog, self._indexed)
        query = self._started()
        try:
            return self._watch(query, tail, until_caught_up=until_caught_up)
        finally:
            query.stop()
            with self._working:  # a batch that is under way ends before the database is closed
                self._is_over = True

    def _started(self) -> "StreamingQuery":
        notes = self._spark.readStream.schema(_NOTE).option("maxFilesPerTrigger", 1).option("cleanSource", "delete")
        return (
            notes.json(str(self._folder / "notes"))
            .writeStream.queryName("rocketmq-follow")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .foreachBatch(self._index)
            .start()
        )

    def _index(self, noted: "DataFrame", _batch: int) -> None:
        """Index the ranges of a note."""
        with self._working:
            if self._is_over or self._failure:
                return
            try:
                self._index_note(noted)
            except Exception as error:
                self._failure = error
                raise

    def _index_note(self, noted: "DataFrame") -> None:
        found = noted.collect()
        if {row.note for row in found} != {self._done}:
            raise SafetyError(f"note {self._done} was expected next, and others came: {found}")
        ranges = sorted(LogRange(LogFile(row.path, row.file_start, row.file_size), row.start, row.end) for row in found)
        with our_errors():
            chunks = RangeJob(rules_of(self._follow.place)).run(self._spark.sparkContext, ranges)
        self._units += self._followed.add(chunks)
        self._indexed = ranges[-1].end
        self._done += 1

    def _watch(self, query: "StreamingQuery", tail: Tail, *, until_caught_up: bool) -> Lag:
        told = bad_since = time.monotonic()
        caught_up = CaughtUp()
        while True:
            failure = self._failure or query.exception()
            look = Look((), tail.position, is_all=False)
            if failure is not None or self._noted - self._done < _MOST_WAITING:
                look = tail.look()  # where the log was cut off, this says so, and not the failure
            if failure is not None:
                raise failure
            require_room(self._follow.place)
            bad_since = bad_since if look.bad else time.monotonic()
            if time.monotonic() - bad_since > _BAD_SECONDS:
                raise SafetyError(f"the commitlog at {look.end}: {look.bad}")
            if look.ranges:
                self._note(look.ranges)
            is_done = look.is_all and not look.ranges and self._noted == self._done
            lag = Lag(tail.position, tail.position if is_done else self._indexed, self._units)
            self._follow.show(lag)
            has_all = caught_up.sees(time.monotonic(), lag.end, lag.indexed, is_all=look.is_all)
            if self._follow.is_stopping.is_set() or (until_caught_up and has_all):
                return lag
            if time.monotonic() - told > _TELL_SECONDS:
                told = time.monotonic()
                self._tell(lag)
            self._follow.is_stopping.wait(_LOOK_SECONDS)

    def _tell(self, lag: Lag) -> None:
        if self._follow.tell is not None:
            self._follow.tell(lag)
        else:
            self._follow.say(f"{lag.units:,} units are new, {lag.bytes_behind:,} bytes of the log behind")

    def _note(self, ranges: tuple[LogRange, ...]) -> None:
        lines = [
            json.dumps(
                {
                    "note": self._noted,
                    "path": each.file.path,
                    "file_start": each.file.start,
                    "file_size": each.file.size,
                    "start": each.start,
                    "end": each.end,
                }
            )
            for each in ranges
        ]
        name = f"{self._noted:012d}.json"
        aside = self._folder / f"{name}.aside"
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
        # Spark takes files by the time of their last change, in milliseconds: each note is later than the one before
        stamp_ns = (time.time_ns() // 1_000_000 + self._noted) * 1_000_000
        os.utime(aside, ns=(stamp_ns, stamp_ns))
        aside.replace(self._folder / "notes" / name)
        self._noted += 1
