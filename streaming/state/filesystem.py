"""Files of the state directory, a local path or a URI.

A reader finds the complete new file, the old one, or none; so does the service when it starts after a crash.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

from streaming.errors import UnavailableError
from streaming.state.durable import flush

_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory, local or of any store that pyarrow supports. Names may contain subfolders: `plans/1.json`.

    Every method raises UnavailableError if the directory can't be read or written.
    """

    location: str
    filesystem: pafs.FileSystem
    root: str

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[str]:
        """Yield a path to write to. If the block ends without an error, the file replaces any older one at `name`."""
        path = f"{self.root}/{name}"
        folder, _, file_name = path.rpartition("/")
        # On S3 closing the stream of an incomplete file would store it, so it must not have the final name yet.
        unfinished = f"{folder}/.{file_name}{_UNFINISHED}"
        try:
            make_folder(self.filesystem, folder)
            yield unfinished
            self._flush(unfinished)  # before the rename, so that no name ever refers to a file that is not on the disk
            self.filesystem.move(unfinished, path)  # on S3 a copy, which is complete or missing
            while len(folder) > len(self.root):  # a new folder is durable once its parent is flushed
                self._flush(folder)
                folder = folder.rpartition("/")[0]
            self._flush(self.root)
        except BaseException as error:
            with contextlib.suppress(OSError):  # the caller may retry, and on a full disk these files would pile up
                self.filesystem.delete_file(unfinished)
            if isinstance(error, OSError | pa.ArrowException):
                raise UnavailableError(f"{path} can't be written: {error}") from error
            raise

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
        """Write a file; it replaces an older one."""
        with self.new_file(name) as path, self.filesystem.open_output_stream(path) as out:
            out.write(content)

    def write_new(self, name: str, content: pa.Buffer) -> None:
        """Write a file whose name is new. A store other than a disk gets it in one put, without a rename."""
        if isinstance(self.filesystem, pafs.LocalFileSystem):
            self.write(name, content)
            return
        path = f"{self.root}/{name}"
        with translated(path, "written"):
            make_folder(self.filesystem, path.rpartition("/")[0])
            # The content is complete before the stream opens: if writing failed in the middle, closing the stream on S3
            # would store what was written so far (decision 10)
            with self.filesystem.open_output_stream(path) as out:
                out.write(content)

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is none."""
        path = f"{self.root}/{name}"
        with translated(path, "read"):
            if self.filesystem.get_file_info(path).type is pafs.FileType.NotFound:
                return None
            with self.filesystem.open_input_stream(path) as stream:
                return bytes(stream.read())

    def delete(self, name: str, *, durably: bool = False) -> bool:
        """Delete a file; False if there was none. durably: a power loss does not bring it back."""
        path = f"{self.root}/{name}"
        with translated(path, "deleted"):
            if self.filesystem.get_file_info(path).type is pafs.FileType.NotFound:
                return False
            self.filesystem.delete_file(path)
            if durably:
                self._flush(path.rpartition("/")[0])
            return True

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files in this folder, or in its subfolder `folder`, without unfinished ones."""
        return [name for name in self._names(folder, pafs.FileType.File) if not name.endswith(_UNFINISHED)]

    def folders(self, folder: str = "") -> list[str]:
        """Return the names of the directories in this folder, or in its subfolder `folder`."""
        return self._names(folder, pafs.FileType.Directory)

    def _names(self, folder: str, kind: pafs.FileType) -> list[str]:
        path = f"{self.root}/{folder}".rstrip("/")
        with translated(path, "listed"):
            entries = self.filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return sorted(entry.base_name for entry in entries if entry.type is kind)

    def _flush(self, path: str) -> None:
        if isinstance(self.filesystem, pafs.LocalFileSystem):  # other stores promise durability with close()
            flush(path)


def folder_of(location: str) -> Folder:
    """Return the folder at a local path or a URI; it need not exist. Raises UnavailableError."""
    filesystem, root = open_filesystem(location)
    return Folder(location.rstrip("/"), filesystem, root.rstrip("/"))


def below(location: str, name: str) -> str:
    """Return the location of `name` in the folder at `location`, with the options of a URI."""
    if "://" not in location:
        return str(Path(location, name).absolute())
    uri, question_mark, options = location.partition("?")
    return f"{uri.rstrip('/')}/{quote(name, safe='/=')}{question_mark}{options}"


def make_folder(filesystem: pafs.FileSystem, path: str) -> None:
    """Create a folder and its parents. Raises OSError."""
    if not isinstance(filesystem, pafs.S3FileSystem):  # S3 has no folders
        filesystem.create_dir(path, recursive=True)


def open_filesystem(location: str) -> tuple[pafs.FileSystem, str]:
    """Return the filesystem and path of a local path or a URI (file://, s3://). Raises UnavailableError."""
    try:
        if "://" in location:
            return _of_uri(location)
        return pafs.LocalFileSystem(), str(Path(location).absolute())
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{shown(location)} can't be opened: {error}") from error


def shown(location: str) -> str:
    """Return a location for display, without the options of a URI."""
    return location.partition("?")[0] if "://" in location else location


@contextlib.contextmanager
def translated(path: str, what: str) -> Iterator[None]:
    """Turn errors of a store or pyarrow in the block into UnavailableError: `<path> can't be <what>`."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise UnavailableError(f"{path} can't be {what}: {error}") from error


@lru_cache(maxsize=32)  # a new client of an object store is slow, and checkpoints are read twice a second
def _of_uri(location: str) -> tuple[pafs.FileSystem, str]:
    # with this option a small file takes one put, not the three requests of a multipart upload
    delayed = "&allow_delayed_open=true" if location.startswith("s3://") and "?" in location else ""
    filesystem, path = pafs.FileSystem.from_uri(location + delayed)
    return filesystem, path
