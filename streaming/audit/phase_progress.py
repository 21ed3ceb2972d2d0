"""Shows the progress of an audit: each phase with Spark's count of finished tasks, its duration and number of rows."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from streaming.audit.stopping import StoppedError
from streaming.terminal import Terminal

_TICK_SECONDS = 0.4
_RATE_FROM_ROWS = 1_000


class Phases:
    """Shows each phase on stderr: as a progress bar on a terminal, otherwise as a line."""

    def __init__(self, spark: SparkSession, console: Terminal, stop: threading.Event) -> None:
        self._spark = spark
        self._stop = stop
        self._console = console
        self._shown = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[rate]}", style="dim"),
            TimeElapsedColumn(),
            TextColumn("left", style="dim"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._started_s = time.monotonic()

    def __enter__(self) -> "Phases":
        self._shown.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.stop()

    @contextmanager
    def phase(self, name: str) -> Iterator["PhaseResult"]:
        """Show the Spark jobs that run inside the block as one phase."""
        task = self._shown.add_task(name, total=None, rate="")
        phase = PhaseResult()
        group = f"audit-{name}"
        self._spark.sparkContext.setJobGroup(group, name)
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(task, group, done), daemon=True)
        ticker.start()
        started_s = time.monotonic()
        try:
            yield phase
        finally:
            done.set()
            ticker.join()
        seconds = time.monotonic() - started_s
        text = phase.amount_text(seconds)
        self._shown.update(task, total=1, completed=1, rate=text)
        if not self._console.is_terminal:
            self._console.print(f"{name}: {text} in {seconds:.1f} s" if text else f"{name}: {seconds:.1f} s")

    def wait(self, name: str, seconds: float) -> None:
        """Wait, and show the progress of the wait. Raises StoppedError once the stop event is set."""
        if seconds <= 0:
            return
        task = self._shown.add_task(name, total=seconds, rate="")
        if not self._console.is_terminal:
            self._console.print(f"{name}: {seconds:.0f} s")
        started_s = time.monotonic()
        while (passed := time.monotonic() - started_s) < seconds:
            self._shown.update(task, completed=passed)
            if self._stop.wait(min(_TICK_SECONDS, seconds - passed)):
                raise StoppedError
        self._shown.update(task, completed=seconds)

    def _tick(self, task: TaskID, group: str, done: threading.Event) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        while not done.wait(_TICK_SECONDS):
            total = finished = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in (tracker.getStageInfo(stage_id) for stage_id in (info.stageIds if info else ())):
                    total += stage.numTasks if stage else 0
                    finished += stage.numCompletedTasks if stage else 0
            if total:
                self._shown.update(task, total=total, completed=min(finished, total - 1))


class PhaseResult:
    """The number of rows that a phase has processed; the caller sets it in the phase's block."""

    def __init__(self) -> None:
        self.rows: int | None = None
        self.unit = "rows"

    def processed(self, rows: int, unit: str) -> None:
        """Set the number of rows that the phase has processed, and their unit."""
        self.rows, self.unit = rows, unit

    def amount_text(self, seconds: float) -> str:
        """Return the amount and the rate as text."""
        if self.rows is None:
            return ""
        amount = f"{self.rows:,} {self.unit}"
        # with few rows, the rate only shows how long Spark takes to start a job
        return amount if self.rows < _RATE_FROM_ROWS else f"{amount}, {self.rows / max(seconds, 0.001):,.0f}/s"
