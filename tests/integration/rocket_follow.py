"""Runs `ledger-reaper rocketmq follow` beside a real broker, for tests that cause faults around it."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from streaming.sandbox.rocketmq.server import RocketMQ

SECONDS = 300.0


class Following:
    """A run of the command; as a context manager it kills the command at the end.

    Args:
        server: whose store is followed.
        words: further arguments.
        dying: the effect (rocket_dying.py) at which the command kills itself.
    """

    def __init__(self, server: RocketMQ, *words: str, dying: str = "") -> None:
        program = ["tests.integration.rocket_dying", dying] if dying else ["streaming"]
        base = [sys.executable, "-m", *program, "rocketmq", "follow", "--store", str(server.store), "--json"]
        self.process = subprocess.Popen(
            [*base, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.lags: list[dict[str, Any]] = []
        self.output: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._take), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.output.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def end(self) -> int:
        """The end of the complete log in the last report."""
        return int(self.lags[-1]["end"]) if self.lags else -1

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition; fail if this takes too long or the command ends."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, (self.lags[-3:], self.output[-9:])
            assert self.process.poll() is None or holds(), (self.process.returncode, self.output[-9:])
            time.sleep(0.1)

    def until_printed(self, text: str) -> None:
        """Wait until the command has printed a text."""
        self.until(lambda: any(text in line for line in self.output))

    def until_caught_up(self) -> None:
        """Wait until everything is indexed that was complete at the second report from now on.

        The command may never report an empty backlog: a broker with open transactions writes continuously.
        """
        seen = len(self.lags)
        self.until(lambda: len(self.lags) > seen + 1 and self.lags[-1]["indexed"] >= self.lags[seen + 1]["end"])

    def wait(self) -> int:
        """Wait for the command's end, and return its exit code."""
        code = self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        return code

    def _take(self, line: str) -> None:
        self.lags.append(json.loads(line))

    def _read(self, lines: Sequence[str], take: Callable[[str], None]) -> None:
        for line in lines:
            take(line)
