"""Creates an archive for Java's class data sharing, so that Java loads and checks our classes once for all starts.

If there is no archive yet, the driver's JVM lists the classes that it loads. After the first messages were read, a
separate process (this module, run as a program) creates the archive from that list. A missing archive fails no start.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from streaming.errors import ConfigError
from streaming.spark.ivy import default_cache, java

if TYPE_CHECKING:
    from streaming.config.sections import SparkSettings

log = logging.getLogger("ledger-reaper")

FOLDER = "java-classes"
# Without these, a JVM that ignores an archive reports that on standard output, in the middle of a command's output.
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_LISTING = "-XX:DumpLoadedClassList="
_OURS = re.compile(rf"{_LISTING}.+/[0-9a-f]{{16}}\.lst")
# With one of these in spark.java_options there is no archive of ours: the user configures class data sharing, or loads
# code that changes classes.
_CHOSEN = ("-Xshare", "Archive", "ClassList", "-agent", "-javaagent", "-Xbootclasspath", "--patch-module")
_AFTER_S = 60.0
# One of these classes is loaded when messages are read, by the connector or by our source.
_READ_CLASSES = (
    "org/apache/spark/sql/pulsar/PulsarSourceRDDPartition",
    "org/apache/spark/sql/execution/datasources/v2/python/PythonStreamingInputPartition",
)
_ROOM_BYTES = 1536 << 20  # creating an archive took 1 GB of memory; the archive takes 0.2 GB of disk space
_LATEST_S = 1800.0
_UNUSED_S = 30 * 24 * 3600.0
_MOST_ARCHIVES = 4
# The cause may pass: a full disk, or files in SPARK_HOME/conf, which is on the class path.
_FAILED_S = 24 * 3600.0
_CGROUP = Path("/sys/fs/cgroup")


def options(spark: "SparkSettings", jars: Sequence[Path], scratch: Path, cache: Path | None = None) -> tuple[str, ...]:
    """Return a JVM's options to use the archive that fits, or else to list its classes in a file in scratch.

    Returns no option if neither is possible, or if spark.java_options contains an option of _CHOSEN.

    jars: the jars that come after Spark's own on the class path.
    """
    if any(option in spark.java_options for option in _CHOSEN):
        return ()
    try:
        name = _digest(spark, jars)
        folder = (cache or default_cache()) / FOLDER
        # the JVM compares Java, class path and options again, and ignores an archive that does not fit
        archive = folder / f"{name}.jsa"
        if _is_ours(archive):
            with contextlib.suppress(OSError):
                os.utime(archive)  # marks it as used, for _remove_unused
            return (f'"-XX:SharedArchiveFile={archive}"', *_QUIET)
        if archive.exists() or _has_failed(archive):
            return ()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except (OSError, ConfigError):  # a read-only root, or no Java, which Spark reports better
        return ()
    return (f'"{_LISTING}{scratch / f"{name}.lst"}"',) if is_writable else ()


@contextlib.contextmanager
def kept(cache: Path | None = None, after_s: float = _AFTER_S) -> Iterator[None]:
    """If Spark's JVM lists its classes, have the archive created: a while after the start, or at a clean end."""
    folder = (cache or default_cache()) / FOLDER
    try:
        source = _listing()
    except Exception as error:  # the JVM has ended: the code that needs it reports that
        log.debug("this JVM's list of classes can't be found: %s", error)
        source = None
    if source is None:
        yield
        return
    over, guard = threading.Event(), threading.Lock()

    def create() -> None:
        with guard:
            if not over.is_set() and _start(folder, *source):
                over.set()

    def create_later() -> None:
        while not over.wait(after_s):
            create()

    threading.Thread(target=create_later, name="java-classes", daemon=True).start()
    try:
        yield
        create()
    finally:
        over.set()


def _digest(spark: "SparkSettings", jars: Sequence[Path]) -> str:
    """Return a digest of what an archive depends on: Java, Spark's and our jars, java_options and driver_memory."""
    from pyspark.find_spark_home import _find_spark_home

    sparks_home: Callable[[], str] = _find_spark_home
    home = Path(java()).resolve().parents[1]
    release = home / "release"
    parts = [str(home), release.read_text() if release.exists() else "", spark.java_options, spark.driver_memory]
    for jar in (*sorted(Path(sparks_home(), "jars").iterdir()), *jars):
        stat = jar.stat()
        parts += (str(jar), str(stat.st_size), str(stat.st_mtime_ns))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _is_ours(archive: Path) -> bool:
    """Whether the archive exists, and no other user could have written it: a JVM runs the code that it contains."""
    try:
        stats = archive.stat(), archive.parent.stat()
    except FileNotFoundError:
        return False
    return all(stat.st_uid in (0, os.geteuid()) and not stat.st_mode & 0o022 for stat in stats)


def _has_failed(archive: Path) -> bool:
    """Whether creating the archive failed during the last day."""
    try:
        return time.time() - archive.with_suffix(".none").stat().st_mtime < _FAILED_S
    except FileNotFoundError:
        return False


