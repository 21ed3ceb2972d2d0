"""The folder that an audit writes to: its report, and the rows that a phase passes to the next.

On S3, tasks write and read rows with pyarrow, as they do receipts.
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
from streaming.state.delta.commits import written
from streaming.state.delta.spark_files import read_files
from streaming.state.filesystem import Folder, below, folder_of, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FINDINGS = "findings"
_LAST = "whole.parquet"


@dataclass(frozen=True, slots=True)
class Output(Folder):
    """A folder that Spark writes to as well: a table of Spark is a directory in it."""

    @property
    def shown(self) -> str:
        """The folder's name for operators."""
        return shown(self.location)

    def save(self, rows: "DataFrame", name: str) -> None:
        """Compute the rows and write them to a directory, which replaces its contents."""
        if not self._is_on_s3:
            rows.write.mode("overwrite").parquet(self._spark_path(name))
            return
        from pyspark.sql.pandas.types import to_arrow_schema

        self.remove(name)
        schema = to_arrow_schema(rows.schema)
        written(rows, below(self.location, name), schema)
        content = pa.BufferOutputStream()
        pq.write_table(schema.empty_table(), content)
        # last: a folder can't be renamed on S3, so its rows count from the moment at which this file exists
        self.write(f"{name}/{_LAST}", content.getvalue().to_pybytes())

    def load(self, spark: "SparkSession", name: str, schema: "StructType | None" = None) -> "DataFrame":
        """Return the saved rows; their schema is read from the files if it is not given. Raises UnavailableError."""
        if not self._is_on_s3:
            reader = spark.read if schema is None else spark.read.schema(schema)
            return reader.parquet(self._spark_path(name))
        folder = f"{self.root}/{name}"
        try:
            arrow_schema = pq.read_schema(f"{folder}/{_LAST}", filesystem=self.filesystem)
        except OSError as error:
            raise UnavailableError(f"{folder} can't be read: {error}") from error
        return read_files(spark, self.location, [f"{folder}/{file}" for file in self._files(name)], arrow_schema)

    def has(self, name: str) -> bool:
        """Whether there are saved rows. Raises UnavailableError."""
        files = self.names(name)
        return _LAST in files if self._is_on_s3 else bool(files)

    def remove(self, name: str) -> None:
        """Remove a directory, if it exists. Raises UnavailableError."""
        path = f"{self.root}/{name}"
        try:
            if self.filesystem.get_file_info(path).type is pafs.FileType.Directory:
                if self._is_on_s3:
                    # first: without it the other files are no rows, even if this is interrupted
                    self.delete(f"{name}/{_LAST}")
                self.filesystem.delete_dir(path)
        except OSError as error:
            raise UnavailableError(f"{path} can't be removed: {error}") from error

    def replace(self, name: str, by: str) -> None:
        """Replace a directory by another one. Raises UnavailableError."""
        self.remove(name)
        try:
            if self._is_on_s3:
                # the file that completes the rows is copied last
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
        """Return the names of the files; the file that completes the rows is last."""
        return sorted(self.names(name), key=lambda file: file == _LAST)

    def _spark_path(self, name: str) -> str:
        """Return the path for Spark."""
        # without a scheme, Spark would use the cluster's default filesystem
        return f"{self.location}/{name}" if "://" in self.location else f"file://{self.root}/{name}"


def output_of(settings: Settings, out: Path | str | None) -> Output:
    """Return the folder of --out, or `audit` in the state directory. Raises UnavailableError."""
    folder = folder_of(str(out) if out else below(settings.state_dir, "audit"))
    return Output(folder.location, folder.filesystem, folder.root)
