import io
import tarfile
from pathlib import Path

import pytest

from streaming.errors import ConfigError
from streaming.sandbox.cluster import _version
from streaming.sandbox.home import Spec
from streaming.sandbox.parts.distribution import PULSAR_VERSION, artifacts, pulsar_home, supports_change, versions

FROM_ARCHIVES = ("3.3.6", "4.0.4", "4.0.8")
OFFLOADERS = {"4.0.4": "3.3.6"}  # offloaders of another version


def test_new_clusters_run_a_version_that_is_pinned() -> None:
    assert PULSAR_VERSION in versions()
    assert Spec({}).pulsar == PULSAR_VERSION


@pytest.mark.parametrize("version", versions())
def test_a_list_names_each_file_once_with_its_checksum(version: str) -> None:
    found = artifacts(version)

    assert len({each.file_name for each in found}) == len(found)
    assert all(len(each.sha512) == 128 and each.size_bytes > 0 for each in found)
    of_pulsar = [each for each in found if each.organisation == "org.apache.pulsar"]
    assert {each.revision for each in of_pulsar if "offloader" not in each.name} == {version}
    assert {each.revision for each in of_pulsar if "offloader" in each.name} <= {OFFLOADERS.get(version, version)}
    assert {each.extension for each in found} == {"tar.gz" if version in FROM_ARCHIVES else "jar"}


@pytest.mark.parametrize("version", [version for version in versions() if version not in FROM_ARCHIVES])
def test_a_list_of_jars_contains_what_the_scripts_start(version: str) -> None:
    names = {each.name for each in artifacts(version)}

    # simpleclient_log4j2 has the appender that log4j2.yaml names
    assert names >= {"pulsar-broker", "bookkeeper-server", "zookeeper-jute", "log4j-slf4j2-impl", "simpleclient_log4j2"}
    assert names >= {"vertx-http-server", "prometheus-metrics-provider"}


def test_a_version_without_a_list_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match=r"no files are pinned for Pulsar 2\.0\.0: take 3\.3\.6 or .*4\.0\.8"):
        pulsar_home("2.0.0")


@pytest.mark.parametrize(
    ("before", "after", "is_supported"),
    [
        pytest.param("4.0.8", "4.2.4", True, id="within a major version"),
        pytest.param("4.2.4", "4.0.8", True, id="and back"),
        pytest.param("4.2.4", "5.0.0-M1", True, id="to the next major version"),
        pytest.param("5.0.0-M1", "4.0.8", True, id="back to the major version before"),
        pytest.param("3.3.6", "5.0.0-M1", False, id="two major versions up"),
        pytest.param("5.0.0-M1", "3.3.6", False, id="two major versions down"),
    ],
)
def test_a_major_version_changes_by_one_at_a_time(before: str, after: str, is_supported: bool) -> None:
    assert supports_change(before, after) is is_supported


def test_a_cluster_keeps_its_version_and_refuses_a_change_that_pulsar_does_not_support() -> None:
    saved = Spec({}, pulsar="5.0.0-M1")

    assert _version(None, None) == PULSAR_VERSION
    assert _version(None, "5.0.0-M1") == _version(saved, None) == "5.0.0-M1"
    assert _version(saved, "4.2.4") == "4.2.4"
    with pytest.raises(ConfigError, match=r"ran Pulsar 5\.0\.0-M1, .* no change from there to 3\.3\.6"):
        _version(saved, "3.3.6")


def _archive(file: Path, member: str) -> None:
    with tarfile.open(file, "w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))


def test_archives_are_unpacked_once_with_the_offloaders_beside_the_server(tmp_path: Path) -> None:
    server, offloaders = artifacts("4.0.8")
    _archive(tmp_path / server.file_name, "apache-pulsar-4.0.8/bin/pulsar")
    _archive(tmp_path / offloaders.file_name, "apache-pulsar-offloaders-4.0.8/offloaders/a.nar")

    home = pulsar_home(cache=tmp_path)

    assert {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()} == {
        "bin/pulsar",
        "offloaders/a.nar",
    }
    (tmp_path / server.file_name).unlink()
    assert pulsar_home(cache=tmp_path) == home
    assert {path.name for path in tmp_path.iterdir()} >= {home.name, "unpack.lock"}
