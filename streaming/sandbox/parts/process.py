"""Starts processes that outlive the command, finds them again from later commands, and ends them.

Each process has a random token in its environment, and signals go only to a process with that token.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

TOKEN_VARIABLE = "LEDGER_REAPER_PROCESS_TOKEN"  # noqa: S105 (an identity, not a secret)
KILLED_SECONDS = 30.0
_EXEC_SECONDS = 5.0
NOT_YET = 0  # the pid in a record while the process is being started


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a record file."""

    pid: int
    token: str  # identifies the process
    started_at: str  # for people
    command: str


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path, record: Path, cwd: Path) -> Record:
    """Start a process in a new session, append its output to `log`, and write its record."""
    token = secrets.token_hex(16)
    started_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    # The token is written first: if this command is killed before it knows the pid, the process can still be found.
    _write(record, Record(NOT_YET, token, started_at, command[0]))
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**env, TOKEN_VARIABLE: token},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # The handle is dropped on purpose: later commands find the process only by its record.
    process.returncode = 0
    started = Record(process.pid, token, started_at, command[0])
    _write(record, started)
    return started


def find(record: Path) -> psutil.Process | None:
    """Return the recorded process; None if it has ended, has no record, or its pid belongs to another process."""
    try:
        recorded = Record(**json.loads(record.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    has_pid = recorded.pid != NOT_YET
    for pid in [recorded.pid] if has_pid else psutil.pids():
        try:
            process = psutil.Process(pid)
            # a pid may have been reused by another process, and start times change with the clock
            if _environment(process, _EXEC_SECONDS if has_pid else 0.0).get(TOKEN_VARIABLE) == recorded.token:
                return process
        except psutil.Error:
            continue
    _reap(recorded)
    return None


def _environment(process: psutil.Process, patience_seconds: float) -> Mapping[str, str]:
    """Read a process's environment, which is empty for a moment while the process starts another program (exec)."""
    deadline = time.monotonic() + patience_seconds
    while not (environment := process.environ()) and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    return environment


def send(record: Path, number: signal.Signals) -> bool:
    """Send a signal to the process group of the recorded process; return False if it does not run."""
    process = find(record)
    if process is None:
        return False
    try:
        # The process leads its session, so its pid is also the id of the group, which includes its children.
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def stop(record: Path, *, grace_seconds: float) -> bool:
    """End the recorded process by SIGTERM, later by SIGKILL; return when it is gone. False if it did not run."""
    process = find(record)
    if process is not None:
        send(record, signal.SIGTERM)
        # a frozen process (SIGSTOP) could not handle SIGTERM
        send(record, signal.SIGCONT)
        if not _ended(process, grace_seconds):
            kill(record)
    record.unlink(missing_ok=True)
    return process is not None


def kill(record: Path) -> bool:
    """Kill the recorded process with SIGKILL, like a crash, and wait for its end; return False if it did not run."""
    process = find(record)
    if process is None:
        return False
    send(record, signal.SIGKILL)
    return _ended(process, KILLED_SECONDS)


def _ended(process: psutil.Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _may_hold_a_port(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _may_hold_a_port(process: psutil.Process) -> bool:
    """Whether the process may still hold a port."""
    try:
        if not process.is_running():
            return False
        # a zombie holds none, but the end of the first thread does not prove that the sockets are closed
        if process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1:
            return True
        os.waitpid(process.pid, os.WNOHANG)
    except (psutil.Error, ChildProcessError):
        return False
    return False


def _reap(recorded: Record) -> None:
    """Collect the exit status if the process is a child of this one, which would otherwise stay a zombie."""
    if recorded.pid != NOT_YET:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(recorded.pid, os.WNOHANG)


def _write(record: Path, content: Record) -> None:
    partial = record.with_suffix(".part")
    partial.write_text(json.dumps(asdict(content)), encoding="utf-8")
    partial.replace(record)
