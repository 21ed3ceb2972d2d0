"""Phases' results as Parquet: written once, then only read; Spark would compute them anew for each use else."""

from dataclasses import dataclass

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from streaming.audit.place import Place
from streaming.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Kept:
    """What a phase wrote. rows read it again."""

    rows: DataFrame
    place: Place
    folder: str

    def count(self, column: str) -> int:
        """How many rows have a value in the column, as the files' footers tell. Raises UnavailableError."""
        try:
            files = ds.dataset(f"{self.place.root}/{self.folder}", filesystem=self.place.filesystem, format="parquet")
            return sum(_values(file, column) for file in files.get_fragments())
        except OSError as error:
            raise UnavailableError(f"{self.place.root}/{self.folder} can't be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Stages:
    """Where the phases of one run hand their results on."""

    spark: SparkSession
    place: Place
    folder: str

    def keep(self, name: str, rows: DataFrame) -> Kept:
        """Run what rows stands for and write it down."""
        folder = f"{self.folder}/{name}"
        path = self.place.spark_path(folder)
        rows.write.mode("overwrite").parquet(path)
        return Kept(self.spark.read.schema(rows.schema).parquet(path), self.place, folder)


def _values(file: ds.ParquetFileFragment, column: str) -> int:
    metadata = file.metadata
    number = metadata.schema.names.index(column)
    groups = (metadata.row_group(each) for each in range(metadata.num_row_groups))
    return sum(group.num_rows - group.column(number).statistics.null_count for group in groups)
