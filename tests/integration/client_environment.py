"""Environments with nothing but the client's wheel and pulsar-client."""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.integration.installation import ROOT, run

CLIENT = ROOT / "clients" / "python"
# runs in such an environment: asks for a deletion, and prints the request's id and where the packages come from
SENDER = """
import sys
import ledger_reaper_client as client
for missing in ("pyspark", "streaming", "udfs", "httpx"):
    try:
        __import__(missing)
    except ImportError:
        continue
    raise SystemExit(missing + " is there")
service_url, admin_url, topic, *ledger_ids = sys.argv[1:]
with client.LedgerDeletionService(client.Settings(service_url, admin_url, lanes="tenant")) as service:
    for ledger_id in ledger_ids:
        print(service.send_pending_delete_ledger(
            topic, int(ledger_id), None, client.LedgerComponent.MANAGED_LEDGER, client.LedgerType.LEDGER
        ))
    assert service.metrics()["ledger_deletion_ledgers_sent_total"] == len(ledger_ids)
print(sys.version_info[:2], file=sys.stderr)
"""


def build_wheel(into: Path) -> Path:
    """Build the client's wheel from a copy of its files, without the network, and check its content."""
    source = into / "source"
    shutil.copytree(CLIENT, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", into, source, cwd=into)
    (wheel,) = into.glob("*.whl")
    run(Path(sys.executable).parent / "check-wheel-contents", wheel, cwd=into)
    return wheel


def new_environment(python: str | Path, into: Path) -> Path:
    """Create an empty environment, and return its Python."""
    run(python, "-m", "venv", "--without-pip", into)
    return into / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    """Install into an environment without pip."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", *what, cwd=tempfile.gettempdir())


def copy_library(python: Path) -> None:
    """Copy pulsar-client and what it needs from this environment into another of the same Python."""
    ours = Path(sysconfig.get_paths()["purelib"])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    theirs = python.parents[1] / "lib" / version / "site-packages"
    for pattern in ("pulsar", "_pulsar*.so", "pulsar_client*", "certifi*"):
        for path in ours.glob(pattern):
            if path.is_dir():
                shutil.copytree(path, theirs / path.name, dirs_exist_ok=True)
            else:
                shutil.copy(path, theirs)


def send(python: Path, *arguments: object) -> list[str]:
    """Run SENDER in an environment; return the ids of the requests."""
    command = [str(python), "-I", "-c", SENDER, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tempfile.gettempdir())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()
