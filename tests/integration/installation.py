"""The output of deploy/install.sh and deploy/dist.sh, built once for all tests.

The steps are those of deploy/Dockerfile: they run in a copy of the files that .dockerignore admits, without our
variables in the environment.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.spark.installed import spark_version

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ("constraints.txt", "constraints-spark4.txt", "constraints-spark4.2.txt")
IMAGE = ("LICENSE", "README.md", "conf", *CONSTRAINTS, "deploy", "pyproject.toml", "streaming", "udfs")
BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
# variables that configure pip's and Java's sources of packages on this machine
_SITE = ("PIP_", "XDG_CACHE_HOME", "LEDGER_REAPER_IVY_SETTINGS", "JAVA_HOME", "SSL_", "HTTPS_", "https_", "HOME")


def _site() -> dict[str, str]:
    return BARE | {key: value for key, value in os.environ.items() if key.startswith(_SITE)}


def run(*command: str | Path, **options: object) -> str:
    """Run a command that must succeed; return its output."""
    completed = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-4000:]
    return str(completed.stdout)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that .dockerignore admits into the image."""
    into = tmp_path_factory.mktemp("source")
    for name in IMAGE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, into)
    return into


@pytest.fixture(scope="session")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder /opt/ledger-reaper of the image."""
    into = tmp_path_factory.mktemp("root") / "opt" / "ledger-reaper"
    python = getattr(sys, "_base_executable", sys.executable)
    chosen = {"PYTHON": python, "SPARK": spark_version().rpartition(".")[0]}
    run(source / "deploy" / "install.sh", into, env=_site() | chosen, cwd=into.parents[1])
    return into


@pytest.fixture(scope="session")
def dist(source: Path, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `make dist`."""
    into = tmp_path_factory.mktemp("dist")
    packer = Path(sys.executable).parent / "venv-pack"
    run(source / "deploy" / "dist.sh", into, installed, env=_site() | {"VENV_PACK": str(packer)}, cwd=into)
    return into
