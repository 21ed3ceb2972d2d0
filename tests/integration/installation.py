"""What deploy/install.sh and deploy/dist.sh build, once for all tests that want it.

The steps run in a copy of what .dockerignore lets into the image, with no variable of ours in the environment, so they
are the steps of deploy/Dockerfile.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = ("LICENSE", "README.md", "conf", "constraints.txt", "deploy", "pyproject.toml", "streaming", "udfs")
BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
# what tells pip and Java where this machine gets packages and archives
_SITE = ("PIP_", "XDG_CACHE_HOME", "LEDGER_REAPER_IVY_SETTINGS", "JAVA_HOME", "SSL_", "HTTPS_", "https_", "HOME")


def _site() -> dict[str, str]:
    return BARE | {key: value for key, value in os.environ.items() if key.startswith(_SITE)}


def done(*command: str | Path, **how: object) -> str:
    """Run a command to its end, and return what it printed; fails unless it ends well."""
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        **how,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return str(done.stdout)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What .dockerignore lets into the image, and nothing else."""
    into = tmp_path_factory.mktemp("source")
    for name in IMAGE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, into)
    return into


@pytest.fixture(scope="session")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the image has as /opt/ledger-reaper."""
    into = tmp_path_factory.mktemp("root") / "opt" / "ledger-reaper"
    python = getattr(sys, "_base_executable", sys.executable)
    done(source / "deploy" / "install.sh", into, env=_site() | {"PYTHON": python}, cwd=into.parents[1])
    return into


@pytest.fixture(scope="session")
def dist(source: Path, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` builds."""
    into = tmp_path_factory.mktemp("dist")
    packer = Path(sys.executable).parent / "venv-pack"
    done(source / "deploy" / "dist.sh", into, installed, env=_site() | {"VENV_PACK": str(packer)}, cwd=into)
    return into
