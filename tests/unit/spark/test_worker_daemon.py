"""What Spark's Python workers begin with: their search path, and the libraries that are loaded before the fork."""

import subprocess
import sys
from pathlib import Path

import pytest

from streaming.spark.worker_daemon import without_archives

ARCHIVES = ["/spark/python/lib/pyspark.zip", "/spark/jars/spark-core_2.12-3.5.9.jar"]


@pytest.mark.parametrize(
    ("is_installed", "expected"),
    [
        pytest.param(True, lambda folder: ["", folder], id="PySpark is installed"),
        pytest.param(False, lambda folder: ["", *ARCHIVES, folder], id="PySpark is in the archive only"),
    ],
)
def test_a_worker_reads_no_archive_unless_it_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool, expected: object
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "site-packages"
    (folder / ("pyspark" if is_installed else "other")).mkdir(parents=True)
    if is_installed:
        (folder / "pyspark" / "__init__.py").write_text("")

    assert callable(expected)
    assert without_archives(["", *ARCHIVES, str(folder)]) == expected(str(folder))


def test_the_libraries_are_there_without_pandas_and_start_no_thread_that_a_fork_would_lose() -> None:
    program = (
        "import os, sys; from streaming.spark.worker_daemon import LIBRARIES, load_libraries; load_libraries()\n"
        "missing = [name for name in LIBRARIES if name not in sys.modules]\n"
        "print(len(os.listdir('/proc/self/task')), missing, 'pandas' in sys.modules)"  # native threads too
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1 [] False"
