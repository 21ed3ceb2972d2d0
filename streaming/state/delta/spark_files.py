"""Reads Parquet files into Spark. Spark itself reads files on a disk; files on an object store are read by pyarrow."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from streaming.state.filesystem import open_filesystem, translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GLOB = re.compile(r"[]{}*?\\[]")  # what Spark takes for a pattern in a path
_ROWS = 5_000  # held by a task at once, in addition to the rows read ahead


def read_files(spark: "SparkSession", location: str, paths: Sequence[str], schema: pa.Schema) -> "DataFrame":
    """Rows of the Parquet files at these paths (pyarrow's) of one store. Columns that a file does not have are null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    kind = from_arrow_schema(schema)
    if not paths:
        return spark.createDataFrame([], kind)
    if "://" not in location:
        return spark.read.schema(kind).parquet(*(_GLOB.sub(r"\\\g<0>", f"file://{path}") for path in paths))
    # by pyarrow: Spark needs no client for the store, and the same options of the location serve for reading and
    # writing
    return spark.createDataFrame([(path,) for path in paths], "path string").mapInArrow(_Reader(location, schema), kind)


@dataclass(frozen=True, slots=True)
class _Reader:
    """The work of a task: reads the files at the paths it gets."""

    location: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filesystem, _root = open_filesystem(self.location)
        kind = ds.ParquetFileFormat()
        for path in (path for batch in batches for path in batch.column(0).to_pylist()):
            fragment = kind.make_fragment(path, filesystem)
            with translated(path, "read"):
                for batch in fragment.to_batches(schema=self.schema, batch_size=_ROWS, batch_readahead=1):
                    yield batch.cast(self.schema)
