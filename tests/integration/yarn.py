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

from streaming.spark.ivy import Artifact, fetch, java
from tests.integration.installation import BARE

_SOURCE = Path(__file__).parent.parent / "data" / "java" / "Yarn.java"
_SECONDS = 120.0
# Of the Hadoop version of PySpark, and the further jars that its servers load.
_JARS = (
    Artifact(
        organisation="org.apache.hadoop",
        name="hadoop-client-minicluster",
        revision="3.3.4",
        extension="jar",
        classifier="",
        size_bytes=37_033_043,
        sha512="547516ae52c85a2ea8a3a091cf522512bafbc0ee3e9e6f605b9da4f55728dff289fbeec650d665e21aa918e80b4e2b7ee8b197c3f6da157f9b16ae3c1d912f55",
    ),
    Artifact(
        organisation="junit",
        name="junit",
        revision="4.13.2",
        extension="jar",
        classifier="",
        size_bytes=384_581,
        sha512="a31b9950f929a7e5a600d89787ef40e42a8a8e2392e210d0c0f45b3572937670a18a524f1815508cd1152cd1eaa7275cb7430ba45c053be365c83c231bccd3f0",
    ),
    Artifact(
        organisation="org.hamcrest",
        name="hamcrest-core",
        revision="1.3",
        extension="jar",
        classifier="",
        size_bytes=45_024,
        sha512="e237ae735aac4fa5a7253ec693191f42ef7ddce384c11d29fbf605981c0be077d086757409acad53cb5b9e53d86a07cc428d459ff0f5b00d32a8cbbca390be49",
    ),
    Artifact(
        organisation="org.bouncycastle",
        name="bcprov-jdk15on",
        revision="1.60",
        extension="jar",
        classifier="",
        size_bytes=4_189_874,
        sha512="1c08d82349e333720c08fc467ff6489b14b8633a09019bf8bb5e6a3c426dfae6dcc415648fe1fb4a2da8631548f4947ab6ca1bc90b3190a05040f4d2eb271a10",
    ),
    Artifact(
        organisation="org.bouncycastle",
        name="bcpkix-jdk15on",
        revision="1.60",
        extension="jar",
        classifier="",
        size_bytes=796_532,
        sha512="d44cdac998a0d804ac452725c9e84b7d517c838cc6770cecdb214e1df50efc5ec2d067a91a5009f1316a5635cf7a1d213f2ee2a4e7497c66e1c7bbd5d2d4445f",
    ),
)


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
    classes = [*map(str, fetch(_JARS)), f"{Path(pyspark.__file__).parent}/jars/*"]
    # Java 17 must allow Hadoop 3.3 to define classes
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "--add-opens", "java.base/java.lang=ALL-UNNAMED"]
    with log.open("wb") as out:
        started = subprocess.Popen(
            [java(), *options, "-cp", ":".join(classes), str(_SOURCE), str(conf)],
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
