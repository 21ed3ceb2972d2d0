"""Looks at a commitlog to which a broker writes: what has become whole since the last look.

Each look begins with the last record that was told before. If other bytes are there now, the broker has crashed, and
cut off the end of its log when it came back; what was made of that end is wrong then.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from streaming.rocketmq.log_files import CommitLog, LogFile, commitlog_being_written, mapped
from udfs.rocketmq import commitlog as c

RANGE_BYTES = 8 << 20
_MOST_RANGES = 8


class TruncatedError(Exception):
    """The log does not have the last record any more that it had."""


class OvertakenError(Exception):
    """The broker has deleted files of the log that were not read yet."""


class LogRange(NamedTuple):
    """Whole records of one file: those that begin at the physical offset start, or later, and before end."""

    file: LogFile
    start: int
    end: int


class Look(NamedTuple):
    """ranges: what has become whole since the last look, in order. end: how far the log is known to be whole.

    is_all: no more was whole at this look. bad: what is wrong behind the end, where something is.
    """

    ranges: tuple[LogRange, ...]
    end: int
    is_all: bool
    bad: str = ""


@dataclass(slots=True)
class Tail:
    """One reader of a log. position: what begins before it was told already."""

    folder: Path
    position: int
    range_bytes: int = RANGE_BYTES
    most_ranges: int = _MOST_RANGES
    _last: int = field(default=-1, init=False)
    _head: bytes = field(default=b"", init=False)

    def look(self) -> Look:
        """Return what is new. Raises TruncatedError, OvertakenError, and SafetyError where files do not fit."""
        log = commitlog_being_written(self.folder)
        if self.position < log.start:
            raise OvertakenError(f"the commitlog begins at {log.start} now, and was read up to {self.position}")
        self._require_last(log)
        ranges, bad = list[LogRange](), ""
        while len(ranges) < self.most_ranges:
            file = log.file_at(self.position)
            if file is None:
                break
            with mapped(file) as view:
                seen = c.confirmed(view, file.start, self.position - file.start, self.range_bytes)
                if seen.last >= 0:
                    self._last, self._head = file.start + seen.last, bytes(view[seen.last : seen.last + c.HEADER_BYTES])
            position, bad = file.start + seen.position, seen.bad
            if position > self.position:
                ranges.append(LogRange(file, self.position, position))
            is_new = position > self.position or seen.is_over
            self.position = file.start + file.size if seen.is_over else position
            if not is_new:
                break
        return Look(tuple(ranges), self.position, len(ranges) < self.most_ranges, bad)

    def _require_last(self, log: CommitLog) -> None:
        file = log.file_at(self._last) if self._last >= 0 else None
        if self._last >= 0 and file is None and self._last >= log.start:
            raise TruncatedError(f"the commitlog ends before the record at {self._last}")
        if file is None:
            return
        with mapped(file) as view:
            position = self._last - file.start
            if bytes(view[position : position + c.HEADER_BYTES]) != self._head:
                raise TruncatedError(f"another record begins at {self._last} than before")
