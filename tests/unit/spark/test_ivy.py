"""Fetching, with a stand-in for Ivy: a shell script in JAVA_HOME that writes what it was told to."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from streaming.errors import ConfigError, ReaperError, UnavailableError
from streaming.spark import ivy
from streaming.spark.ivy import Artifact

CONTENT = b"a jar"
JAR = Artifact(
    organisation="org.example",
    name="thing",
    revision="1.0",
    extension="jar",
    classifier="",
    size_bytes=len(CONTENT),
    sha512=hashlib.sha512(CONTENT).hexdigest(),
)
ARCHIVE = Artifact(
    organisation="org.example",
    name="dist",
    revision="2.0",
    extension="tar.gz",
    classifier="bin",
    size_bytes=1,
    sha512="0" * 128,
)

FETCH_FROM_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from streaming.spark.ivy import Artifact, fetch
jar = Artifact(
    organisation="org.example",
    name="thing",
    revision="1.0",
    extension="jar",
    classifier="",
    size_bytes=5,
    sha512=sys.argv[2],
)
print(fetch([jar], cache=Path(sys.argv[1]))[0].read_bytes())
"""


@pytest.fixture
def ivy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-in for `java -jar ivy.jar`: logs each run in the returned file, then retrieves thing-1.0.jar."""
    home = tmp_path / "java"
    runs = tmp_path / "runs"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho run >> {runs}\nsleep 0.3\nmkdir -p out\nprintf 'a jar' > out/thing-1.0.jar\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return runs


@pytest.mark.parametrize(
    ("artifact", "name"),
    [
        pytest.param(JAR, "thing-1.0.jar", id="without classifier"),
        pytest.param(ARCHIVE, "dist-2.0-bin.tar.gz", id="with classifier"),
    ],
)
def test_a_file_is_named_as_ivy_retrieves_it(artifact: Artifact, name: str) -> None:
    assert artifact.file_name == name


def test_a_file_is_here_once_it_was_fetched(tmp_path: Path, ivy_runs: Path) -> None:
    cache = tmp_path / "cache"
    assert not ivy.are_fetched([JAR], cache=cache)

    ivy.fetch([JAR], cache=cache)

    assert ivy_runs.exists()
    assert ivy.are_fetched([JAR], cache=cache)


def test_ivy_is_asked_for_the_files_and_none_of_their_dependencies() -> None:
    root = ElementTree.fromstring(ivy.ivy_file([JAR, ARCHIVE]))

    asked = {element.get("name"): element for element in root.iter("dependency")}
    assert set(asked) == {"thing", "dist"}
    assert {element.get("transitive") for element in asked.values()} == {"false"}
    (wanted,) = asked["dist"]
    assert wanted.get("type") == "tar.gz"
    assert wanted.get("{http://ant.apache.org/ivy/maven}classifier") == "bin"


def test_files_of_one_module_are_asked_for_in_one_dependency() -> None:
    natives = replace(JAR, classifier="linux-x86_64")

    root = ElementTree.fromstring(ivy.ivy_file([JAR, natives]))

    (asked,) = root.iter("dependency")
    assert [element.get("{http://ant.apache.org/ivy/maven}classifier") for element in asked] == [None, "linux-x86_64"]


def test_a_list_pins_jars_classifiers_and_archives(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(
        f"# a comment\n{JAR.sha512} 5 org.example:thing:1.0\n{JAR.sha512} 5 org.example:thing:1.0:linux-x86_64\n"
        f"{ARCHIVE.sha512} 1 org.example:dist:2.0:bin@tar.gz\n"
    )

    assert ivy.pinned(tmp_path / "list.txt") == [JAR, replace(JAR, classifier="linux-x86_64"), ARCHIVE]


def test_a_missing_file_is_fetched_once_and_nothing_else_is_left_in_the_cache(ivy_runs: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    first = ivy.fetch([JAR], cache=cache)
    second = ivy.fetch([JAR], cache=cache)

    assert first == second == [cache / "thing-1.0.jar"]
    assert first[0].read_bytes() == CONTENT
    assert ivy_runs.read_text() == "run\n"
    assert {path.name for path in cache.iterdir()} == {"thing-1.0.jar", "fetch.lock"}


def test_two_processes_that_need_the_same_file_fetch_it_once(ivy_runs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FETCH_FROM_ANOTHER_PROCESS, str(tmp_path / "cache"), JAR.sha512]

    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]

    assert outputs == [b"b'a jar'\n"] * 2
    assert ivy_runs.read_text() == "run\n"


def test_a_file_with_another_checksum_is_refused_and_never_becomes_visible(ivy_runs: Path, tmp_path: Path) -> None:
    other = Artifact(
        organisation="org.example",
        name="thing",
        revision="1.0",
        extension="jar",
        classifier="",
        size_bytes=5,
        sha512="0" * 128,
    )

    with pytest.raises(ReaperError, match=r"thing-1.0.jar has SHA-512 .* expected 0000"):
        ivy.fetch([other], cache=tmp_path / "cache")

    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"fetch.lock"}


def test_a_fetch_that_brings_nothing_says_what_ivy_said(ivy_runs: Path, tmp_path: Path) -> None:
    java = ivy_runs.parent / "java" / "bin" / "java"
    java.write_text("#!/bin/sh\necho UNRESOLVED DEPENDENCIES\nexit 1\n")

    with pytest.raises(UnavailableError, match="UNRESOLVED DEPENDENCIES"):
        ivy.fetch([JAR], cache=tmp_path / "cache")


def test_progress_tells_the_bytes_in_all_while_ivy_runs(ivy_runs: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    ivy.fetch([JAR], cache=tmp_path / "cache", progress=lambda *step: told.append(step))

    assert told[0] == ("Fetching thing", 0, len(CONTENT))


def test_without_java_the_operator_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))

    with pytest.raises(ConfigError, match="install Java 17"):
        ivy.fetch([JAR], cache=tmp_path / "cache")


def test_a_verified_file_stays_and_a_changed_one_goes(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(CONTENT)
    bad.write_bytes(CONTENT + b"!")

    ivy.verify(good, JAR)
    with pytest.raises(ReaperError):
        ivy.verify(bad, JAR)

    assert good.exists()
    assert not bad.exists()


def test_the_cache_follows_the_xdg_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert ivy.default_cache() == tmp_path / "ledger-reaper"
