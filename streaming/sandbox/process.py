"""Processes that outlive the command that started them, and that later commands find again.

A pid may belong to another process by now, and start times move with the clock. So each process has a random token in
its environment, and we send signals only to a process with that token.
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
NOT_YET = 0  # stands for the pid while a process is being started


@dataclass(frozen=True, slots=True)
class Record:
    """What a record file says of a process. The token identifies it; started_at is for people."""

    pid: int
    token: str
    started_at: str
    command: str


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path, record: Path, cwd: Path) -> Record:
    """Start a process in a session of its own, its output appended to `log`, and write its record."""
    token = secrets.token_hex(16)
    started_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    # The token is written first: if we are killed before the pid is known, the process can still be found.
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
    # We drop the handle on purpose: later commands find the process by its record alone.
    process.returncode = 0
    made = Record(process.pid, token, started_at, command[0])
    _write(record, made)
    return made


def find(record: Path) -> psutil.Process | None:
    """The recorded process if it runs; None if it has ended, has no record, or its pid belongs to another process."""
    try:
        known = Record(**json.loads(record.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    is_known = known.pid != NOT_YET
    for pid in [known.pid] if is_known else psutil.pids():
        try:
            process = psutil.Process(pid)
            if _environment(process, _EXEC_SECONDS if is_known else 0.0).get(TOKEN_VARIABLE) == known.token:
                return process
        except psutil.Error:
            continue
    _reap(known)
    return None


def _environment(process: psutil.Process, patience_seconds: float) -> Mapping[str, str]:
    """Read a process's environment, which is empty for a moment while the process begins another program (exec)."""
    deadline = time.monotonic() + patience_seconds
    while not (found := process.environ()) and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    return found


def send(record: Path, number: signal.Signals) -> bool:
    """Send a signal to the process group of the recorded process; False if it does not run."""
    process = find(record)
    if process is None:
        return False
    try:
        # The process leads its session, so its pid is the group's id: its children get the signal too.
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def stop(record: Path, *, grace_seconds: float) -> bool:
    """End the recorded process by SIGTERM, later by SIGKILL; return when it is gone. False if it did not run.

    A frozen process (SIGSTOP) is resumed, or it could not handle SIGTERM.
    """
    process = find(record)
    if process is not None:
        send(record, signal.SIGTERM)
        send(record, signal.SIGCONT)
        if not _ended(process, grace_seconds):
            kill(record)
    record.unlink(missing_ok=True)
    return process is not None


def kill(record: Path) -> bool:
    """End the recorded process by SIGKILL, as a crash would; return when it is gone. False if it did not run."""
    process = find(record)
    if process is None:
        return False
    send(record, signal.SIGKILL)
    return _ended(process, KILLED_SECONDS)


def _ended(process: psutil.Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _holds_anything(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _holds_anything(process: psutil.Process) -> bool:
    """Whether the process may still hold a port. A zombie whose parent has not collected its exit status does not.

    An unreadable environment is no proof that the sockets are closed, and neither is the end of the first thread.
    """
    try:
        if not process.is_running():
            return False
        if process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1:
            return True
        os.waitpid(process.pid, os.WNOHANG)
    except (psutil.Error, ChildProcessError):
        return False
    return False


def _reap(known: Record) -> None:
    """Collect the exit status if the process is our child: it would stay a zombie otherwise."""
    if known.pid != NOT_YET:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(known.pid, os.WNOHANG)


def _write(record: Path, content: Record) -> None:
    partial = record.with_suffix(".part")
    partial.write_text(json.dumps(asdict(content)), encoding="utf-8")
    partial.replace(record)
