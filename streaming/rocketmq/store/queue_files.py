"""The files of a consume queue: reads any run of its units, and finds its ends without reading all of them."""

import bisect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streaming.errors import SafetyError
from udfs.rocketmq import queue_units as u

_SCANNED_BYTES = 4 << 20


class QueueFile(NamedTuple):
    """A file of a queue."""

    path: str
    start: int  # queue offset of its first unit
    count: int  # type: ignore[assignment]  # units that fit; no caller counts values in it


class QueueFiles(NamedTuple):
    """The files of a queue, one directly after the other."""

    files: tuple[QueueFile, ...]

    @property
    def start(self) -> int:
        """Queue offset of the first unit of the first file."""
        return self.files[0].start if self.files else 0

    @property
    def limit(self) -> int:
        """Queue offset after the last unit that fits into the files."""
        return self.files[-1].start + self.files[-1].count if self.files else 0

    def read(self, first: int, end: int) -> u.Units:
        """Read the units from one queue offset up to another. Raises SafetyError if a file has become shorter."""
        read = [u.decode(data) for data in self._bytes(first, end)]
        if len(read) == 1:
            return read[0]
        return u.Units(*(np.concatenate(column) for column in zip(*read, strict=True))) if read else u.decode(b"")

    def where(self, offset: int) -> str:
        """Return the file and the byte of a unit, for messages."""
        file = self._file_of(offset)
        return f"{file.path}, byte {(offset - file.start) * u.UNIT_BYTES}"

    def end(self) -> int:
        """Return the queue offset after the last written unit; `later` checks the units after it."""

        def is_unwritten(offset: int) -> bool:
            return not bool(u.is_written(self.read(offset, offset + 1))[0])

        starts = [file.start for file in self.files]
        number = bisect.bisect_left(starts, True, key=is_unwritten)
        if number == 0:
            return self.start
        file = self.files[number - 1]
        return _first(is_unwritten, file.start, file.start + file.count)

    def first_live(self, end: int, log_start: int) -> int:
        """Return the queue offset of the first unit whose message is in the commitlog; `end` if there is none."""

        def is_live(offset: int) -> bool:
            return bool(u.is_live(self.read(offset, offset + 1), log_start)[0])

        return _first(is_live, self.start, end)

    def later(self, end: int) -> int | None:
        """Return the queue offset of a written unit after the end; None in a healthy queue."""
        for file in self.files:
            for first in _with_data(file, max(end, file.start)):
                units = self.read(first, min(first + _SCANNED_BYTES // u.UNIT_BYTES, file.start + file.count))
                written = u.is_written(units)
                if bool(written.any()):
                    return first + int(np.argmax(written))
        return None

    def _bytes(self, first: int, end: int) -> Iterator[bytes]:
        for file in self.files:
            start, stop = max(first, file.start), min(end, file.start + file.count)
            if start < stop:
                size = (stop - start) * u.UNIT_BYTES
                with _opened(file.path) as handle:
                    data = _pread(handle, size, (start - file.start) * u.UNIT_BYTES)
                if len(data) != size:
                    raise SafetyError(f"{file.path} has become shorter while it was read")
                yield data

    def _file_of(self, offset: int) -> QueueFile:
        return self.files[max(bisect.bisect_right([file.start for file in self.files], offset) - 1, 0)]


def files_of(folder: Path) -> QueueFiles:
    """List the files of a queue's folder.

    Raises SafetyError, which names the file, if a file has another name than a queue file, is torn, or does not follow
    the file before it.
    """
    files: list[QueueFile] = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        size = entry.stat().st_size
        if not (entry.is_file() and len(entry.name) == 20 and entry.name.isdecimal()):
            raise SafetyError(f"{entry.path} is no file of a consume queue")
        if size % u.UNIT_BYTES or int(entry.name) % u.UNIT_BYTES:
            raise SafetyError(
                f"{entry.path} has {size} bytes, no multiple of a unit's {u.UNIT_BYTES}: a torn unit starts at byte "
                f"{size - size % u.UNIT_BYTES}"
            )
        if not size:
            continue
        start = int(entry.name) // u.UNIT_BYTES
        if files and files[-1].start + files[-1].count != start:
            raise SafetyError(f"{entry.path} does not follow {files[-1].path}: a file between them is missing")
        files.append(QueueFile(entry.path, start, size // u.UNIT_BYTES))
    return QueueFiles(tuple(files))


def _first(holds: Callable[[int], bool], first: int, end: int) -> int:
    """Return the first number of the range for which `holds` is true; `end` if there is none.

    `holds` must be true for all later numbers, too.
    """
    return first + bisect.bisect_left(range(first, end), True, key=holds)


def _with_data(file: QueueFile, first: int) -> Iterator[int]:
    """Yield the starts of stored pieces of a file, in units from `first` on; holes of a sparse file are skipped."""
    with _opened(file.path) as handle:
        position = (first - file.start) * u.UNIT_BYTES
        size = file.count * u.UNIT_BYTES
        while position < size:
            try:
                position = os.lseek(handle, position, os.SEEK_DATA)
            except OSError:  # no data after this byte
                return
            position -= position % u.UNIT_BYTES
            unit = file.start + position // u.UNIT_BYTES
            yield max(unit, first)
            position += _SCANNED_BYTES - _SCANNED_BYTES % u.UNIT_BYTES


def _pread(handle: int, size: int, position: int) -> bytes:
    data = os.pread(handle, size, position)
    while len(data) < size:
        more = os.pread(handle, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


@contextmanager
def _opened(path: str) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
