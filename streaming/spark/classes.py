"""The Java classes of the service, loaded and checked once for all its starts: an archive of class data sharing.

1. Where there is no archive yet, the driver's JVM writes down which classes it loads. Once messages were read, a
   process of its own (this module, run as a program) makes the archive of them. It takes only the CPU that nobody else
   wants, and goes on where the service ends before it.
2. An archive fits one Java, one class path and one set of options. Its name is a digest of those, and the JVM compares
   them again: it does without an archive that does not fit.
3. No start fails for want of an archive, and none is made where the cache can't be written, or memory or disk are
   short.
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
# A JVM that does without an archive says so on its standard output, in the middle of what a command prints there.
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_LISTING = "-XX:DumpLoadedClassList="
_OURS = re.compile(rf"{_LISTING}.+/[0-9a-f]{{16}}\.lst")
# The user has chosen something himself that archives are about, or hands the JVM code that changes classes.
_CHOSEN = ("-Xshare", "Archive", "ClassList", "-agent", "-javaagent", "-Xbootclasspath", "--patch-module")
_AFTER_S = 60.0
_TELLING = "org/apache/spark/sql/pulsar/PulsarSourceRDDPartition"  # this class is loaded when messages are read
_ROOM_BYTES = 1536 << 20  # making an archive took 1 GB of memory; the archive takes 0.2 GB of the disk
_LATEST_S = 1800.0
_UNUSED_S = 30 * 24 * 3600.0
_CGROUP = Path("/sys/fs/cgroup")


def options(spark: "SparkSettings", jars: Sequence[Path], scratch: Path, cache: Path | None = None) -> tuple[str, ...]:
    """Options of a JVM with these jars behind Spark's: use the archive that fits, or write down its classes in scratch.

    None where neither is possible, or spark.java_options has a word on the matter.
    """
    if any(word in spark.java_options for word in _CHOSEN):
        return ()
    try:
        name = _digest(spark, jars)
        folder = (cache or default_cache()) / FOLDER
        archive = folder / f"{name}.jsa"
        if _is_ours(archive):
            with contextlib.suppress(OSError):
                os.utime(archive)  # used: see _remove_unused
            return (f'"-XX:SharedArchiveFile={archive}"', *_QUIET)
        if archive.exists() or (folder / f"{name}.none").exists():
            return ()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except (OSError, ConfigError):  # a root that is read-only, or no Java, which Spark says better
        return ()
    return (f'"{_LISTING}{scratch / f"{name}.lst"}"',) if is_writable else ()


@contextlib.contextmanager
def kept(cache: Path | None = None, after_s: float = _AFTER_S) -> Iterator[None]:
    """Have the archive made, if Spark's JVM writes its classes down: a while after the beginning, or at a clean end."""
    folder = (cache or default_cache()) / FOLDER
    try:
        wanted = _wanted()
    except Exception as error:  # the JVM has ended: whoever needs it says so
        log.debug("nobody knows of this JVM's classes: %s", error)
        wanted = None
    if wanted is None:
        yield
        return
    over, guard = threading.Event(), threading.Lock()

    def make() -> None:
        with guard:
            if not over.is_set() and _begin(folder, *wanted):
                over.set()

    def make_later() -> None:
        while not over.wait(after_s):
            make()

    threading.Thread(target=make_later, name="java-classes", daemon=True).start()
    try:
        yield
        make()
    finally:
        over.set()


def _digest(spark: "SparkSettings", jars: Sequence[Path]) -> str:
    """Name what an archive fits: the Java, all jars as they are on the disk, and options that shape the memory."""
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
    """Whether the archive is there, and nobody else could have written it: a JVM runs what stands in it."""
    try:
        stats = archive.stat(), archive.parent.stat()
    except FileNotFoundError:
        return False
    return all(stat.st_uid in (0, os.geteuid()) and not stat.st_mode & 0o022 for stat in stats)


