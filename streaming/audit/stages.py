"""The tools that all phases of an audit share."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.audit import reference_join
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import MAX_PROBLEMS, Completeness
from streaming.audit.phase_progress import PhaseResult, Phases
from streaming.audit.tables import MEMORY, MEMORY_BESIDE_SERVICE, Rows, Tables, opened
from streaming.audit.walk.listing import Problem
from streaming.audit.workers import ALONE_SECONDS, Task, Workers, workers_for
from streaming.config.settings import Settings
from streaming.ports import MetadataStore
from udfs import columns as c
from udfs.paths import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The tables and processes of an audit. Once stop is set, it starts no further work, and raises StoppedError."""

    tables: Tables
    workers: Workers
    stop: threading.Event


@contextmanager
def engine_for(settings: Settings, stop: threading.Event, *, is_beside_service: bool = False) -> Iterator[Engine]:
    """Yield an engine; its tables and processes end with the block. Raises ConfigError, UnavailableError."""
    # in the service's process, Python is busy with the service's own work
    workers = workers_for(stop, alone_seconds=0.0 if is_beside_service else ALONE_SECONDS)
    memory = MEMORY_BESIDE_SERVICE if is_beside_service else MEMORY
    with opened(settings, stop, memory) as tables, closing(workers):
        yield Engine(tables=tables, workers=workers, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTools:
    """The tools of every phase of an audit."""

    settings: Settings
    options: AuditOptions
    store: MetadataStore
    layout: Layout
    phases: Phases
    engine: Engine
    completeness: Completeness  # the only part that phases change

    @property
    def tables(self) -> Tables:
        """The tables through which a phase passes its rows to the next."""
        return self.engine.tables

    def run(self, phase: PhaseResult, task: Task, rows: Rows, schema: pa.Schema, *, at_once: int) -> Rows:
        """Run a task over the rows, once, and return the table with its results.

        Args:
            phase: shows the progress.
            task: the task.
            rows: the task's rows: a table, or a query that returns them in a fixed order.
            schema: of the results.
            at_once: the largest number of rows that a process takes at once.
        """
        total = rows.count()

        def taken(number: int) -> None:
            phase.taken(number, total)

        # The results are stored in a table, so that the task runs only once: if it ran again at each use of its rows,
        # it would read ZooKeeper later than the order of the phases allows.
        results = self.engine.workers.run(task, rows.batches(at_once), taken)
        return self.tables.keep_batches(results, schema)

    def locations(self, locations: Sequence[tuple[str, str | None]]) -> Rows:
        """Return a table of audit_columns.LOCATION."""
        return self.tables.of([{a.PATH: path, c.DETAIL: detail} for path, detail in locations], a.LOCATION)

    def no_suspects(self) -> Rows:
        """Return an empty table of audit_columns.SUSPECT."""
        return self.tables.of([], a.SUSPECT)

    def note(self, found: Sequence[Problem], rows: Rows) -> None:
        """Record the problems of a phase: those in `found`, and those that the tasks wrote next to their rows."""
        self.completeness.problems += found
        # with more than MAX_PROBLEMS nothing counts as read, so one more than that is enough
        for row in reference_join.problems(rows).select(f"FROM rows LIMIT {MAX_PROBLEMS + 1}").fetched():
            self.completeness.problems.append((row[a.PATH], row[c.DETAIL]))
