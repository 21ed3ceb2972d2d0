from pathlib import Path

import pytest

from streaming.errors import ConfigError, ReaperError
from streaming.sandbox.rocketmq.broker_jars import artifacts, class_path, versions
from streaming.spark.ivy import verify

OF_55 = ("-5.5.0.jar", "-5.5.1.jar")


def test_the_versions_with_a_list_are_those_that_were_tested() -> None:
    assert versions() == ["5.3.3", "5.5.0", "5.5.1"]


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_a_list_names_every_part_of_one_version_and_each_jar_once(version: str) -> None:
    found = artifacts(version)

    own = {each.name: each.revision for each in found if each.organisation == "org.apache.rocketmq"}
    needed = ("namesrv", "broker", "store", "tools", "client", "remoting", "common")
    assert {own[f"rocketmq-{part}"] for part in needed} == {version}
    assert len({each.file_name for each in found}) == len(found) > 100
    assert all(len(each.sha512) == 128 and each.size_bytes > 0 for each in found)


def test_551_is_a_broker_of_551_whose_other_parts_are_of_550() -> None:
    """Maven finds only these parts of 5.5.1."""
    found = artifacts("5.5.1")

    own = {each.name: each.revision for each in found if each.file_name.removeprefix(each.name) in OF_55}
    of_551 = {name.removeprefix("rocketmq-") for name, revision in own.items() if revision == "5.5.1"}
    assert of_551 == {"broker", "common", "controller", "remoting", "store", "tiered-store"}
    assert own.keys() == {each.name for each in artifacts("5.5.0") if each.revision == "5.5.0"}
    assert len({each.file_name for each in found}) == len(found) > 100
    assert all(len(each.sha512) == 128 and each.size_bytes > 0 for each in found)


def test_a_jar_that_two_lists_name_has_one_checksum() -> None:
    pinned = {(each.file_name, each.sha512, each.size_bytes) for version in versions() for each in artifacts(version)}

    assert len({name for name, *_ in pinned}) == len(pinned)


def test_a_version_without_a_list_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match=r"5\.3\.3 or 5\.5\.0 or 5\.5\.1"):
        artifacts("4.9.8")


def test_jars_that_are_there_are_not_fetched_again_and_versions_do_not_mix(tmp_path: Path) -> None:
    folder = tmp_path / "rocketmq-5.3.3"
    folder.mkdir()
    for each in artifacts("5.3.3"):
        (folder / each.file_name).touch()

    assert class_path("5.3.3", cache=tmp_path) == f"{folder}/*"


def test_a_jar_with_another_checksum_is_removed(tmp_path: Path) -> None:
    jar = artifacts("5.3.3")[0]
    (tmp_path / jar.file_name).write_bytes(b"another file")

    with pytest.raises(ReaperError, match="SHA-512"):
        verify(tmp_path / jar.file_name, jar)

    assert list(tmp_path.iterdir()) == []
