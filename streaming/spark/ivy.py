"""Fetches files of a Maven-style repository with the Ivy that PySpark ships, and checks their SHA-512.

Ivy has a default repository, so no host is named here. All processes share one cache folder; a file gets its final name
only after its checksum was verified.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from platformdirs import user_cache_path

from streaming.errors import ConfigError, ReaperError, UnavailableError
from streaming.spark.installed import missing

if TYPE_CHECKING:
    from filelock import UnixFileLock

FETCH_TIMEOUT_SECONDS = 1800
_NAMED = 4  # above this, the log gives the number of files, not their names
# This variable names a file of Ivy settings, for sites that fetch through a mirror.
IVY_SETTINGS_VARIABLE = "LEDGER_REAPER_IVY_SETTINGS"
# Without POMs: reading the parents of Pulsar's POM takes longer than fetching 300 MB, and we want no dependencies.
IVY_SETTINGS = """<ivysettings><settings defaultResolver="public"/><resolvers>
<ibiblio name="public" m2compatible="true" usepoms="false"/>
</resolvers></ivysettings>"""
# Takes the name of the step, its bytes so far, and its total bytes (0 if not known).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
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


def pinned(file: Path) -> list[Artifact]:
    """Read a list of artifacts: on each line SHA-512, size in bytes, and coordinate; lines with # are comments.

    A coordinate is organisation:name:revision, with :classifier if it has one, and @extension unless that is jar.
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    return [_pinned(line) for line in lines if not line.startswith("#")]


def _pinned(line: str) -> Artifact:
    sha512, size, coordinate = line.split()
    module, _at, extension = coordinate.partition("@")
    organisation, name, revision, *classifier = module.split(":")
    return Artifact(
        organisation=organisation,
        name=name,
        revision=revision,
        extension=extension or "jar",
        classifier="".join(classifier),
        size_bytes=int(size),
        sha512=sha512,
    )


def default_cache() -> Path:
    """Return the user's cache folder for this program (it honours XDG_CACHE_HOME); it may not exist."""
    return user_cache_path("ledger-reaper")


