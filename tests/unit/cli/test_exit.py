"""A command ends with its exit code, whatever native libraries do when Python shuts down its interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

# A native library that ends the process in C's exit; a Python thread that is late; an exit handler.
RUN = """
import atexit, ctypes, sys, threading, time
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.abort, None, None)
from streaming.__main__ import main
atexit.register(lambda: print("tidied"))
threading.Thread(target=lambda: (time.sleep(0.3), print("late"))).start()
sys.argv = ["ledger-reaper", *sys.argv[1:]]
main()
"""
FAILING = """
from streaming.cli import main as commands

@commands.app.command("fail")
def fail() -> None:
    raise ValueError("a fault \\x1b[2J")
"""


STUCK = """
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from streaming.cli import main as commands
from streaming.errors import StoppedBySignalError

@commands.app.command("stuck")
def stuck() -> None:
    ThreadPoolExecutor(1).submit(Event().wait)
    raise StoppedBySignalError(signal.SIGTERM, "nothing was changed")
"""
STOPPED = 'raise StoppedBySignalError(signal.SIGTERM, "nothing was changed")'


def _ended(*arguments: str, script: str = RUN, out: int | None = subprocess.PIPE) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout or "", done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(["--version"], 0, id="done"),
        pytest.param(["receipts", "--config", "there is none"], 2, id="a fault of the configuration"),
        pytest.param(["no-such-command"], 2, id="no such command"),
    ],
)
def test_a_command_ends_with_its_code_after_all_exit_handlers_of_python(arguments: list[str], code: int) -> None:
    ended, out, _err = _ended(*arguments)
    assert ended == code
    assert out.splitlines()[-2:] == ["late", "tidied"]


def test_a_fault_of_this_program_ends_with_1_and_is_reported(tmp_path: Path) -> None:
    ended, _out, err = _ended("fail", script=FAILING + RUN)
    assert ended == 1
    assert err.splitlines()[-1].strip() == "ValueError: a fault \\x1b[2J"


def test_a_command_that_a_signal_stopped_waits_for_no_thread_of_a_pool() -> None:
    ended, _out, err = _ended("stuck", script=STUCK + RUN)
    assert ended == 143
    assert err.splitlines()[-1] == "ledger-reaper: stopped by SIGTERM: nothing was changed"


def test_a_command_waits_for_threads_of_a_pool_only_for_a_while() -> None:
    """A service that had stopped did not end within a minute, beside a tenant that had deleted its namespace."""
    hurried = "import streaming.__main__ as entry\nentry._LEAVE_S = 0.5\n"
    ended, _out, err = _ended("done", script=hurried + STUCK.replace("stuck", "done").replace(STOPPED, "") + RUN)
    assert ended == 0
    assert "ends without waiting for threads any longer" in err
    assert "ThreadPoolExecutor-0_0" in err


def test_a_command_whose_output_could_not_be_written_fails() -> None:
    with Path("/dev/full").open("wb") as full:
        ended, _out, _err = _ended("--version", out=full.fileno())
    assert ended == 1


def test_the_module_that_is_only_imported_ends_no_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import streaming.__main__, sys; sys.exit(7)"], timeout=120, check=False
    )
    assert done.returncode == 7
