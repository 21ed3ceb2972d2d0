"""The folder that an audit writes to: its report, its findings, and the orphans of each publication.

Each set of rows is one file in a folder of its own. New rows replace the file in one step.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from streaming.config.settings import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.state.filesystem import Folder, below, folder_of, shown, translated

if TYPE_CHECKING:
    from streaming.audit.tables import Rows, Tables

FINDINGS = "findings"
_ROWS = "rows.parquet"
# Earlier versions of this program wrote rows with Spark, as several files. Such rows are complete if the folder has
# _SUCCESS (on a disk) or whole.parquet (on S3).
_SPARK, _SPARK_ON_S3 = "_SUCCESS", "whole.parquet"


@dataclass(frozen=True, slots=True)
class Output(Folder):
    """The folder."""

    @property
    def shown(self) -> str:
        """The folder's name for operators."""
        return shown(self.location)

    def save(self, name: str, rows: "Rows") -> None:
        """Compute the rows and write them; they replace older rows of this name. Raises UnavailableError."""
        with (
            rows.reader() as reader,
            self.new_file(f"{name}/{_ROWS}") as path,
            self.filesystem.open_output_stream(path) as out,
            pq.ParquetWriter(out, reader.schema, compression="zstd") as writer,
        ):
            for batch in reader:
                writer.write_batch(batch)
        # last: rows that an earlier version wrote count until the new file exists, and from then on only the new file
        for file in self.names(name):
            if file != _ROWS:
                self.delete(f"{name}/{file}")

    def load(self, tables: "Tables", name: str) -> "Rows":
        """Return a table of the saved rows. Raises UnavailableError, and ConfigError if they are not complete."""
        paths = [f"{self.root}/{name}/{file}" for file in self._files(name)]
        if not paths:
            raise ConfigError(f"{self.shown}/{name} has no complete rows: run the audit again without --last")
        with translated(paths[0], "read"):
            schema = pq.read_schema(paths[0], filesystem=self.filesystem)
        return tables.keep_batches(self._batches(paths), schema)

    def has(self, name: str) -> bool:
        """Whether there are complete rows. Raises UnavailableError."""
        return bool(self._files(name))

    def remove(self, name: str) -> None:
        """Remove a folder of rows, if it exists. Raises UnavailableError."""
        path = f"{self.root}/{name}"
        try:
            if self.filesystem.get_file_info(path).type is pafs.FileType.Directory:
                for complete in (_ROWS, _SPARK, _SPARK_ON_S3):
                    # first: without these files, the others do not count as rows, even if the removal is interrupted
                    self.delete(f"{name}/{complete}")
                self.filesystem.delete_dir(path)
        except OSError as error:
            raise UnavailableError(f"{path} can't be removed: {error}") from error

    def _files(self, name: str) -> list[str]:
        """Return the names of the files with the rows; none if the rows are not complete."""
        names = self.names(name)
        if _ROWS in names:
            return [_ROWS]
        if _SPARK in names or _SPARK_ON_S3 in names:
            return [file for file in names if file.endswith(".parquet")]
        return []

    def _batches(self, paths: list[str]) -> Iterator[pa.RecordBatch]:
        for path in paths:
            with translated(path, "read"), contextlib.closing(pq.ParquetFile(path, filesystem=self.filesystem)) as file:
                yield from file.iter_batches()


def output_of(settings: Settings, out: Path | str | None, name: str = "audit") -> Output:
    """Return the folder of --out, or the folder of this name in the state directory. Raises UnavailableError."""
    folder = folder_of(str(out) if out else below(settings.state_dir, name))
    return Output(folder.location, folder.filesystem, folder.root)
