"""Runs a command and writes its exit code, wall seconds and CPU seconds, with those of all its descendants, to a file.

    python -m bench.process_cpu FILE COMMAND...

Descendants whose parent has ended are adopted and waited for, so that the CPU time of a JVM, or of a thousand short
JVMs, is counted completely.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> None:
    """Run the command of the arguments."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    began_s = time.monotonic()
    code = subprocess.call(sys.argv[2:])
    with suppress(ChildProcessError):  # raised when no descendant is left
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = time.monotonic() - began_s
    Path(sys.argv[1]).write_text(json.dumps({"code": code, "wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    main()