def fetch(artifacts: Sequence[Artifact], *, cache: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Fetch the artifacts that are missing in the cache, and return the paths of all, in order.

    Several processes may call this at once: one fetches, the others wait. Raises UnavailableError if Ivy can't fetch a
    file, ReaperError if a file has the wrong checksum (it is removed then).
    """
    folder = cache or default_cache()
    if missing := _missing(artifacts, folder):
        with locked(folder / "fetch.lock"):
            missing = _missing(artifacts, folder)
            if missing:
                _fetch(missing, folder, progress)
    return [folder / artifact.file_name for artifact in artifacts]


def are_fetched(artifacts: Sequence[Artifact], *, cache: Path | None = None) -> bool:
    """Whether fetch would find all of them in the cache."""
    return not _missing(artifacts, cache or default_cache())


def locked(path: Path) -> "UnixFileLock":
    """Return a file's exclusive lock, which `with` waits for. It ends with the process, even if that is killed."""
    from filelock import UnixFileLock  # few starts need it, and its import takes 60 ms

    return UnixFileLock(path, fallback_to_soft=False)  # the fallback of the library does not end with the process


def verify(path: Path, artifact: Artifact) -> None:
    """Raise ReaperError, and remove the file, unless it has the recorded SHA-512."""
    sha512 = sha512_of(path)
    if sha512 != artifact.sha512:
        path.unlink()
        raise ReaperError(
            f"{artifact.file_name} has SHA-512 {sha512[:16]}..., expected {artifact.sha512[:16]}...; it was removed. "
            "Try again; if it happens twice, the repository has another file than the one that was tested."
        )


def sha512_of(path: Path) -> str:
    """Return the SHA-512 of a file, in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha512").hexdigest()


def _missing(artifacts: Sequence[Artifact], folder: Path) -> list[Artifact]:
    return [artifact for artifact in artifacts if not (folder / artifact.file_name).is_file()]


def _fetch(artifacts: Sequence[Artifact], folder: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
        work = Path(scratch)
        (work / "ivy.xml").write_text(ivy_file(artifacts), encoding="utf-8")
        (work / "settings.xml").write_text(IVY_SETTINGS, encoding="utf-8")
        _run_ivy(work, artifacts, progress)
        for artifact in artifacts:
            file = work / "out" / artifact.file_name
            if not file.is_file():
                raise UnavailableError(f"{artifact.file_name} could not be fetched:\n{_last_lines(work / 'ivy.log')}")
            verify(file, artifact)
            file.replace(folder / artifact.file_name)


def _run_ivy(work: Path, artifacts: Sequence[Artifact], progress: Progress | None) -> None:
    types = sorted({artifact.extension for artifact in artifacts})
    command = [java(), f"-Duser.home={work}", f"-Divy.home={work}", f"-Djava.io.tmpdir={work}", "-XX:-UsePerfData"]
    settings = os.environ.get(IVY_SETTINGS_VARIABLE) or str(work / "settings.xml")
    command += ["-jar", str(_ivy_jar()), "-settings", settings, "-ivy", str(work / "ivy.xml"), "-types", *types]
    command += ["-cache", str(work / "ivy"), "-retrieve", f"{work}/out/[artifact]-[revision](-[classifier]).[ext]"]
    total = sum(artifact.size_bytes for artifact in artifacts)
    names = [artifact.name for artifact in artifacts]
    what = f"Fetching {', '.join(names) if len(names) <= _NAMED else f'{len(names)} files'}"
    with (work / "ivy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=work)
        try:
            _watch(process, lambda: report_progress(progress, what, _size(work / "ivy"), total))
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
        f"the archives could not be fetched within {FETCH_TIMEOUT_SECONDS} s; try again, which fetches all again"
    )


def ivy_file(artifacts: Sequence[Artifact]) -> str:
    """Return an ivy.xml that requests exactly these files and none of their dependencies."""
    return "\n".join(
        [
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
            '<info organisation="ledger-reaper" module="artifacts"/>',
            "<dependencies>",
            *(_dependency(files) for files in _by_module(artifacts)),
            "</dependencies></ivy-module>",
        ]
    )


def _by_module(artifacts: Sequence[Artifact]) -> list[list[Artifact]]:
    """Group files of one module, because Ivy takes only one of two dependencies on the same module."""
    modules: dict[tuple[str, str, str], list[Artifact]] = {}
    for artifact in artifacts:
        modules.setdefault((artifact.organisation, artifact.name, artifact.revision), []).append(artifact)
    return list(modules.values())


def _dependency(files: Sequence[Artifact]) -> str:
    module = files[0]
    return (
        f"<dependency org={quoteattr(module.organisation)} name={quoteattr(module.name)} "
        f'rev={quoteattr(module.revision)} transitive="false" conf="default->default">'
        f"{''.join(_file(artifact) for artifact in files)}</dependency>"
    )


def _file(artifact: Artifact) -> str:
    classifier = f" m:classifier={quoteattr(artifact.classifier)}" if artifact.classifier else ""
    extension = quoteattr(artifact.extension)
    return f"<artifact name={quoteattr(artifact.name)} type={extension} ext={extension}{classifier}/>"


def report_progress(progress: Progress | None, what: str, done: int, total: int) -> None:
    """Call progress, if it is given."""
    if progress is not None:
        progress(what, min(done, total), total)


def _size(folder: Path) -> int:
    total = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # Ivy has just renamed a partial file
                continue
    return total


def _last_lines(path: Path, lines: int = 12) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    return "\n".join(line[:200] for line in text.splitlines()[-lines:])


def _ivy_jar() -> Path:
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise missing()
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise ConfigError(f"PySpark at {Path(spec.origin).parent} ships no Ivy jar: install the tested version")
    return jars[0]


def java() -> str:
    """Return the path of the Java to use. Raises ConfigError if there is none."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not path or not Path(path).exists():
        raise ConfigError("no Java found: install Java 17 and put `java` on PATH or set JAVA_HOME")
    return path
