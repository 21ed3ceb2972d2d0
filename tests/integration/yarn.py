"""A real YARN on this machine: Hadoop's mini cluster, with a resource manager and a node manager in one JVM.

Its containers have Java and Python on their PATH, and nothing of ours.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from streaming.spark.installed import has_connector
from streaming.spark.ivy import fetch, java, pinned
from tests.integration.installation import BARE

_JAVA = Path(__file__).parent.parent / "data" / "java"
_SECONDS = 120.0


@dataclass(frozen=True)
class Yarn:
    """A running cluster."""

    conf: Path  # for HADOOP_CONF_DIR
    work: Path  # the node's folder

    def submit_environment(self) -> Mapping[str, str]:
        """Return the environment of spark-submit."""
        return _environment(self.work) | {"HADOOP_CONF_DIR": str(self.conf)}

    def attempts(self) -> set[str]:
        """Return the application masters: the first container of each attempt of an application."""
        return {folder.name for folder in self.work.glob("**/container_*_000001") if folder.is_dir()}

    def output(self) -> str:
        """Return the logs of all containers."""
        logs = [log for name in ("stdout", "stderr") for log in self.work.glob(f"**/container_*/{name}")]
        return "".join(f"{log.parent.name}:\n{log.read_text(errors='replace')}" for log in logs)


@contextmanager
def yarn(here: Path) -> Iterator[Yarn]:
    """Run a cluster in a folder."""
    conf, work, log = here / "conf", here / "work", here / "yarn.log"
    for folder in (conf, work):
        folder.mkdir(parents=True)
    jars = _JAVA / ("yarn-spark-3.txt" if has_connector() else "yarn-spark-4.txt")
    classes = [*map(str, fetch(pinned(jars))), f"{Path(pyspark.__file__).parent}/jars/*"]
    # Java 17 must allow Hadoop to define classes
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
    with log.open("wb") as out:
        started = subprocess.Popen(
            [java(), *options, "-cp", ":".join(classes), str(_JAVA / "Yarn.java"), str(conf)],
            env=_environment(work),
            cwd=work,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _SECONDS
        while "yarn is up" not in log.read_text(errors="replace"):
            assert started.poll() is None, log.read_text(errors="replace")[-5000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-5000:]
            time.sleep(0.2)
        yield Yarn(conf, work)
    finally:
        containers = psutil.Process(started.pid).children(recursive=True)  # each has its own session
        started.kill()
        started.wait()
        for container in containers:
            with suppress(psutil.NoSuchProcess):
                container.kill()


def _environment(home: Path) -> dict[str, str]:
    return BARE | {"HOME": str(home)} | {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}
