"""Runs queries with the source "pulsar-frames" in a process of their own (tests/data/spark4_job.py)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

ROOT = Path(__file__).parents[2]
_JOB = ROOT / "tests" / "data" / "spark4_job.py"


def variables() -> dict[str, str]:
    """Return the environment of a process with which it, and its workers, find our packages."""
    return os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


class KilledError(Exception):
    """The process was killed, as its command demanded."""


@dataclass
class Jobs:
    """A process with a Spark session."""

    process: subprocess.Popen[str]
    log: Path

    def run(
        self,
        folder: Path,
        options: Mapping[str, str],
        *,
        dies_at: int = 0,
        trigger: str = "",
        seconds: float = 0,
        writes: bool = True,
    ) -> dict[str, Any]:
        """Run a query until everything is read, or with a trigger for some seconds; return its progress, or its error.

        writes: the rows of each batch, for rows(). Raises KilledError if it died at that effect.
        """
        command: dict[str, Any] = {
            "folder": str(folder),
            "options": dict(options),
            "dies_at": dies_at,
            "writes": writes,
        }
        command |= {"trigger": trigger, "seconds": seconds} if trigger else {}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("@"):
                answer: dict[str, Any] = json.loads(line[1:])
                return answer
        if dies_at and self.process.wait() == -signal.SIGKILL:
            raise KilledError
        raise AssertionError(self.log.read_text(errors="replace")[-4000:])


@contextmanager
def jobs(folder: Path) -> Iterator[Jobs]:
    """Start the process, in a group of its own, with its files below `folder`."""
    folder.mkdir(exist_ok=True)
    log = folder / "spark.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, str(_JOB)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=variables() | {"TMPDIR": str(folder)},
            start_new_session=True,
        )
    try:
        yield Jobs(process, log)
    finally:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the batches of a query in order, after a check that each run of a batch had the same rows."""
    runs: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.glob("*-*-*.arrow")):
        number, _attempt, digest = path.stem.split("-")
        runs.setdefault(number, {})[digest] = path
    assert all(len(digests) == 1 for digests in runs.values()), f"a batch has run with different rows: {runs}"
    found: list[dict[str, Any]] = []
    for (path,) in (tuple(digests.values()) for _number, digests in sorted(runs.items())):
        with pa.ipc.open_file(path) as file:
            found += file.read_all().to_pylist()
    return found
