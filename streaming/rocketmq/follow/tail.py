"""Reads the end of a commitlog to which a broker writes: the records that have become complete since the last pass.

Each pass starts with the last reported record.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from streaming.rocketmq.convert.index_database import OvertakenError
from streaming.rocketmq.convert.ranges import RANGE_BYTES, LogRange
from streaming.rocketmq.store.log_files import CommitLog, commitlog_being_written, mapped
from udfs.rocketmq import commitlog as c

_MOST_RANGES = 8


class TruncatedError(Exception):
    """The log does not contain its last reported record any more."""


class TailNews(NamedTuple):
    """The result of a pass."""

    ranges: tuple[LogRange, ...]  # what has become complete since the last pass, in order
    end: int  # of the part that is known to be complete
    is_all: bool  # everything that was complete is in it
    bad: str = ""  # the fault of the bytes after the end, if any


@dataclass(slots=True)
class Tail:
    """A reader of a log."""

    folder: Path
    position: int  # records that start before it were reported already
    range_bytes: int = RANGE_BYTES
    most_ranges: int = _MOST_RANGES
    _last: int = field(default=-1, init=False)
    _head: bytes = field(default=b"", init=False)

    def read(self) -> TailNews:
        """Return the new records. Raises TruncatedError, OvertakenError, and SafetyError for files that do not fit."""
        log = commitlog_being_written(self.folder)
        if self.position < log.start:
            raise OvertakenError(f"the commitlog starts at {log.start} now, and was read up to {self.position}")
        self._require_last(log)
        ranges, bad = list[LogRange](), ""
        while len(ranges) < self.most_ranges:
            file = log.file_at(self.position)
            if file is None:
                break
            with mapped(file) as view:
                records = c.confirmed(view, file.start, self.position - file.start, self.range_bytes)
                if records.last >= 0:
                    self._last, self._head = (
                        file.start + records.last,
                        bytes(view[records.last : records.last + c.HEADER_BYTES]),
                    )
            position, bad = file.start + records.position, records.bad
            if position > self.position:
                ranges.append(LogRange(file, self.position, position))
            is_new = position > self.position or records.is_over
            self.position = file.start + file.size if records.is_over else position
            if not is_new:
                break
        return TailNews(tuple(ranges), self.position, len(ranges) < self.most_ranges, bad)

    def _require_last(self, log: CommitLog) -> None:
        file = log.file_at(self._last) if self._last >= 0 else None
        if self._last >= 0 and file is None and self._last >= log.start:
            raise TruncatedError(f"the commitlog ends before the record at {self._last}")
        if file is None:
            return
        with mapped(file) as view:
            position = self._last - file.start
            # the broker has crashed and truncated its log when it came back: what was derived from that end is wrong
            if bytes(view[position : position + c.HEADER_BYTES]) != self._head:
                raise TruncatedError(f"another record starts at {self._last} than before")
