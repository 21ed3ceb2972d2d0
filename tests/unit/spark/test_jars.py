"""Archives from a folder that the operator names: nothing is fetched, and none is taken that was not tested."""

import hashlib
import shutil
import zipfile
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from streaming.errors import ConfigError
from streaming.spark import installed
from streaming.spark import jars as artifacts
from streaming.spark.ivy import Artifact
from tests.combinations import with_connector
from tests.credentials_jar import SOURCE, compiled

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


@pytest.fixture(autouse=True)
def _named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(artifacts.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # whoever fetches fails


def test_the_named_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thing-1.0.jar").write_bytes(CONTENT)
    assert artifacts.found([JAR]) == [tmp_path / "thing-1.0.jar"]


@pytest.mark.parametrize("content", [None, b"another"])
def test_a_folder_without_the_tested_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "thing-1.0.jar").write_bytes(content)
    with pytest.raises(ConfigError, match="jars --to"):
        artifacts.found([JAR])
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if content is None else [content])


def test_what_every_configuration_needs_is_copied_with_its_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thing-1.0.jar").write_bytes(CONTENT)
    monkeypatch.setattr(artifacts, "has_connector", lambda: True)
    monkeypatch.setattr(artifacts, "S3A_OF_SPARK_3", ())
    monkeypatch.setattr(artifacts, "CONNECTOR", JAR)
    into = tmp_path / "into" / "jars"
    assert artifacts.copied(into) == [into / "thing-1.0.jar", into / "credentials.jar"]
    own = hashlib.sha512((into / "credentials.jar").read_bytes()).hexdigest()
    assert (into / "SHA512SUMS").read_text() == f"{JAR.sha512}  thing-1.0.jar\n{own}  credentials.jar\n"


def test_without_a_connector_only_the_client_for_checkpoints_on_s3_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thing-1.0.jar").write_bytes(CONTENT)
    monkeypatch.setattr(artifacts, "has_connector", lambda: False)
    monkeypatch.setattr(artifacts, "S3A_OF_SPARK_4", (JAR,))
    into = tmp_path / "into"
    assert artifacts.copied(into) == [into / "thing-1.0.jar"]
    assert artifacts.jars() == []


def test_the_metrics_name_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "require_tested", lambda: None)
    for spark, found in (("3.5.9", ("3.5.9", "3.1.1.4")), ("4.3.0", ("4.3.0", "")), (None, ("", ""))):
        monkeypatch.setattr(installed, "version", partial(_version, spark))
        assert artifacts.versions()[1:3] == found


def _version(spark: str | None, _package: str) -> str:
    if spark is None:
        raise PackageNotFoundError
    return spark


@with_connector
@pytest.mark.slow  # javac
def test_our_jar_is_what_its_source_compiles_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert _content(artifacts.CREDENTIALS)["ledgerreaper/FileAuthentication.java"] == SOURCE.read_bytes()
    if shutil.which("javac") is None:
        pytest.skip("there is no javac")
    compiled(tmp_path / "credentials.jar")
    assert _content(tmp_path / "credentials.jar") == _content(artifacts.CREDENTIALS)


def _content(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as opened:
        return {name: opened.read(name) for name in opened.namelist()}
