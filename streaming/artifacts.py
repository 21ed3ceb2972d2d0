"""Java archives the program needs, fetched by the Ivy that PySpark ships and trusted only by their SHA-512.

Ivy brings its own default repository, so no host is named here. Everything lands in one cache folder that
runs share: a file is visible under its final name only after its checksum was right.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from platformdirs import user_cache_path

from streaming.errors import ConfigError, ReaperError, UnavailableError

PULSAR_VERSION = "4.0.8"
FETCH_TIMEOUT_SECONDS = 1800
# Names a file of Ivy settings, for sites that fetch through a mirror.
IVY_SETTINGS_VARIABLE = "LEDGER_REAPER_IVY_SETTINGS"
# No POMs: reading the parents of Pulsar's takes longer than fetching 300 MB, and no dependency is wanted.
IVY_SETTINGS = """<ivysettings><settings defaultResolver="public"/><resolvers>
<ibiblio name="public" m2compatible="true" usepoms="false"/>
</resolvers></ivysettings>"""

# Called while something long runs: what is being done, bytes so far, bytes in all (0: not known).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a Maven-style repository: coordinate, file type, classifier ("" for none), size and SHA-512."""

    organisation: str
    name: str
    revision: str
    extension: str
    classifier: str
    size_bytes: int
    sha512: str

    @property
    def file_name(self) -> str:
        """Name in the cache."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.revision}{suffix}.{self.extension}"


SERVER = Artifact(
    "org.apache.pulsar",
    "pulsar-server-distribution",
    PULSAR_VERSION,
    "tar.gz",
    "bin",
    245_494_718,
    "65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e91279525be35352171befe7b0011176330aab29bd0a6c8a0f2f0646641af46d2e33cbd6",
)
OFFLOADERS = Artifact(
    "org.apache.pulsar",
    "pulsar-offloader-distribution",
    PULSAR_VERSION,
    "tar.gz",
    "bin",
    62_028_727,
    "f0e98550b99271c02863eb91cb250b580524e198669ff14ec8341f2eadad886abb54a0f593449350b2a60672e626bead6bd813179788bc7e938ff56a2b28e0a7",
)
DELTA = (
    Artifact(
        "io.delta",
        "delta-spark_2.12",
        "3.3.2",
        "jar",
        "",
        7_120_414,
        "0599674293c8719f7a90c658e53aec59ac12b0a95f78dc272b91dcdd90fb43df15f6dccf537fa64990295c45b0112b8091b3081ee41dc654f35c2346e65b988b",
    ),
    Artifact(
        "io.delta",
        "delta-storage",
        "3.3.2",
        "jar",
        "",
        32_229,
        "2004d9d0eb7634a722a548c718555fdcb70593354df9332ae51691f01faebbaffd92211fac88498d2e90b4b54aa47c56a0e96ba3a8201372d86d805a323e4d01",
    ),
)
# The connector is a Scala 2.12 build for one Spark line: another Spark minor needs another coordinate here.
CONNECTORS = {
    "3.5": Artifact(
        "io.streamnative.connectors",
        "pulsar-spark-connector_2.12",
        "3.1.1.4",
        "jar",
        "",
        36_065_628,
        "04622a3f1ef2c81ce4cfa6b230806bf1a1c1199fa13a6fbe8831fcdb3aa5addd0a3502d8e853f6d4552c2cd0f9f411e30d6b36a02c8ccc726f8854c03de37a9e",
    ),
}
# Hadoop's S3 client of the Hadoop that PySpark 3.5 ships, and the SDK it was built with.
S3A = (
    Artifact(
        "org.apache.hadoop",
        "hadoop-aws",
        "3.3.4",
        "jar",
        "",
        962_685,
        "b48a67a6af0b9885c05459b81d97ec07c30e30f889f6730966771d6a6d70cb3e856c29661b17c16a62a07044a4655467d682147b52a89651a137d146181fc284",
    ),
    Artifact(
        "com.amazonaws",
        "aws-java-sdk-bundle",
        "1.12.262",
        "jar",
        "",
        280_645_251,
        "4231e69dfc4b952575579d5310e97abfc931f44f2184a71ce2072970d12623200f3adb346fea131c75c515188f665ae7912d2516becc14307cda144acb52e3f6",
    ),
)


def default_cache() -> Path:
    """The user's cache folder for this program (XDG_CACHE_HOME is honoured); not created here."""
    return user_cache_path("ledger-reaper")


def jars(cache: Path | None = None, progress: Progress | None = None, spark: str | None = None) -> list[Path]:
    """Connector and Delta jars for this Spark (default: the installed one), fetched if missing.

    Raises ConfigError when no connector is known for the Spark version, UnavailableError when the fetch fails.
    """
    return fetch([connector(spark or _installed_spark()), *DELTA], cache=cache, progress=progress)


def connector(spark_version: str) -> Artifact:
    """The connector built for this Spark version; raises ConfigError when there is none."""
    minor = ".".join(spark_version.split(".")[:2])
    if minor not in CONNECTORS:
        known = ", ".join(sorted(CONNECTORS))
        raise ConfigError(f"no Pulsar connector is known for Spark {spark_version}: install PySpark {known}")
    return CONNECTORS[minor]


