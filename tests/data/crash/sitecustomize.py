"""Kills the service right before or after one of its effects; Python imports this at the start of every process.

CRASH_AT names the effect (`before|after:module:Class.function`) and how often it may happen before (`#2`). CRASH_PIDS
is a file: the service's own process writes its id there, and its executors, which are processes of their own, kill it.
Where CRASH_FAILS names a file, the effect fails instead as long as that file exists, each time from then on.
"""

import importlib
import importlib.util
import os
import signal
import sys
from functools import reduce
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

AT = os.environ.get("CRASH_AT", "")
PIDS = Path(os.environ.get("CRASH_PIDS", "/dev/null"))
FAILS = os.environ.get("CRASH_FAILS", "")


def _break_off() -> None:
    if FAILS:
        if Path(FAILS).exists():
            from streaming.errors import UnavailableError

            raise UnavailableError("broken off by a test")
        return
    os.killpg(int(PIDS.read_text()), signal.SIGKILL)
    os._exit(137)


def _install(when: str, module: str, function: str, spared: int) -> None:
    *owners, name = function.split(".")
    owner = reduce(getattr, owners, importlib.import_module(module))
    original = getattr(owner, name)
    left = [spared]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        is_time = left[0] <= 0 if FAILS else left[0] == 0
        left[0] -= 1
        if is_time and when == "before":
            _break_off()
        result = original(*args, **kwargs)
        if is_time and when == "after":
            _break_off()
        return result

    setattr(owner, name, wrapped)


class _Finder:
    """Installs the trap once the module's own import is over: importing it here would import it too early."""

    def __init__(self, when: str, module: str, function: str, spared: int) -> None:
        self.trap = (when, module, function, spared)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.trap[1]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(loaded: ModuleType) -> None:
            execute(loaded)
            sys.modules[name] = loaded
            _install(*self.trap)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign, assignment]
        return spec


if AT:
    if "run" in sys.orig_argv and "streaming" in sys.orig_argv:
        PIDS.write_text(str(os.getpid()))
    place, _, number = AT.partition("#")
    when, module, function = place.split(":")
    sys.meta_path.insert(0, _Finder(when, module, function, int(number or 0)))
