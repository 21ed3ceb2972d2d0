"""What all phases of one audit share, and how a phase hands its rows to the next one.

Each phase writes its rows as Parquet and later phases read the files. Without that, Spark would compute the rows again
for each use: it would read ZooKeeper again, and later than the order of the phases allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit import columns as a
from streaming.audit import join
from streaming.audit.certificate import MAX_PROBLEMS, Completeness
from streaming.audit.options import AuditOptions
from streaming.audit.place import Place
from streaming.audit.progress import Phases
from streaming.audit.walk.listing import Problem
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore
from streaming.queries.transforms import tasks_for
from udfs import columns as c
from udfs.paths import Layout


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows that a phase wrote; each use of `rows` reads the files."""

    rows: DataFrame
    place: Place
    folder: str

    def count(self, column: str) -> int:
        """Count the rows with a value in the column, from the files' footers alone. Raises UnavailableError."""
        try:
            files = ds.dataset(f"{self.place.root}/{self.folder}", filesystem=self.place.filesystem, format="parquet")
            return sum(_values(file, column) for file in files.get_fragments())
        except OSError as error:
            raise UnavailableError(f"{self.place.root}/{self.folder} can't be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Stages:
    """The folder in which one audit keeps the rows of its phases while it runs."""

    spark: SparkSession
    place: Place
    folder: str

    def keep(self, name: str, rows: DataFrame) -> Kept:
        """Compute the rows and write them."""
        folder = f"{self.folder}/{name}"
        self.place.save(rows, folder)
        return Kept(self.place.load(self.spark, folder, rows.schema), self.place, folder)


@dataclass(frozen=True, slots=True)
class PhaseTools:
    """What every phase of one audit works with. completeness is the one part that phases change."""

    settings: Settings
    options: AuditOptions
    store: MetadataStore
    layout: Layout
    phases: Phases
    stages: Stages
    completeness: Completeness

    @property
    def spark(self) -> SparkSession:
        """The session that all phases run on."""
        return self.stages.spark

    @property
    def reads_per_second(self) -> float:
        """One task's share of the operator's --reads-per-second."""
        return self.options.reads_per_second / self.spark.sparkContext.defaultParallelism

    @property
    def most_tasks(self) -> int:
        """How many tasks a phase is cut into at most: several for each core, so that a slow one holds up little."""
        return max(self.options.tasks, 4 * self.spark.sparkContext.defaultParallelism)

    def tasks_of(self, rows: int) -> int:
        """How many tasks so many rows are worth."""
        return tasks_for(rows, self.most_tasks)

    def places(self, places: Sequence[tuple[str, str | None]]) -> DataFrame:
        """Rows of columns.PLACE, spread over the tasks."""
        rows = self.spark.createDataFrame(list(places), from_arrow_schema(a.PLACE))
        return rows.repartition(max(1, min(len(places), self.most_tasks)))

    def no_suspects(self) -> DataFrame:
        """An empty table of columns.SUSPECT."""
        return self.spark.createDataFrame([], from_arrow_schema(a.SUSPECT))

    def note(self, found: Sequence[Problem], kept: Kept) -> None:
        """Take down what a phase could not read: what the driver met, and what the tasks wrote beside their rows."""
        self.completeness.problems += found
        if kept.count(a.PATH):
            # one problem too many is enough to believe nothing at all, so the driver collects no more than that
            for row in join.problems(kept.rows).limit(MAX_PROBLEMS + 1).collect():
                self.completeness.problems.append((row[a.PATH], row[c.DETAIL]))


def _values(file: ds.ParquetFileFragment, column: str) -> int:
    metadata = file.metadata
    number = metadata.schema.names.index(column)
    groups = (metadata.row_group(each) for each in range(metadata.num_row_groups))
    return sum(group.num_rows - group.column(number).statistics.null_count for group in groups if group.num_rows)
