"""The files of one consume queue: reading any run of its units, and finding its ends without reading all of it."""

import bisect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streaming.errors import SafetyError
from udfs.rocketmq import units as u

_SCANNED_BYTES = 4 << 20


class QueueFile(NamedTuple):
    """start: queue offset of its first unit. count: how many units fit."""

    path: str
    start: int
    count: int  # type: ignore[assignment]  # no caller counts values in it


class QueueFiles(NamedTuple):
    """The files of a queue, one directly after the other."""

    files: tuple[QueueFile, ...]

    @property
    def start(self) -> int:
        """Queue offset of the first unit of the first file."""
        return self.files[0].start if self.files else 0

    @property
    def limit(self) -> int:
        """Queue offset behind the last unit that has room."""
        return self.files[-1].start + self.files[-1].count if self.files else 0

    def read(self, first: int, end: int) -> u.Units:
        """Read the units from one queue offset up to another. Raises SafetyError where a file has become shorter."""
        read = [u.decode(data) for data in self._bytes(first, end)]
        if len(read) == 1:
            return read[0]
        return u.Units(*(np.concatenate(column) for column in zip(*read, strict=True))) if read else u.decode(b"")

    def where(self, offset: int) -> str:
        """Say which file and which byte of it a unit is at."""
        file = self._file_of(offset)
        return f"{file.path}, byte {(offset - file.start) * u.UNIT_BYTES}"

    def end(self) -> int:
        """Return the queue offset behind the last written unit. What is behind it is looked at by `later`."""

        def is_unwritten(offset: int) -> bool:
            return not bool(u.is_written(self.read(offset, offset + 1))[0])

        starts = [file.start for file in self.files]
        number = bisect.bisect_left(starts, True, key=is_unwritten)
        if number == 0:
            return self.start
        file = self.files[number - 1]
        return _first(is_unwritten, file.start, file.start + file.count)

    def first_live(self, end: int, log_start: int) -> int:
        """Return the queue offset of the first unit whose message the commitlog has; end if there is none."""

        def is_live(offset: int) -> bool:
            return bool(u.is_live(self.read(offset, offset + 1), log_start)[0])

        return _first(is_live, self.start, end)

    def later(self, end: int) -> int | None:
        """Return the queue offset of a written unit behind the end, which a healthy queue has not; None if none is."""
        for file in self.files:
            for first in _with_data(file, max(end, file.start)):
                some = self.read(first, min(first + _SCANNED_BYTES // u.UNIT_BYTES, file.start + file.count))
                written = u.is_written(some)
                if bool(written.any()):
                    return first + int(np.argmax(written))
        return None

    def _bytes(self, first: int, end: int) -> Iterator[bytes]:
        for file in self.files:
            begin, stop = max(first, file.start), min(end, file.start + file.count)
            if begin < stop:
                wanted = (stop - begin) * u.UNIT_BYTES
                with _opened(file.path) as handle:
                    data = _pread(handle, wanted, (begin - file.start) * u.UNIT_BYTES)
                if len(data) != wanted:
                    raise SafetyError(f"{file.path} has become shorter while it was read")
                yield data

    def _file_of(self, offset: int) -> QueueFile:
        return self.files[max(bisect.bisect_right([file.start for file in self.files], offset) - 1, 0)]


def files_of(folder: Path) -> QueueFiles:
    """List the files of a queue's folder.

    Raises SafetyError, which names the file, where one has no name of a queue file, is torn, or does not follow the one
    before it.
    """
    files: list[QueueFile] = []
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        size = entry.stat().st_size
        if not (entry.is_file() and len(entry.name) == 20 and entry.name.isdecimal()):
            raise SafetyError(f"{entry.path} is no file of a consume queue")
        if size % u.UNIT_BYTES or int(entry.name) % u.UNIT_BYTES:
            raise SafetyError(f"{entry.path} has {size} bytes: units of {u.UNIT_BYTES} bytes do not fill it, byte "
                              f"{size - size % u.UNIT_BYTES} begins a torn one")  # fmt: skip
        if not size:
            continue
        start = int(entry.name) // u.UNIT_BYTES
        if files and files[-1].start + files[-1].count != start:
            raise SafetyError(f"{entry.path} does not follow {files[-1].path}: a file between them is missing")
        files.append(QueueFile(entry.path, start, size // u.UNIT_BYTES))
    return QueueFiles(tuple(files))


def _first(holds: Callable[[int], bool], first: int, end: int) -> int:
    """The first number for which it holds, if it holds for all that follow one; end if for none."""
    return first + bisect.bisect_left(range(first, end), True, key=holds)


def _with_data(file: QueueFile, first: int) -> Iterator[int]:
    """Beginnings of pieces of a file, in units from first on, without those that the disk has never stored."""
    with _opened(file.path) as handle:
        position = (first - file.start) * u.UNIT_BYTES
        size = file.count * u.UNIT_BYTES
        while position < size:
            try:
                position = os.lseek(handle, position, os.SEEK_DATA)
            except OSError:  # no data behind this byte
                return
            position -= position % u.UNIT_BYTES
            unit = file.start + position // u.UNIT_BYTES
            yield max(unit, first)
            position += _SCANNED_BYTES - _SCANNED_BYTES % u.UNIT_BYTES


def _pread(handle: int, wanted: int, position: int) -> bytes:
    data = os.pread(handle, wanted, position)
    while len(data) < wanted:
        more = os.pread(handle, wanted - len(data), position + len(data))
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
