"""Starts Spark's Python workers: the modules that all need are loaded before, and Spark's archives are not searched."""

import contextlib
import gc
import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

from streaming.arrow import load_datasets
from streaming.garbage import search_rarely

_ARCHIVES = (".jar", ".zip")
# None of them may start a thread when it is loaded: threads do not survive a fork, and Python 3.12 warns of them.
LIBRARIES = (
    "pyarrow.parquet",
    "boto3",
    "kazoo.client",
    "httpx",
    "google.protobuf.message",
    "pydantic",
    # and our own modules that the tasks of a batch need
    "streaming.queries.streams",
    "streaming.state.delta.commits",
    "streaming.sweep.task",
)
# Native threads that libraries would start when they are loaded. Our tasks need none: jemalloc frees memory without
# them, as it does in any process after a fork, and numpy computes nothing with matrices.
_WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's jemalloc
    "_RJEM_MALLOC_CONF": "background_thread:false",  # deltalake's jemalloc
}


def without_archives(path: Sequence[str]) -> list[str]:
    """Return the search path without archives if PySpark is found without them, else the whole path."""
    # each task clears Python's import caches, and reading the 4,000 names of Spark's core jar and pyspark.zip again
    # costs 0.2 s of CPU before the first row
    folders = [entry for entry in path if not entry.endswith(_ARCHIVES)]
    return folders if PathFinder.find_spec("pyspark", folders) is not None else list(path)


def load_libraries() -> None:
    """Load pyarrow without pandas, and those of LIBRARIES that are installed; none starts a thread."""
    for name, value in _WITHOUT_THREADS.items():
        os.environ.setdefault(name, value)
    load_datasets(with_numpy=True)
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    # a worker is a fork of this process: in each worker, loading them would cost 0.9 s of CPU
    load_libraries()
    # loaded modules stay
    gc.freeze()
    search_rarely()
    runpy.run_module("pyspark.daemon", run_name="__main__")
