"""The installed PySpark decides how Pulsar is read; only tested ones are used."""

from importlib.metadata import PackageNotFoundError

import pytest

from streaming.errors import ConfigError
from streaming.spark import installed


@pytest.mark.parametrize(("version", "has_connector"), [("3.5.9", True), ("4.2.1", False), ("4.3.0", False)])
def test_only_pyspark_3_5_has_the_connector(monkeypatch: pytest.MonkeyPatch, version: str, has_connector: bool) -> None:
    monkeypatch.setattr(installed, "version", lambda _package: version)
    assert installed.has_connector() is has_connector


@pytest.mark.parametrize(
    ("version", "python", "is_tested"),
    [
        ("3.5.0", (3, 11), True),
        ("3.5.9", (3, 12), False),
        ("4.3.1", (3, 11), True),
        ("4.3.0", (3, 13), True),
        ("4.3.0", (3, 14), False),
        ("4.2.1", (3, 11), True),
        ("4.2.1", (3, 12), False),
        *((version, (3, 11), False) for version in ("3.4.4", "4.0.0", "4.1.4", "4.4.0", "35.0")),
    ],
)
def test_only_tested_combinations_of_pyspark_and_python_are_used(
    monkeypatch: pytest.MonkeyPatch, version: str, python: tuple[int, int], is_tested: bool
) -> None:
    monkeypatch.setattr(installed, "version", lambda _package: version)
    monkeypatch.setattr(installed, "sys", _Python((*python, 0)))
    if is_tested:
        installed.require_tested()
        return
    text = rf"PySpark {version} was not tested with Python {python[0]}\.{python[1]}: install ledger-reaper\[spark35\]"
    with pytest.raises(ConfigError, match=text):
        installed.require_tested()


class _Python:
    def __init__(self, version: tuple[int, int, int]) -> None:
        self.version_info = version


def test_an_environment_without_pyspark_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(_package: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(installed, "version", version)
    for question in (installed.spark_version, installed.require_tested, installed.has_connector):
        with pytest.raises(ConfigError, match=r"not installed: install ledger-reaper\[spark35\]"):
            question()
