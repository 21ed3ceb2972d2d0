"""Shows the progress of long steps: on a terminal with a spinner, time and bytes; otherwise as plain lines."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from streaming.terminal import Terminal

MB = 1_000_000


class Steps:
    """Shows steps on stderr, one at a time. A step ends when the next step starts, or at the end."""

    def __init__(self, console: Terminal) -> None:
        self._console = console
        self._live = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[amount]}", style="dim"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._text = ""

    def say(self, text: str) -> None:
        """Start a step of unknown length."""
        self.advance(text, 0, 0)

    def advance(self, text: str, done: int, total: int) -> None:
        """Start a step, or update the number of its bytes that are done."""
        if text != self._text:
            self.finish()
            self._text = text
            self._task = self._live.add_task(text, total=total or None, amount="")
            if not self._console.is_terminal:
                self._console.print(text)
        if self._task is not None and total:
            self._live.update(self._task, completed=done, amount=f"{done / MB:.0f} of {total / MB:.0f} MB")

    def finish(self) -> None:
        """End the current step."""
        if self._task is not None:
            self._live.update(self._task, total=1, completed=1)
            self._live.stop_task(self._task)
        self._task, self._text = None, ""

    def start(self) -> None:
        """Start the display."""
        self._live.start()

    def stop(self) -> None:
        """Stop the display; its lines stay on the screen."""
        self._live.stop()


@contextmanager
def steps() -> Iterator[Steps]:
    """Show steps until the with block ends. The last step is ticked off only if the block raises no error."""
    shown = Steps(Terminal(stderr=True))
    shown.start()
    try:
        yield shown
        shown.finish()
    finally:
        shown.stop()
