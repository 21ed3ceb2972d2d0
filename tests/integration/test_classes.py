"""The archive of Java classes: the first start that processes requests creates it, and the next start loads it."""

import time
from pathlib import Path

import pytest

from streaming.sandbox.cluster import Cluster
from streaming.spark.classes import FOLDER
from streaming.spark.jars import jars
from tests.integration.conftest import Deploy, Deployment

pytestmark = [pytest.mark.cluster, pytest.mark.long]

_LATEST_SECONDS = 900


def _loads(service: Deployment, loaded: Path) -> str:
    """Let the service process a request; return the source from which its JVM loaded the class of Spark's context."""
    service.request([b"no request"])
    service.run("run", "--until-idle")
    (line,) = [line for line in loaded.read_text().splitlines() if " org.apache.spark.SparkContext source: " in line]
    return line.partition("source: ")[2]


def test_the_second_start_loads_the_classes_of_the_first_from_an_archive(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, loaded = tmp_path / "cache", tmp_path / "loaded"
    (cache / "ledger-reaper").mkdir(parents=True)
    for jar in jars():
        (cache / "ledger-reaper" / jar.name).symlink_to(jar)
    service = deploy()
    lines = service.config.read_text().splitlines()
    options = f'java_options = "-Xlog:class+load=info:file={loaded}"'
    service.config.write_text("\n".join(options if line.startswith("java_options") else line for line in lines))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    assert "shared objects file" not in _loads(service, loaded)

    folder, deadline_s = cache / "ledger-reaper" / FOLDER, time.monotonic() + _LATEST_SECONDS
    while not list(folder.glob("*.jsa")) or list(folder.glob("making-*")):
        assert time.monotonic() < deadline_s
        assert not list(folder.glob("*.none"))
        time.sleep(1)

    assert "shared objects file" in _loads(service, loaded)
