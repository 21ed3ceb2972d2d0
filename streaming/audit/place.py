"""Where an audit writes: its report, and the stages it hands from one phase to the next.

On S3 the tasks write and read the rows by pyarrow, as they do with the receipts. There is no renaming of folders there:
a folder of rows counts from the moment at which its last file is there, which has their schema and no rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.state.commits import written
from streaming.state.filesystem import Folder, below, folder_of, shown
from streaming.state.spark_files import read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FINDINGS = "findings"
_LAST = "whole.parquet"


@dataclass(frozen=True, slots=True)
class Place(Folder):
    """A folder that Spark writes to as well: a table of Spark's is a directory in it."""

    @property
    def shown(self) -> str:
        """The place for people."""
        return shown(self.location)

    def save(self, rows: "DataFrame", name: str) -> None:
        """Compute the rows and write them to a directory of ours, in place of what was there."""
        if not self._is_on_s3:
            rows.write.mode("overwrite").parquet(self._spark_path(name))
            return
        from pyspark.sql.pandas.types import to_arrow_schema

        self.remove(name)
        schema = to_arrow_schema(rows.schema)
        written(rows, below(self.location, name), schema)
        content = pa.BufferOutputStream()
        pq.write_table(schema.empty_table(), content)
        self.write(f"{name}/{_LAST}", content.getvalue().to_pybytes())

    def load(self, spark: "SparkSession", name: str, kind: "StructType | None" = None) -> "DataFrame":
        """The rows that were saved. kind: their schema, where it is known. Raises UnavailableError."""
        if not self._is_on_s3:
            reader = spark.read if kind is None else spark.read.schema(kind)
            return reader.parquet(self._spark_path(name))
        folder = f"{self.root}/{name}"
        try:
            schema = pq.read_schema(f"{folder}/{_LAST}", filesystem=self.filesystem)
        except OSError as error:
            raise UnavailableError(f"{folder} can't be read: {error}") from error
        return read_files(spark, self.location, [f"{folder}/{file}" for file in self._files(name)], schema)

    def has(self, name: str) -> bool:
        """Whether there are saved rows. Raises UnavailableError."""
        files = self.names(name)
        return _LAST in files if self._is_on_s3 else bool(files)

    def remove(self, name: str) -> None:
        """Remove a directory of ours, if it is there. Raises UnavailableError."""
        path = f"{self.root}/{name}"
        try:
            if self.filesystem.get_file_info(path).type is pafs.FileType.Directory:
                if self._is_on_s3:
                    self.delete(f"{name}/{_LAST}")
                self.filesystem.delete_dir(path)
        except OSError as error:
            raise UnavailableError(f"{path} can't be removed: {error}") from error

    def replace(self, name: str, by: str) -> None:
        """Put a directory of ours in another's place. Raises UnavailableError."""
        self.remove(name)
        try:
            if self._is_on_s3:
                for file in self._files(by):
                    self.filesystem.copy_file(f"{self.root}/{by}/{file}", f"{self.root}/{name}/{file}")
            else:
                self.filesystem.move(f"{self.root}/{by}", f"{self.root}/{name}")
        except OSError as error:
            raise UnavailableError(f"{self.root}/{by} can't be moved: {error}") from error
        if self._is_on_s3:
            self.remove(by)

    @property
    def _is_on_s3(self) -> bool:
        return isinstance(self.filesystem, pafs.S3FileSystem)

    def _files(self, name: str) -> Sequence[str]:
        """The last one comes last."""
        return sorted(self.names(name), key=lambda file: file == _LAST)

    def _spark_path(self, name: str) -> str:
        """As Spark takes it: without a scheme Spark would take the cluster's default filesystem."""
        return f"{self.location}/{name}" if "://" in self.location else f"file://{self.root}/{name}"


def place_of(settings: Settings, out: Path | str | None) -> Place:
    """--out, or `audit` in the state directory. Raises UnavailableError."""
    folder = folder_of(str(out) if out else below(settings.state_dir, "audit"))
    return Place(folder.location, folder.filesystem, folder.root)
