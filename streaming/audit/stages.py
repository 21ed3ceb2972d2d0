"""The tools that all phases of an audit share, and the stages through which a phase passes its rows to the next."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import MAX_PROBLEMS, Completeness
from streaming.audit.output import Output
from streaming.audit.phase_progress import Phases
from streaming.audit.walk.listing import Problem
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore
from streaming.queries.streams import tasks_for
from udfs import columns as c
from udfs.paths import Layout


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows that a phase wrote; each use of `rows` reads the files."""

    rows: DataFrame
    output: Output
    folder: str

    def count(self, column: str) -> int:
        """Count the rows with a value in the column, from the files' footers alone. Raises UnavailableError."""
        try:
            files = ds.dataset(f"{self.output.root}/{self.folder}", filesystem=self.output.filesystem, format="parquet")
            return sum(_values(file, column) for file in files.get_fragments())
        except OSError as error:
            raise UnavailableError(f"{self.output.root}/{self.folder} can't be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Stages:
    """The folder with the rows of an audit's phases while it runs."""

    spark: SparkSession
    output: Output
    folder: str

    def keep(self, name: str, rows: DataFrame) -> Kept:
        """Compute the rows and write them."""
        folder = f"{self.folder}/{name}"
        # Spark would otherwise compute the rows again for each use: it would read ZooKeeper again, and later than the
        # order of the phases allows
        self.output.save(rows, folder)
        return Kept(self.output.load(self.spark, folder, rows.schema), self.output, folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTools:
    """The tools of every phase of an audit."""

    settings: Settings
    options: AuditOptions
    store: MetadataStore
    layout: Layout
    phases: Phases
    stages: Stages
    completeness: Completeness  # the only part that phases change

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
        """The largest number of tasks in a phase: several for each core, so that a slow task delays little."""
        return max(self.options.tasks, 4 * self.spark.sparkContext.defaultParallelism)

    def tasks_of(self, rows: int) -> int:
        """How many tasks so many rows are worth."""
        return tasks_for(rows, self.most_tasks)

    def locations(self, locations: Sequence[tuple[str, str | None]]) -> DataFrame:
        """Rows of columns.LOCATION, spread over the tasks."""
        rows = self.spark.createDataFrame(list(locations), from_arrow_schema(a.LOCATION))
        return rows.repartition(max(1, min(len(locations), self.most_tasks)))

    def no_suspects(self) -> DataFrame:
        """An empty table of columns.SUSPECT."""
        return self.spark.createDataFrame([], from_arrow_schema(a.SUSPECT))

    def note(self, found: Sequence[Problem], kept: Kept) -> None:
        """Record the problems of a phase: those of the driver, and those that the tasks wrote next to their rows."""
        self.completeness.problems += found
        if kept.count(a.PATH):
            # above MAX_PROBLEMS nothing counts as read, so the driver collects no more than that
            for row in reference_join.problems(kept.rows).limit(MAX_PROBLEMS + 1).collect():
                self.completeness.problems.append((row[a.PATH], row[c.DETAIL]))


def _values(file: ds.ParquetFileFragment, column: str) -> int:
    metadata = file.metadata
    number = metadata.schema.names.index(column)
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    return sum(group.num_rows - group.column(number).statistics.null_count for group in groups if group.num_rows)
