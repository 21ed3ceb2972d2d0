"""Fetches the versions of Pulsar that the sandbox runs, and unpacks each once into the user's cache.

The lists beside this module (`pulsar-VERSION.txt`) pin each file with its size and SHA-512: the archives of a
distribution, or, if no repository serves them, the jars that Maven resolves. Jars run with the scripts of
PULSAR_VERSION, whose main classes all versions have.
"""

import shutil
import tarfile
import tempfile
from pathlib import Path

from streaming.errors import ConfigError
from streaming.sandbox.parts.java_runtime import unpack_java
from streaming.spark.ivy import Artifact, Progress, default_cache, fetch, locked, pinned, report_progress

PULSAR_VERSION = "4.0.8"  # of new clusters
_LISTS = Path(__file__).parent
_ARCHIVE = "tar.gz"
_SCRIPTS = ("bin", "conf")
_LOG = Path("conf/log4j2.yaml")
_FIRST_MAJOR_ON_JAVA_21 = 5


def versions() -> list[str]:
    """Return the versions that can be downloaded, in order."""
    return sorted(path.stem.removeprefix("pulsar-") for path in _LISTS.glob("pulsar-*.txt"))


def artifacts(version: str) -> list[Artifact]:
    """Return every file of a version. Raises ConfigError for a version without a list."""
    if version not in versions():
        raise ConfigError(f"no files are pinned for Pulsar {version}: take {' or '.join(versions())}")
    return pinned(_LISTS / f"pulsar-{version}.txt")


def supports_change(before: str, after: str) -> bool:
    """Whether Pulsar supports that a cluster changes its version, up or down.

    PIP-175 guarantees changes within a major version and between neighbouring ones.
    """
    return abs(_major(before) - _major(after)) <= 1


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def pulsar_home(version: str = PULSAR_VERSION, *, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of the unpacked version, for reading only; fetch it if missing.

    It contains `offloaders` if the list has them, and `java` if the version needs a newer Java than this program.
    Raises what artifacts() and streaming.spark.ivy.fetch() raise.
    """
    folder = cache or default_cache()
    home = folder / f"apache-pulsar-{version}"
    if home.is_dir():
        return home
    files = artifacts(version)
    are_archives = files[0].extension == _ARCHIVE
    # before the lock below, which the same process can't take twice
    scripts = None if are_archives else pulsar_home(cache=folder, progress=progress)
    archives = fetch(files, cache=folder, progress=progress) if are_archives else []
    with locked(folder / "unpack.lock"):
        if home.is_dir():
            return home
        with tempfile.TemporaryDirectory(dir=folder, prefix="unpack-") as scratch:
            work = Path(scratch)
            unpacked = _unpack_all(archives, work, progress) if scripts is None else _copy_scripts(scripts, work)
            if scripts is not None:
                fetch(files, cache=unpacked / "lib", progress=progress)
            if _major(version) >= _FIRST_MAJOR_ON_JAVA_21:
                unpack_java(unpacked / "java", work, progress)
            unpacked.replace(home)
    return home


def _unpack_all(archives: list[Path], work: Path, progress: Progress | None) -> Path:
    server, *offloaders = archives
    _unpack(server, work / "server", progress)
    unpacked = _only_child(work / "server")
    for archive in offloaders:
        _unpack(archive, work / "offloaders", progress)
        (_only_child(work / "offloaders") / "offloaders").replace(unpacked / "offloaders")
    return unpacked


def _copy_scripts(scripts: Path, work: Path) -> Path:
    target = work / "assembled"
    for name in _SCRIPTS:
        shutil.copytree(scripts / name, target / name)
    log = target / _LOG
    # later versions log values as attributes (PIP-467), which their own log4j2.yaml prints, too
    log.write_text(log.read_text(encoding="utf-8").replace("%msg%n", "%msg %X%n"), encoding="utf-8")
    return target


def _unpack(archive: Path, target: Path, progress: Progress | None) -> None:
    total = archive.stat().st_size
    with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:gz") as tar:
        for member in tar:
            tar.extract(member, target, filter="data")
            report_progress(progress, f"Unpacking {archive.name}", raw.tell(), total)


def _only_child(folder: Path) -> Path:
    (child,) = folder.iterdir()
    return child
