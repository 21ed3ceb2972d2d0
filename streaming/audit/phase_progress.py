"""Shows the progress of an audit: how far each phase is, and at its end its duration and number of rows."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
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

    def __init__(self, console: Terminal, stop: threading.Event) -> None:
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
        """Show what runs inside the block as one phase."""
        task = self._shown.add_task(name, total=None, rate="")
        phase = PhaseResult(lambda done, total: self._shown.update(task, completed=done, total=total))
        started_s = time.monotonic()
        yield phase
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


class PhaseResult:
    """The number of rows that a phase has processed; the caller sets it in the phase's block."""

    def __init__(self, show: Callable[[int, int], None] = lambda _done, _total: None) -> None:
        self.rows: int | None = None
        self.unit = "rows"
        self._show = show
        self._done = 0

    def taken(self, rows: int, of: int) -> None:
        """Add rows that a process has taken to the progress shown; of: the number of all rows."""
        self._done += rows
        self._show(min(self._done, of), of + 1)

    def processed(self, rows: int, unit: str) -> None:
        """Set the number of rows that the phase has processed, and their unit."""
        self.rows, self.unit = rows, unit

    def amount_text(self, seconds: float) -> str:
        """Return the amount and the rate as text."""
        if self.rows is None:
            return ""
        amount = f"{self.rows:,} {self.unit}"
        # with few rows, the rate only shows how long a phase takes to start
        return amount if self.rows < _RATE_FROM_ROWS else f"{amount}, {self.rows / max(seconds, 0.001):,.0f}/s"
