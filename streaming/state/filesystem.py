"""Where state lies, a local path or a URI, and how a file gets there: written aside, then renamed.

A reader, and a start after a crash, finds the new file whole, or the old one, or none.
On a local disk we flush the file before it gets its name, and the folder after; other stores promise that with close().
On S3 a file gets its name by a copy, which is there whole or not at all. We don't write to the name itself: whoever
closes the stream of a file that broke off would put what there is of it. S3 knows no folders, so we make none there.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

from streaming.errors import UnavailableError

_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory, local or of any store that pyarrow knows. Names may have folders of their own: `plans/1.json`.

    Every method raises UnavailableError where the directory can't be read or written.
    """

    location: str
    filesystem: pafs.FileSystem
    root: str

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[str]:
        """Yield a path to write to; the file gets its name, over an older one, when the block ends without an error."""
        path = f"{self.root}/{name}"
        folder, _, file_name = path.rpartition("/")
        unfinished = f"{folder}/.{file_name}{_UNFINISHED}"
        try:
            make_folder(self.filesystem, folder)
            yield unfinished
            self._flush(unfinished)
            self.filesystem.move(unfinished, path)
            for changed in dict.fromkeys((folder, self.root)):  # a folder that is new is an entry of the one above it
                self._flush(changed)
        except BaseException as error:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(unfinished)
            if isinstance(error, OSError | pa.ArrowInvalid):
                raise UnavailableError(f"{path} can't be written: {error}") from error
            raise

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of an older one."""
        with self.new_file(name) as path, self.filesystem.open_output_stream(path) as out:
            out.write(content)

    def read(self, name: str) -> bytes | None:
        """Read a file; None where there is none."""
        path = f"{self.root}/{name}"
        with translated(path, "read"):
            if self.filesystem.get_file_info(path).type is pafs.FileType.NotFound:
                return None
            with self.filesystem.open_input_stream(path) as stream:
                return bytes(stream.read())

    def delete(self, name: str) -> bool:
        """Delete a file; False where there was none."""
        path = f"{self.root}/{name}"
        with translated(path, "deleted"):
            if self.filesystem.get_file_info(path).type is pafs.FileType.NotFound:
                return False
            self.filesystem.delete_file(path)
            return True

    def names(self, folder: str = "") -> list[str]:
        """Names of the files in a folder below this one, or here; those being written are left out."""
        return [name for name in self._names(folder, pafs.FileType.File) if not name.endswith(_UNFINISHED)]

    def folders(self, folder: str = "") -> list[str]:
        """Names of the directories in a folder below this one, or here."""
        return self._names(folder, pafs.FileType.Directory)

    def _names(self, folder: str, kind: pafs.FileType) -> list[str]:
        path = f"{self.root}/{folder}".rstrip("/")
        with translated(path, "listed"):
            found = self.filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type is kind)

    def _flush(self, path: str) -> None:
        if isinstance(self.filesystem, pafs.LocalFileSystem):
            flush(path)


def folder_of(location: str) -> Folder:
    """The folder at a local path or a URI; it need not exist. Raises UnavailableError."""
    filesystem, root = open_filesystem(location)
    return Folder(location.rstrip("/"), filesystem, root.rstrip("/"))


def below(location: str, name: str) -> str:
    """A location below another one; the options of a URI go with it."""
    if "://" not in location:
        return str(Path(location, name).absolute())
    place, mark, options = location.partition("?")
    return f"{place.rstrip('/')}/{quote(name, safe='/=')}{mark}{options}"


def make_folder(filesystem: pafs.FileSystem, path: str) -> None:
    """Make a folder and those above it, if the store knows folders. Raises OSError."""
    if not isinstance(filesystem, pafs.S3FileSystem):
        filesystem.create_dir(path, recursive=True)


def open_filesystem(location: str) -> tuple[pafs.FileSystem, str]:
    """Filesystem and path of a local path or a URI (file://, hdfs://, s3://). Raises UnavailableError."""
    try:
        if "://" in location:
            return _of_uri(location)
        return pafs.LocalFileSystem(), str(Path(location).absolute())
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{shown(location)} can't be opened: {error}") from error


def shown(location: str) -> str:
    """A location for people: without the options of a URI."""
    return location.partition("?")[0] if "://" in location else location


def flush(path: str) -> None:
    """Return when the disk holds a local file, or the names in a local folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def translated(path: str, what: str) -> Iterator[None]:
    """Raise UnavailableError, `<path> can't be <what>`, for what a store or pyarrow raises in the block."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise UnavailableError(f"{path} can't be {what}: {error}") from error


@lru_cache(maxsize=32)  # a client of an object store is worth keeping: the positions are asked for twice a second
def _of_uri(location: str) -> tuple[pafs.FileSystem, str]:
    # a small file is one put then, and not the beginning, the one part and the end of an upload
    delayed = "&allow_delayed_open=true" if location.startswith("s3://") and "?" in location else ""
    filesystem, path = pafs.FileSystem.from_uri(location + delayed)
    return filesystem, path
