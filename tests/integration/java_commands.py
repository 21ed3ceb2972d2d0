"""Runs a JVM that reads commands, each a line of JSON, and answers each with @ and a line of JSON."""

import json
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streaming.spark.ivy import java

_JAVA = Path(__file__).parent.parent / "data" / "java"
_MEMORY = "-Xmx256m"
_LOG_LINES = 30


class JavaError(Exception):
    """The Java client refused the command; the message is its own."""


class JavaCommands:
    """A program of tests/data/java, compiled at its start; a context manager for one thread.

    Args:
        source: the name of the program's file.
        class_path: of the JVM.
        arguments: of the program.
        options: of the JVM.
    """

    def __init__(self, source: str, class_path: str, arguments: Sequence[str], options: Sequence[str] = ()) -> None:
        start = [java(), _MEMORY, "-XX:TieredStopAtLevel=1", *options, "-cp", class_path]
        self._command = [*start, str(_JAVA / source), *arguments]
        self._log: deque[str] = deque(maxlen=_LOG_LINES)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        threading.Thread(target=self._keep_log, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()  # an orderly end would abort transactions that must stay open
        self._process.wait()

    def ask(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a command.

        Raises:
            JavaError: the command failed, or the JVM ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line.startswith("@"):
            raise JavaError("the JVM ended:\n" + "".join(self._log))
        answer: Mapping[str, Any] = json.loads(line[1:])
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer

    def _keep_log(self) -> None:
        assert self._process.stderr is not None
        self._log.extend(self._process.stderr)
