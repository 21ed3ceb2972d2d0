"""The Java classes of the service, loaded and checked once for all tests: a class data sharing archive.

The tests start the service dozens of times, and an archive takes more than half off what a JVM's start costs. A run of
the service writes it when its JVM ends. The JVM ignores an archive that does not fit it or its class path.
"""

import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil

from streaming.spark.jars import jars

# Spark puts this at the end of the class path. An archive holds only what is found there, and nothing of spark.jars.
CLASS_PATH = "SPARK_DIST_CLASSPATH"
_LATEST_SECONDS = 240
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# A few rows are through before code for them is compiled. What spark-submit starts compiles it, as in production.
_SMALL = "-XX:+UseSerialGC -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
# With these a JVM without the archive is up in half of the CPU time: it has no second tier of compilers, and does not
# verify classes, which come from packages that we pinned.
SOONER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


@cache
def class_path() -> str:
    """Return what CLASS_PATH says in the environment of a JVM that uses the archive."""
    return ":".join(str(jar) for jar in jars())


def java_options(run: Callable[[Path, str], None]) -> str:
    """Options of a driver's JVM that use the archive.

    If there is none yet, run(folder, options) must run the service to its end, with these options, in that folder.
    """
    fits = hashlib.sha256(class_path().encode()).hexdigest()[:8]
    archive = Path(sys.prefix) / f"service-classes-{fits}.jsa"  # beside PySpark's jars, which it fits too
    with _one_at_a_time(archive.with_suffix(".lock")):
        if not archive.exists():
            _make(archive, run)
    return f"-XX:SharedArchiveFile={archive} {_QUIET} {_SMALL}" if archive.exists() else _SMALL


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Let one process after the other do this; tests run in several."""
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _make(archive: Path, run: Callable[[Path, str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="service-classes-") as folder:
        made = Path(folder) / "classes.jsa"
        run(Path(folder), f"-XX:ArchiveClassesAtExit={made} {_QUIET} {_SMALL}")
        deadline = time.monotonic() + _LATEST_SECONDS
        while time.monotonic() < deadline and _jvm_of(folder):  # it writes the archive when it ends, after Python
            time.sleep(0.2)
        if made.exists():
            made.replace(archive)


def _jvm_of(folder: str) -> bool:
    for process in psutil.process_iter(["cmdline"]):
        if any(folder in each for each in process.info["cmdline"] or ()) and process.pid != os.getpid():
            return True
    return False
