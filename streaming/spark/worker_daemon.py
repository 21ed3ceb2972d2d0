"""Starts Spark's Python workers without the archives that Spark puts on their search path.

Each task clears Python's import caches, and reading the 4,000 names of Spark's core jar and pyspark.zip again costs
0.2 s of CPU before the first row. Where PySpark is installed, neither archive is needed.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

_ARCHIVES = (".jar", ".zip")


def without_archives(path: Sequence[str]) -> list[str]:
    """The search path without archives if PySpark is found without them, else the whole path."""
    folders = [entry for entry in path if not entry.endswith(_ARCHIVES)]
    return folders if PathFinder.find_spec("pyspark", folders) is not None else list(path)


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    runpy.run_module("pyspark.daemon", run_name="__main__")