def _wanted() -> tuple[Path, list[str]] | None:
    """The list that this JVM writes, and the command that fits its archive to it; None where it writes none."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    arguments = list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    listing = [each for each in arguments if _OURS.fullmatch(each)]
    if not listing:
        return None
    listed = Path(listing[0].removeprefix(_LISTING))
    of = jvm.java.lang.System.getProperty
    rest = [each for each in arguments if each not in listing]
    return listed, [str(Path(of("java.home"), "bin", "java")), *rest, "-cp", of("java.class.path")]


def _begin(folder: Path, listed: Path, command: Sequence[str]) -> bool:
    """Begin to make the archive in a process of its own; False where it is too early for that, or cannot be done."""
    try:
        if _TELLING not in (names := listed.read_text(encoding="utf-8", errors="replace")) or not has_room(folder):
            return False
        here = folder / f"making-{listed.stem}-{os.getpid()}"
        here.mkdir()
        (here / "classes.lst").write_text(names.rpartition("\n")[0] + "\n", encoding="utf-8")  # it is being written
        (here / "command.json").write_text(json.dumps(list(command)), encoding="utf-8")
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(here), str(folder / f"{listed.stem}.jsa")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except Exception as error:  # the service does without
        log.debug("no archive of Java classes is made: %s", error)
        return False
    log.info("an archive of Java classes is made beside this, once, for faster starts (0.2 GB in %s)", folder)
    return True


def has_room(folder: Path, cgroup: Path = _CGROUP) -> bool:
    """Whether memory, that of our container too, and disk have room for the making of an archive."""
    if min(psutil.virtual_memory().available, shutil.disk_usage(folder).free) < _ROOM_BYTES:
        return False
    try:
        most = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such limit
        return True
    return most - used + int(stat.get("inactive_file", 0)) >= _ROOM_BYTES


def make(here: Path, archive: Path) -> None:
    """Make the archive of what _begin wrote into `here`, unless somebody does or it is there; then remove `here`."""
    from streaming.spark.ivy import locked

    try:
        with locked(archive.with_suffix(".lock")):
            if archive.exists():
                return
            command = json.loads((here / "command.json").read_text(encoding="utf-8"))
            made, said = here / "classes.jsa", here / "said"
            words = _dump(command, here / "classes.lst", made, said) and _try_out(command, made, said)
            if words:
                made.chmod(0o400)
                made.replace(archive)
            else:  # it would go wrong again
                archive.with_suffix(".none").write_text(said.read_text(errors="replace")[-4000:], encoding="utf-8")
            _remove_unused(archive)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def _dump(command: Sequence[str], listed: Path, made: Path, said: Path) -> bool:
    # of the driver's options only those with which its memory looks the same: others may open a port, or a file
    java_, *rest = command
    layout = [each for each in rest if "Compressed" in each or "ObjectAlignment" in each]
    options_ = ["-Xmx640m", "-Xshare:dump", f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={made}"]
    unlock = ["-XX:+UnlockExperimentalVMOptions", "-XX:+UnlockDiagnosticVMOptions", "-XX:-UsePerfData"]
    return _ran([java_, *unlock, *layout, *options_, *_QUIET, *_class_path(rest)], said) and made.exists()


def _try_out(command: Sequence[str], made: Path, said: Path) -> bool:
    """Whether a JVM with the memory of the driver's takes the archive."""
    java_, *rest = command
    kept_ = [each for each in rest if each.startswith(("-Xm", "-Xss", "-XX:")) and "=/" not in each]
    return _ran([java_, *kept_, "-Xshare:on", f"-XX:SharedArchiveFile={made}", *_class_path(rest), "-version"], said)


def _class_path(rest: Sequence[str]) -> list[str]:
    return list(rest[rest.index("-cp") :])


def _ran(command: Sequence[str], said: Path) -> bool:
    with said.open("wb") as out:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=_LATEST_S, check=False
        )
    return done.returncode == 0


def _remove_unused(archive: Path) -> None:
    """Remove archives of other versions that nobody has started with for a month, and what a kill left behind."""
    before_s = time.time() - _UNUSED_S
    for other in archive.parent.iterdir():
        with contextlib.suppress(OSError):
            if other != archive and other.stat().st_mtime < before_s:
                shutil.rmtree(other) if other.is_dir() else other.unlink()


def _step_back() -> None:
    """Take only the CPU that nobody else wants, and be the first that is ended where memory runs out."""
    with contextlib.suppress(OSError):
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    _step_back()
    make(Path(sys.argv[1]), Path(sys.argv[2]))
