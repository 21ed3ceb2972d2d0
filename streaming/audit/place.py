"""Where an audit writes: its report, and the stages it hands from one phase to the next."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs

from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.state.filesystem import open_filesystem

FINDINGS = "findings"


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, local or any that Hadoop knows."""

    location: str
    filesystem: pafs.FileSystem
    root: str

    def spark_path(self, name: str) -> str:
        """As Spark takes it: without a scheme Spark would take the cluster's default filesystem."""
        return f"{self.location}/{name}" if "://" in self.location else f"file://{self.root}/{name}"

    def write(self, name: str, content: bytes) -> None:
        """Write a file, replacing what was there. Raises UnavailableError."""
        path = f"{self.root}/{name}"
        partial = f"{path}.part"
        try:
            self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            with self.filesystem.open_output_stream(partial) as out:
                out.write(content)
            self.filesystem.move(partial, path)
        except OSError as error:
            raise UnavailableError(f"{path} can't be written: {error}") from error

    def read(self, name: str) -> bytes | None:
        """Read a file; None where there is none. Raises UnavailableError."""
        path = f"{self.root}/{name}"
        try:
            if self.filesystem.get_file_info(path).type is pafs.FileType.NotFound:
                return None
            with self.filesystem.open_input_stream(path) as stream:
                return bytes(stream.read())
        except OSError as error:
            raise UnavailableError(f"{path} can't be read: {error}") from error

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder; none where there is no folder. Raises UnavailableError."""
        return self._names(f"{self.root}/{folder}", pafs.FileType.File)

    def folders(self, folder: str = "") -> list[str]:
        """Names of the directories in a folder, or here. Raises UnavailableError."""
        return self._names(f"{self.root}/{folder}".rstrip("/"), pafs.FileType.Directory)

    def _names(self, path: str, kind: pafs.FileType) -> list[str]:
        try:
            found = self.filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        except OSError as error:
            raise UnavailableError(f"{path} can't be listed: {error}") from error
        return sorted(info.base_name for info in found if info.type is kind)

    def remove(self, name: str) -> None:
        """Remove a directory of ours, if it is there. Raises UnavailableError."""
        path = f"{self.root}/{name}"
        try:
            if self.filesystem.get_file_info(path).type is pafs.FileType.Directory:
                self.filesystem.delete_dir(path)
        except OSError as error:
            raise UnavailableError(f"{path} can't be removed: {error}") from error

    def replace(self, name: str, by: str) -> None:
        """Put a directory of ours in another's place. Raises UnavailableError."""
        self.remove(name)
        try:
            self.filesystem.move(f"{self.root}/{by}", f"{self.root}/{name}")
        except OSError as error:
            raise UnavailableError(f"{self.root}/{by} can't be moved: {error}") from error


def place_of(settings: Settings, out: Path | str | None) -> Place:
    """--out, or `audit` in the state directory. Raises UnavailableError."""
    location = str(out) if out else f"{settings.state.dir.rstrip('/')}/audit"
    filesystem, root = open_filesystem(location)
    return Place(location.rstrip("/"), filesystem, root.rstrip("/"))
