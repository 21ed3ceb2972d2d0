"""Spark's Python processes load PySpark as this process does, and not from Spark's archives."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.spark import session


def test_a_python_process_has_our_path_and_not_that_of_spark(tmp_path: Path) -> None:
    folder = tmp_path / "with a blank"
    folder.mkdir()
    path = os.fsdecode(b"/a b:/c'd:/\xe9")  # the last folder's name is not UTF-8
    python = session.python_without_archives(folder, path)

    code = "import os, sys; print(ascii(os.environ['PYTHONPATH']), sys.executable, sys.argv[1:])"
    environment = os.environ | {"PYTHONPATH": "/spark/python/lib/pyspark.zip:/a b"}
    done = subprocess.run([python, "-c", code, "e f"], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == f"{path!a} {sys.executable} ['e f']\n"


def test_where_no_program_may_be_executed_spark_runs_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "os", SimpleNamespace(access=lambda *_: False, X_OK=os.X_OK, fsencode=os.fsencode))
    assert session.python_without_archives(tmp_path, "") == sys.executable


@pytest.mark.parametrize("has_jvm_ended", [False, True])
def test_what_the_jvm_prints_past_the_log_is_dropped_at_the_end_only(has_jvm_ended: bool) -> None:
    calls: list[str] = []

    def set_err(_stream: object) -> None:
        calls.append("setErr")
        if has_jvm_ended:
            raise ConnectionRefusedError

    java = SimpleNamespace(
        lang=SimpleNamespace(System=SimpleNamespace(setErr=set_err)),
        io=SimpleNamespace(PrintStream=list, OutputStream=SimpleNamespace(nullOutputStream=list)),
    )
    context = SimpleNamespace(_jvm=SimpleNamespace(java=java))
    spark: Any = SimpleNamespace(sparkContext=context, stop=lambda: calls.append("stop"))
    session.end(spark)
    assert calls == ["setErr", "stop"]
