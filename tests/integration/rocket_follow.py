"""A `ledger-reaper rocketmq follow` beside a real broker, for tests that break things around it."""

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
    """One run of the command. A context manager, which ends it by kill -9 if it still runs.

    dying: the effect (rocket_dying.py) at which it dies by itself.
    """

    def __init__(self, server: RocketMQ, *words: str, dying: str = "") -> None:
        program = ["tests.integration.rocket_dying", dying] if dying else ["streaming"]
        base = [sys.executable, "-m", *program, "rocketmq", "follow", "--store", str(server.store), "--json"]
        self.process = subprocess.Popen(
            [*base, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.lags: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._take), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.said.append), daemon=True),
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
        """How far the log was whole when it last told."""
        return int(self.lags[-1]["end"]) if self.lags else -1

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait. Fails if it takes too long, or the command ends before."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, (self.lags[-3:], self.said[-9:])
            assert self.process.poll() is None or holds(), (self.process.returncode, self.said[-9:])
            time.sleep(0.1)

    def until_told(self, text: str) -> None:
        """Wait until it has said this."""
        self.until(lambda: any(text in line for line in self.said))

    def until_caught_up(self) -> None:
        """Wait until it has all that was whole when it told for the second time from now on.

        That nothing is behind it may never say: a broker with open transactions writes something all the time.
        """
        seen = len(self.lags)
        self.until(lambda: len(self.lags) > seen + 1 and self.lags[-1]["indexed"] >= self.lags[seen + 1]["end"])

    def wait(self) -> int:
        """Wait until it ends, and return its exit code."""
        code = self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        return code

    def _take(self, line: str) -> None:
        self.lags.append(json.loads(line))

    def _read(self, lines: Sequence[str], take: Callable[[str], None]) -> None:
        for line in lines:
            take(line)