def fetch(artifacts: Sequence[Artifact], *, cache: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Return the artifacts' paths in the cache, in order, fetching what is missing.

    Safe to call from several processes at once: one fetches, the others wait. Raises UnavailableError when
    Ivy gets nothing, ReaperError when a file has the wrong checksum (it is removed).
    """
    folder = cache or default_cache()
    if missing := _missing(artifacts, folder):
        with locked(folder / "fetch.lock"):
            missing = _missing(artifacts, folder)
            if missing:
                _fetch(missing, folder, progress)
    return [folder / artifact.file_name for artifact in artifacts]


def pulsar_home(cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Folder of the unpacked Pulsar distribution, offloaders inside; fetched and unpacked once per cache, read-only."""
    folder = cache or default_cache()
    home = folder / f"apache-pulsar-{PULSAR_VERSION}"
    if not home.is_dir():
        server, offloaders = fetch([SERVER, OFFLOADERS], cache=folder, progress=progress)
        with locked(folder / "unpack.lock"):
            if not home.is_dir():
                _unpack_home(server, offloaders, home, progress)
    return home


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; waits. The lock ends with the process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def verify(path: Path, artifact: Artifact) -> None:
    """Raise ReaperError, and remove the file, unless its SHA-512 is the recorded one."""
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha512").hexdigest()
    if found != artifact.sha512:
        path.unlink()
        raise ReaperError(
            f"{artifact.file_name} has SHA-512 {found[:16]}..., expected {artifact.sha512[:16]}...; it was removed. "
            "Try again; if it happens twice, the repository serves something else than was tested."
        )


def _missing(artifacts: Sequence[Artifact], folder: Path) -> list[Artifact]:
    return [artifact for artifact in artifacts if not (folder / artifact.file_name).is_file()]


def _fetch(artifacts: Sequence[Artifact], folder: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
        work = Path(scratch)
        (work / "ivy.xml").write_text(ivy_file(artifacts), encoding="utf-8")
        (work / "settings.xml").write_text(IVY_SETTINGS, encoding="utf-8")
        _run_ivy(work, artifacts, progress)
        for artifact in artifacts:
            got = work / "out" / artifact.file_name
            if not got.is_file():
                raise UnavailableError(f"{artifact.file_name} could not be fetched:\n{_last_lines(work / 'ivy.log')}")
            verify(got, artifact)
            got.replace(folder / artifact.file_name)


def _run_ivy(work: Path, artifacts: Sequence[Artifact], progress: Progress | None) -> None:
    types = sorted({artifact.extension for artifact in artifacts})
    command = [java(), f"-Duser.home={work}", f"-Divy.home={work}", f"-Djava.io.tmpdir={work}", "-XX:-UsePerfData"]
    settings = os.environ.get(IVY_SETTINGS_VARIABLE) or str(work / "settings.xml")
    command += ["-jar", str(_ivy_jar()), "-settings", settings, "-ivy", str(work / "ivy.xml"), "-types", *types]
    command += ["-cache", str(work / "ivy"), "-retrieve", f"{work}/out/[artifact]-[revision](-[classifier]).[ext]"]
    total = sum(artifact.size_bytes for artifact in artifacts)
    what = "Fetching " + ", ".join(artifact.name for artifact in artifacts)
    with (work / "ivy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=work)
        try:
            _watch(process, lambda: _report(progress, what, _size(work / "ivy"), total))
        finally:
            process.kill()
            process.wait()


def _watch(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> None:
    for _ in range(FETCH_TIMEOUT_SECONDS * 4):
        try:
            process.wait(timeout=0.25)
        except subprocess.TimeoutExpired:
            tick()
        else:
            return
    raise UnavailableError(
        f"the archives did not arrive within {FETCH_TIMEOUT_SECONDS} s; what came is lost, try again"
    )


def ivy_file(artifacts: Sequence[Artifact]) -> str:
    """An ivy.xml that asks for exactly these files and none of their dependencies."""
    return "\n".join(
        [
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
            '<info organisation="ledger-reaper" module="artifacts"/>',
            "<dependencies>",
            *(_dependency(artifact) for artifact in artifacts),
            "</dependencies></ivy-module>",
        ]
    )


def _dependency(artifact: Artifact) -> str:
    classifier = f" m:classifier={quoteattr(artifact.classifier)}" if artifact.classifier else ""
    extension = quoteattr(artifact.extension)
    return (
        f"<dependency org={quoteattr(artifact.organisation)} name={quoteattr(artifact.name)} "
        f'rev={quoteattr(artifact.revision)} transitive="false" conf="default->default">'
        f"<artifact name={quoteattr(artifact.name)} type={extension} ext={extension}{classifier}/></dependency>"
    )


def _unpack_home(server: Path, offloaders: Path, home: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="unpack-") as scratch:
        work = Path(scratch)
        _unpack(server, work / "server", progress)
        _unpack(offloaders, work / "offloaders", progress)
        made = _only_child(work / "server")
        (_only_child(work / "offloaders") / "offloaders").replace(made / "offloaders")
        made.replace(home)


def _unpack(archive: Path, target: Path, progress: Progress | None) -> None:
    total = archive.stat().st_size
    with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:gz") as tar:
        for member in tar:
            tar.extract(member, target, filter="data")
            _report(progress, f"Unpacking {archive.name}", raw.tell(), total)


def _only_child(folder: Path) -> Path:
    (child,) = folder.iterdir()
    return child


def _report(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, min(done, total), total)


def _size(folder: Path) -> int:
    total = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # Ivy renames its part files while we look
                continue
    return total


def _last_lines(path: Path, lines: int = 12) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    return "\n".join(line[:200] for line in text.splitlines()[-lines:])


def _installed_spark() -> str:
    from importlib.metadata import version

    return version("pyspark")


def _ivy_jar() -> Path:
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("PySpark is not installed in this environment: run `make setup`")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise ConfigError(f"PySpark at {Path(spec.origin).parent} ships no Ivy jar: install the tested version")
    return found[0]


def java() -> str:
    """Path of the Java to use; raises ConfigError where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        raise ConfigError("no Java found: install Java 17 and put `java` on PATH or set JAVA_HOME")
    return found
