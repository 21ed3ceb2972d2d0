"""The files of the commitlog: their start and end, and the fixed parts of many records at once."""

import bisect
import io
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming.errors import SafetyError
from udfs.rocketmq import commitlog as c
from udfs.rocketmq.queue_units import Longs

_READ_BYTES = 4 << 20  # of the commitlog at once; fits into a processor's caches
_PAGE_BYTES = mmap.PAGESIZE
LOST_AND_FOUND = "lost+found"  # every ext4 file system has it in its root folder


class LogFile(NamedTuple):
    """A file of the commitlog."""

    path: str
    start: int  # physical offset of its first byte
    size: int


class CommitLog(NamedTuple):
    """The files of a commitlog, one directly after the other."""

    files: tuple[LogFile, ...]
    end: int  # physical offset after the last record

    @property
    def start(self) -> int:
        """Physical offset of the first byte that still exists."""
        return self.files[0].start if self.files else 0

    @property
    def starts(self) -> list[int]:
        """Physical offsets of the files."""
        return [file.start for file in self.files]

    @property
    def used(self) -> tuple[LogFile, ...]:
        """The files that have records."""
        return tuple(file for file in self.files if file.start < self.end)

    @property
    def has_indexed(self) -> bool:
        """Whether a record belongs into a queue; reads up to the first such record. Raises SafetyError."""
        return any(_has_indexed(file) for file in self.used)

    def file_at(self, phy: int) -> LogFile | None:
        """Return the file that contains this byte of the log; None without one."""
        number = bisect.bisect_right(self.starts, phy) - 1
        if number < 0 or phy >= self.files[number].start + self.files[number].size:
            return None
        return self.files[number]

    def record_at(self, phy: int) -> c.CommitLogRecord | None:
        """Read a record; None without one. Raises SafetyError at bytes that are no record."""
        file = self.file_at(phy)
        if file is None or phy >= self.end:
            return None
        with mapped(file) as view:
            try:
                return c.record_at(view, file.start, phy - file.start)
            except c.BadRecordError as error:
                raise SafetyError(f"{file.path}, byte {error.position}: {error.text}") from error


def commitlog_of(folder: Path, record_phy: int = -1) -> CommitLog:
    """List the files of a commitlog and walk the last one to its end.

    record_phy: physical offset of a record; the walk starts there if it is in that file. Raises SafetyError, which
    names file and byte, if files do not follow each other, have different sizes, or contain bytes that are no record.
    """
    files = _listed(folder)
    return CommitLog(tuple(files), _end_of(files, record_phy))


def start_of(folder: Path) -> int:
    """Return the physical offset of the first byte that still exists. Raises SafetyError as `commitlog_of` does."""
    files = _listed(folder)
    return files[0].start if files else 0


def commitlog_being_written(folder: Path) -> CommitLog:
    """List the files of a commitlog to which a broker writes; its end is that of its last file, with records or not.

    Raises SafetyError, which names the file, if files do not follow each other or have different sizes.
    """
    files = _listed(folder)
    return CommitLog(tuple(files), files[-1].start + files[-1].size if files else 0)


def _listed(folder: Path) -> list[LogFile]:
    files = list[LogFile]()
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name == LOST_AND_FOUND:
            continue
        if not (entry.is_file() and len(entry.name) == 20 and entry.name.isdecimal()):
            raise SafetyError(f"{entry.path} is no file of a commitlog")
        file = LogFile(entry.path, int(entry.name), entry.stat().st_size)
        if not file.size:
            continue
        if files and file.size != files[0].size:
            raise SafetyError(f"{file.path} has {file.size} bytes, and {files[0].path} {files[0].size}")
        if files and files[-1].start + files[-1].size != file.start:
            raise SafetyError(f"{file.path} does not follow {files[-1].path}: a file between them is missing")
        files.append(file)
    return files


def _has_indexed(file: LogFile) -> bool:
    with mapped(file) as view:
        try:
            return any(record.is_indexed for record in c.walk(view, file.start))
        except c.BadRecordError as error:
            raise SafetyError(f"{file.path}, byte {error.position}: {error.text}") from error


def headers_of(file: LogFile, positions: Sequence[Longs]) -> list[c.RecordHeaders]:
    """Read the fixed parts of records, for several ascending runs of positions, in one pass over the file.

    Raises SafetyError, which names file and byte, for a position at which no record starts.
    """
    headers = [c.no_headers(len(run)) for run in positions]
    done = [0] * len(positions)
    start_position = min((int(run[0]) for run in positions if len(run)), default=0)
    end = max((int(run[-1]) + 1 for run in positions if len(run)), default=0)
    buffer = np.empty(_READ_BYTES + c.HEADER_BYTES, dtype=np.uint8)
    with mapped(file) as view, open(file.path, "rb", buffering=0) as handle:  # noqa: PTH123  called for each section
        whole: NDArray[np.uint8] = np.frombuffer(view, dtype=np.uint8)
        for at in range(start_position, end, _READ_BYTES):
            ends = [int(np.searchsorted(run, at + _READ_BYTES)) for run in positions]
            # Where records are close together, the file is read in blocks that serve all runs: a mapped file would come
            # page by page into the memory of this process, and line by line into its caches, once for each run.
            is_dense = (sum(ends) - sum(done)) * _PAGE_BYTES >= _READ_BYTES
            log, start = (_filled(buffer, handle, at), at) if is_dense else (whole, 0)
            for number, run in enumerate(positions):
                if done[number] < ends[number]:
                    rows = slice(done[number], ends[number])
                    headers[number].put(rows, _headers_at(file, log, run[rows] - start, start))
            done = ends
    return headers


def _filled(buffer: NDArray[np.uint8], handle: io.FileIO, at: int) -> NDArray[np.uint8]:
    """Read a file from this byte on, until the buffer is full or the file ends; return the filled part."""
    handle.seek(at)
    count = 0
    while count < len(buffer) and (more := handle.readinto(buffer[count:].data)):
        count += more
    return buffer[:count]


def _headers_at(file: LogFile, log: NDArray[np.uint8], positions: Longs, start: int) -> c.RecordHeaders:
    try:
        return c.headers_at(log, positions)
    except c.BadRecordError as error:
        raise SafetyError(f"{file.path}, byte {start + error.position}: {error.text}") from error


@contextmanager
def mapped(file: LogFile) -> Iterator[memoryview]:
    """Map a file's bytes, which are read on access."""
    with open(file.path, "rb") as handle:  # noqa: PTH123  mmap takes a file descriptor
        memory = mmap.mmap(handle.fileno(), file.size, prot=mmap.PROT_READ)
    view = memoryview(memory)
    try:
        yield view
    finally:
        with suppress(BufferError):  # the traceback of an error may still hold the view, and releases it later
            view.release()
            memory.close()


def _end_of(files: list[LogFile], record_phy: int) -> int:
    """Return the end of the last file that has records."""
    # brokers create the files after it in advance
    for file in reversed(files):
        start = record_phy - file.start if file.start <= record_phy < file.start + file.size else 0
        with mapped(file) as view:
            try:
                position = c.end_of(view, file.start, start)
                if position == start:  # no record starts there
                    position = c.end_of(view, file.start)
            except c.BadRecordError as error:
                raise SafetyError(f"{file.path}, byte {error.position}: {error.text}") from error
        if position:
            return file.start + position
    return files[0].start if files else 0
