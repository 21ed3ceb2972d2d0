"""An environment with PySpark 4: `python -m tests.spark4_environment` creates it once, and prints its Python.

It is in the user's cache folder, has exactly what constraints-spark4.txt pins, and stays there. PySpark 4 can't be in
the project's own environment beside PySpark 3.5.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from streaming.spark.ivy import default_cache, locked

ROOT = Path(__file__).parents[1]
PINNED = ROOT / "constraints-spark4.txt"
_READY = ".ready"


def environment() -> Path:
    """Return the environment's Python; create the environment first if it is missing."""
    pinned = PINNED.read_bytes()
    name = hashlib.sha256(pinned + sys.version.encode()).hexdigest()[:12]
    folder = default_cache() / "spark4" / name
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f"{name}.lock"):
        if not (folder / _READY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(PINNED)]
            subprocess.run(install, check=True)
            (folder / _READY).touch()
    return python


def variables(python: Path) -> Mapping[str, str]:
    """Return the environment variables of a process with which it finds our packages, as its workers do."""
    # without PYSPARK_PYTHON, workers take the machine's own python3
    return {**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


if __name__ == "__main__":
    sys.stdout.write(f"{environment()}\n")
