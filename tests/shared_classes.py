"""A class data sharing archive of the service's Java classes, loaded and verified once for all tests.

`make test-long` starts the service dozens of times, and the archive more than halves the cost of a JVM's start. A run
of the service writes the archive when its JVM ends. The JVM ignores an archive that does not fit its version or class
path.
"""

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil

from streaming.spark.ivy import locked
from streaming.spark.jars import jars

# Spark appends this to the class path. An archive holds only classes of the class path, and none of spark.jars.
CLASS_PATH = "SPARK_DIST_CLASSPATH"
_LATEST_SECONDS = 240
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# Tests process so few rows that Spark would take longer to compile code for them. Under spark-submit, Spark compiles
# code, as in production.
_SMALL = "-XX:+UseSerialGC -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
# With these options a JVM without the archive starts in half of the CPU time: it has no second tier of compilers, and
# does not verify classes, which come from pinned packages.
SOONER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_WITHOUT = f"-Xshare:auto {SOONER} {_SMALL}"  # -Xshare:auto keeps the service from creating an archive itself


class Archive:
    """Whether this run of the tests creates a missing archive; that costs as much as several starts save."""

    is_created = True


@cache
def class_path() -> str:
    """Return the value of CLASS_PATH in the environment of a JVM that uses the archive."""
    return ":".join(str(jar) for jar in jars())


def java_options(run: Callable[[Path, str], None]) -> str:
    """Return options for a driver's JVM that use the archive.

    Args:
        run: runs the service to its end, with a folder and further JVM options; called to create the archive.
    """
    fits = hashlib.sha256(class_path().encode()).hexdigest()[:8]
    archive = Path(sys.prefix) / f"service-classes-{fits}.jsa"  # beside PySpark's jars, which it fits too
    with locked(archive.with_suffix(".lock")):
        if Archive.is_created and not archive.exists():
            _create(archive, run)
    return f"-XX:SharedArchiveFile={archive} {_QUIET} {_SMALL}" if archive.exists() else _WITHOUT


def _create(archive: Path, run: Callable[[Path, str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="service-classes-") as folder:
        written = Path(folder) / "classes.jsa"
        run(Path(folder), f"-XX:ArchiveClassesAtExit={written} {_QUIET} {_SMALL}")
        deadline = time.monotonic() + _LATEST_SECONDS
        while time.monotonic() < deadline and _jvm_of(folder):  # the JVM writes the archive when it ends, after Python
            time.sleep(0.2)
        if written.exists():
            written.replace(archive)


def _jvm_of(folder: str) -> bool:
    for process in psutil.process_iter(["cmdline"]):
        if any(folder in argument for argument in process.info["cmdline"] or ()) and process.pid != os.getpid():
            return True
    return False
