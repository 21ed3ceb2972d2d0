"""Fetches the Pulsar distribution that the sandbox runs, and unpacks it once into the user's cache."""

import tarfile
import tempfile
from pathlib import Path

from streaming.spark.ivy import Artifact, Progress, default_cache, fetch, locked, report_progress

PULSAR_VERSION = "4.0.8"
SERVER = Artifact(
    organisation="org.apache.pulsar",
    name="pulsar-server-distribution",
    revision=PULSAR_VERSION,
    extension="tar.gz",
    classifier="bin",
    size_bytes=245_494_718,
    sha512="65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e91279525be35352171befe7b0011176330aab29bd0a6c8a0f2f0646641af46d2e33cbd6",
)
OFFLOADERS = Artifact(
    organisation="org.apache.pulsar",
    name="pulsar-offloader-distribution",
    revision=PULSAR_VERSION,
    extension="tar.gz",
    classifier="bin",
    size_bytes=62_028_727,
    sha512="f0e98550b99271c02863eb91cb250b580524e198669ff14ec8341f2eadad886abb54a0f593449350b2a60672e626bead6bd813179788bc7e938ff56a2b28e0a7",
)


def pulsar_home(cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of the unpacked distribution with its offloaders, for reading only; fetch it if missing."""
    folder = cache or default_cache()
    home = folder / f"apache-pulsar-{PULSAR_VERSION}"
    if not home.is_dir():
        server, offloaders = fetch([SERVER, OFFLOADERS], cache=folder, progress=progress)
        with locked(folder / "unpack.lock"):
            if not home.is_dir():
                _unpack_home(server, offloaders, home, progress)
    return home


def _unpack_home(server: Path, offloaders: Path, home: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="unpack-") as scratch:
        work = Path(scratch)
        _unpack(server, work / "server", progress)
        _unpack(offloaders, work / "offloaders", progress)
        unpacked = _only_child(work / "server")
        (_only_child(work / "offloaders") / "offloaders").replace(unpacked / "offloaders")
        unpacked.replace(home)


def _unpack(archive: Path, target: Path, progress: Progress | None) -> None:
    total = archive.stat().st_size
    with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:gz") as tar:
        for member in tar:
            tar.extract(member, target, filter="data")
            report_progress(progress, f"Unpacking {archive.name}", raw.tell(), total)


def _only_child(folder: Path) -> Path:
    (child,) = folder.iterdir()
    return child