def _listing() -> tuple[Path, list[str]] | None:
    """Return the list that this JVM writes, and the JVM's command; None if it writes no list."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    arguments = list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    listing = [argument for argument in arguments if _OURS.fullmatch(argument)]
    if not listing:
        return None
    class_list = Path(listing[0].removeprefix(_LISTING))
    of = jvm.java.lang.System.getProperty
    rest = [argument for argument in arguments if argument not in listing]
    return class_list, [str(Path(of("java.home"), "bin", "java")), *rest, "-cp", of("java.class.path")]


def _start(folder: Path, class_list: Path, command: Sequence[str]) -> bool:
    """Start a process that creates the archive; False if it is too early for that, or if it cannot be done."""
    try:
        names = class_list.read_text(encoding="utf-8", errors="replace")
        if not any(each in names for each in _READ_CLASSES) or not has_room(folder):
            return False
        work = folder / f"making-{class_list.stem}-{os.getpid()}"
        work.mkdir()
        # without the last line: the JVM is still writing the list
        (work / "classes.lst").write_text(names.rpartition("\n")[0] + "\n", encoding="utf-8")
        (work / "command.json").write_text(json.dumps(list(command)), encoding="utf-8")
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(work), str(folder / f"{class_list.stem}.jsa")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # it continues if the service ends first
            start_new_session=True,
        )
    except Exception as error:  # the service works without an archive
        log.debug("no archive of Java classes is created: %s", error)
        return False
    log.info("another process creates an archive of Java classes, once, for faster starts (0.2 GB in %s)", folder)
    return True


def has_room(folder: Path, cgroup: Path = _CGROUP) -> bool:
    """Whether memory (also that of this container) and disk suffice to create an archive."""
    if min(psutil.virtual_memory().available, shutil.disk_usage(folder).free) < _ROOM_BYTES:
        return False
    try:
        most = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such limit
        return True
    return most - used + int(stat.get("inactive_file", 0)) >= _ROOM_BYTES


def make(work: Path, archive: Path) -> None:
    """Create the archive from the files that _start wrote into `work`, unless it exists; then remove `work`."""
    from streaming.spark.ivy import locked

    try:
        with locked(archive.with_suffix(".lock")):
            if archive.exists():
                return
            command = json.loads((work / "command.json").read_text(encoding="utf-8"))
            new, output = work / "classes.jsa", work / "output"
            if _dump(command, work / "classes.lst", new, output) and _try_out(command, new, output):
                new.chmod(0o400)
                new.replace(archive)
            else:  # the next try would probably fail too
                archive.with_suffix(".none").write_text(output.read_text(errors="replace")[-4000:], encoding="utf-8")
            _remove_unused(archive)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _dump(command: Sequence[str], class_list: Path, new: Path, output: Path) -> bool:
    # only those of the driver's options that affect the layout of its memory: others may open a port or a file
    java_, *rest = command
    layout = [option for option in rest if "Compressed" in option or "ObjectAlignment" in option]
    options_ = ["-Xmx640m", "-Xshare:dump", f"-XX:SharedClassListFile={class_list}", f"-XX:SharedArchiveFile={new}"]
    unlock = ["-XX:+UnlockExperimentalVMOptions", "-XX:+UnlockDiagnosticVMOptions", "-XX:-UsePerfData"]
    return _ran([java_, *unlock, *layout, *options_, *_QUIET, *_class_path(rest)], output) and new.exists()


def _try_out(command: Sequence[str], new: Path, output: Path) -> bool:
    """Whether a JVM with the driver's memory settings accepts the archive."""
    java_, *rest = command
    memory = [option for option in rest if option.startswith(("-Xm", "-Xss", "-XX:")) and "=/" not in option]
    return _ran([java_, *memory, "-Xshare:on", f"-XX:SharedArchiveFile={new}", *_class_path(rest), "-version"], output)


def _class_path(rest: Sequence[str]) -> list[str]:
    return list(rest[rest.index("-cp") :])


def _ran(command: Sequence[str], output: Path) -> bool:
    with output.open("wb") as out:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=_LATEST_S, check=False
        )
    return done.returncode == 0


def _remove_unused(new: Path) -> None:
    """Remove the archives that were used least recently, and what a killed process left a month ago.

    A JVM keeps the file that it has mapped.
    """
    used_s: dict[Path, float] = {}
    for path in new.parent.iterdir():
        with contextlib.suppress(OSError):  # another process may remove the same
            used_s[path] = path.lstat().st_mtime
    archives = sorted((path for path in used_s if path.suffix == ".jsa"), key=used_s.__getitem__)
    before_s = time.time() - _UNUSED_S
    for other in {*archives[:-_MOST_ARCHIVES], *(path for path in used_s if used_s[path] < before_s)} - {new}:
        with contextlib.suppress(OSError):
            shutil.rmtree(other) if other.is_dir() else other.unlink()


def _lower_priority() -> None:
    """Use only idle CPU time, and let the kernel kill this process first if memory runs out."""
    with contextlib.suppress(OSError):
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    _lower_priority()
    make(Path(sys.argv[1]), Path(sys.argv[2]))
