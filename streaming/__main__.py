"""Entry point of `ledger-reaper`, `python -m streaming` and spark-submit; the commands are in streaming/cli.

Exit codes: 0 done, 1 a fault of this program, 2 configuration, 3 a service is unreachable, 4 refused for safety, 130
and 143 stopped by SIGINT and SIGTERM.

Native libraries (pyarrow, deltalake, pulsar) have threads of their own. If a thread releases a Python object while
Python shuts its interpreter down, the process ends with SIGABRT although the command is complete and its output is
printed. So `main` ends the process before that shutdown, and after everything else that Python does at an exit.
"""

import atexit
import os
import signal
import sys

_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_ended_with: list[int] = []  # the exit code, as soon as main knows it
_LEAVE_S = 20.0  # for the threads that still run at the end


def _end() -> None:
    """End the process at once with main's exit code; with 1 if that is 0 but output could not be printed."""
    if _ended_with:
        os._exit(_ended_with[0] or int(not flush()))


# Before any other import: Python calls this first registered function last, after those of the libraries.
atexit.register(_end)

if not __package__ and sys.path:
    # spark-submit starts this file by its path: Python must not find our modules (metrics, …) as top-level ones
    sys.path.pop(0)

from streaming.garbage import search_rarely

search_rarely()  # before the imports that load most objects

import threading
import traceback
from contextlib import suppress
from typing import NoReturn

from streaming.cli.main import app
from streaming.errors import ReaperError
from streaming.logs import start_logging
from streaming.spark.submitted import is_submitted
from streaming.terminal import flush, say_lines


def main() -> NoReturn:
    """Run one command, and end this process with its exit code."""
    try:
        run_command()
    except SystemExit as ended:
        _ended_with.append(_number(ended.code))
        if _ended_with[0] in _STOPPED:
            flush()
            os._exit(_ended_with[0])  # Python would wait for threads of pools, which may wait for a job for ever
        late = threading.Timer(_LEAVE_S, _end_late)
        late.daemon = True
        late.start()
    except BaseException:
        _ended_with.append(1)
        raise
    sys.exit(_ended_with[0])


def _end_late() -> None:
    """End the process although threads still run: Python waits for threads of pools, which may wait for a broker."""
    left = {*threading.enumerate()} - {threading.main_thread()}
    names = sorted(thread.name for thread in left if not thread.daemon)
    with suppress(OSError):
        say_lines(f"ledger-reaper: ends without waiting for threads any longer: {', '.join(names)}", err=True)
    _end()


def run_command() -> NoReturn:
    """Run one command. Raises SystemExit; an error of this program becomes one clear line and an exit code."""
    start_logging()
    code: str | int | None = 0
    try:
        app(prog_name="ledger-reaper")
    except SystemExit as ended:
        code = ended.code
    except Exception as error:
        code = _reported(error)
    if is_submitted() and "pyspark" in sys.modules:
        from streaming.spark.session import end_jvm

        end_jvm(_number(code))
    sys.exit(code)


def _reported(error: Exception) -> int:
    """Print why a command failed; return its exit code."""
    if isinstance(error, ModuleNotFoundError) and error.name in ("pyspark", "py4j"):
        from streaming.spark import installed

        error = installed.missing()
    if isinstance(error, ReaperError):
        say_lines(f"ledger-reaper: {error}", err=True)
        return error.exit_code
    say_lines(traceback.format_exc().rstrip(), err=True)
    return 1


def _number(code: str | int | None) -> int:
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    main()
