"""Spark's daemon of Python workers, without the archives that Spark puts on their path.

Each task drops Python's import caches; for the 4,000 names of Spark's core jar and pyspark.zip that costs 0.2 s of CPU,
in pure Python, before the first row. Neither is needed where PySpark is installed.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

_ARCHIVES = (".jar", ".zip")


def without_archives(path: Sequence[str]) -> list[str]:
    """The search path without archives, if PySpark is found on what is left; else as it was."""
    folders = [entry for entry in path if not entry.endswith(_ARCHIVES)]
    return folders if PathFinder.find_spec("pyspark", folders) is not None else list(path)


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    runpy.run_module("pyspark.daemon", run_name="__main__")
