"""The demo's output, and how it runs `ledger-reaper`, as an operator would."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console

_COMMAND_SECONDS = 300

console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


@dataclass(slots=True)
class Claims:
    """Prints claims, and counts those that do not hold."""

    failed: int = 0

    def claim(self, text: str, *, holds: bool, seen: str = "") -> None:
        """Print a claim, whether it holds, and the observation."""
        mark = "[green]✔[/]" if holds else "[bold red]✘[/]"
        console.print(f"  {mark} {text}" + (f"  [dim]{seen}[/]" if seen else ""))
        self.failed += not holds


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Print a step, and how long it took."""
    started_s = time.monotonic()
    with console.status(what):
        yield
    console.print(f"[cyan]•[/] {what} [dim]{time.monotonic() - started_s:.0f} s[/]")


def reaper(*arguments: str, stdin: bytes = b"") -> None:
    """Run `ledger-reaper <arguments>` and print its output, dimmed. Raises SystemExit if it fails."""
    command = [sys.executable, "-m", "streaming", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    watchdog = threading.Timer(_COMMAND_SECONDS, process.kill)
    watchdog.start()
    try:
        _feed(process, stdin)
        for line in process.stdout or ():
            console.print(f"    {line.decode(errors='replace').rstrip()}", style="dim", markup=False, soft_wrap=True)
        if process.wait() != 0:
            raise SystemExit(f"ledger-reaper {arguments[0]} ended with {process.returncode}")
    finally:
        watchdog.cancel()
        process.kill()


def short(topic: str) -> str:
    """Return a topic's name without its tenant and namespace."""
    return topic.rpartition("/")[2]


def _feed(process: subprocess.Popen[bytes], stdin: bytes) -> None:
    if process.stdin is not None:
        process.stdin.write(stdin)
        process.stdin.close()
