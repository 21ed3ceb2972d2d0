"""Runs many commands in one child process, so that Spark starts only once."""

import contextlib
import io
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from streaming.__main__ import run_command
from tests import shared_classes

_SECONDS = 300


@dataclass(frozen=True)
class Console:
    """Runs commands of one deployment, one at a time."""

    pool: ProcessPoolExecutor
    config: str

    def run(self, *arguments: str, code: int | tuple[int, ...] = 0) -> str:
        """Run a command; return its output on both streams. Fail unless the exit code fits `code`."""
        exit_code, text = self.pool.submit(_call, [*arguments, "--config", self.config]).result(_SECONDS)
        assert exit_code in (code if isinstance(code, tuple) else (code,)), text[-4000:]
        return text

    def json(self, *arguments: str, code: int | tuple[int, ...] = 0) -> list[dict[str, Any]]:
        """Return the JSON lines that the command printed."""
        text = self.run(*arguments, "--json", code=code)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@contextlib.contextmanager
def console(config: str) -> Iterator[Console]:
    """Open a console for a configuration file."""
    classes = {shared_classes.CLASS_PATH: shared_classes.class_path()}
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawning, initializer=_set_environment, initargs=(classes,)) as pool:
        yield Console(pool, config)


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.update(variables)  # a function, because os.environ can't be pickled


def _call(arguments: list[str]) -> tuple[int, str]:
    sys.argv = ["ledger-reaper", *arguments]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            run_command()
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()
