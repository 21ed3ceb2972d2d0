"""Where an audit writes: its report, and the stages it hands from one phase to the next."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs

from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.state.filesystem import Folder, folder_of

FINDINGS = "findings"


@dataclass(frozen=True, slots=True)
class Place(Folder):
    """A folder that Spark writes to as well: a table of Spark's is a directory in it."""

    def spark_path(self, name: str) -> str:
        """As Spark takes it: without a scheme Spark would take the cluster's default filesystem."""
        return f"{self.location}/{name}" if "://" in self.location else f"file://{self.root}/{name}"

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
    folder = folder_of(str(out) if out else f"{settings.state_dir.rstrip('/')}/audit")
    return Place(folder.location, folder.filesystem, folder.root)
