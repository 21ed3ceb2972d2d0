"""The installed PySpark decides how Pulsar is read."""

import pytest

from streaming.spark import installed


@pytest.mark.parametrize(("version", "has_connector"), [("3.5.9", True), ("4.2.1", False), ("4.3.0", False)])
def test_only_pyspark_3_5_has_the_connector(monkeypatch: pytest.MonkeyPatch, version: str, has_connector: bool) -> None:
    monkeypatch.setattr(installed, "version", lambda _package: version)
    assert installed.has_connector() is has_connector
