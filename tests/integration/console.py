"""Runs many commands in one child process, so that Python, its modules and the JVM start only once.

The process serves all consoles of a test process, one command at a time. Its JVM has the options of the first
configuration. A test that kills a command, or changes its environment, starts a process for it instead.
"""

import contextlib
import io
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Before any command: several load pyarrow without numpy, which `run` and `check` need in the same process.
import pyarrow.dataset  # noqa: F401

from streaming.__main__ import run_command
from tests import json_outputs, shared_classes

_SECONDS = 300


@dataclass(frozen=True)
class Console:
    """Runs commands of one deployment, one at a time."""

    config: str

    def run(self, *arguments: str, code: int | tuple[int, ...] = 0, seconds: float = _SECONDS) -> str:
        """Run a command; return its output on both streams. Fail unless the exit code fits `code`."""
        exit_code, text = self.start(*arguments).result(seconds)
        assert exit_code in (code if isinstance(code, tuple) else (code,)), text[-4000:]
        return text

    def start(self, *arguments: str) -> "Future[tuple[int, str]]":
        """Start a command; the result is its exit code and its output on both streams."""
        return _process().submit(_call, [*arguments, "--config", self.config])

    def json(self, *arguments: str, code: int | tuple[int, ...] = 0) -> list[dict[str, Any]]:
        """Return the JSON lines that the command printed."""
        text = self.run(*arguments, "--json", code=code)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@contextlib.contextmanager
def process() -> Iterator[None]:
    """End the process of all consoles when the block ends, if a command started it."""
    try:
        yield
    finally:
        if _process.cache_info().currsize:
            _process().shutdown()
            _process.cache_clear()


@cache
def _process() -> ProcessPoolExecutor:
    # another name of this Python, which Spark keeps: the program that the service would create for its first command
    # goes away with that command's deployment
    python = str(Path(sys.executable).with_name("python3"))
    variables = {shared_classes.CLASS_PATH: shared_classes.class_path(), "PYSPARK_PYTHON": python}
    spawning = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawning, initializer=_set_environment, initargs=(variables,))


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.update(variables)  # a function, because os.environ can't be pickled
    json_outputs.watch()


def _call(arguments: list[str]) -> tuple[int, str]:
    sys.argv = ["ledger-reaper", *arguments]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            run_command()
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()
