"""The output of deploy/install.sh and `make dist`, and the service on a Spark cluster without any other of our files.

installation.py runs the steps of deploy/Dockerfile. The cluster is a standalone Spark cluster on this machine; its
worker runs in a separate folder, with a Python that has none of our packages.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
import pyspark
import pytest
from deltalake import DeltaTable

from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.ledger_list import every_ledger
from streaming.spark.installed import has_connector
from tests.integration.conftest import Deploy, killed_at_the_end, leak, new_topic, payload
from tests.integration.installation import BARE, run

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_an_installation_runs_without_the_checkout_and_fetches_nothing(installed: Path, tmp_path: Path) -> None:
    for folder in (installed, installed / "venv" / "lib" / "python3.11" / "site-packages"):
        assert not any("__editable__" in file.name for file in folder.iterdir())
    run("sha512sum", "--check", "--strict", "SHA512SUMS", cwd=installed / "jars")
    home = tmp_path / "home"
    home.mkdir()
    without_home = BARE | {"HOME": str(home), "LEDGER_REAPER_JARS": str(installed / "jars")}
    reaper = installed / "venv" / "bin" / "ledger-reaper"
    assert "ledger-reaper 0." in run(reaper, "--version", env=without_home, cwd=tmp_path)
    (tmp_path / "config.toml").write_text('[checkpoints]\ndir = "s3a://bucket/folder"\n')
    jars = run(reaper, "jars", "--config", "config.toml", env=without_home, cwd=tmp_path).strip().split(",")
    kept = sorted(str(jar) for jar in (installed / "jars").glob("*.jar") if jar.name != "credentials.jar")
    assert sorted(jars) == kept
    with_password = tmp_path / "password.toml"
    with_password.write_text('[pulsar]\nbasic_file = "basic"\n')
    own = run(reaper, "jars", "--config", with_password, env=without_home, cwd=tmp_path).strip().split(",")[-1]
    if has_connector():
        assert Path(own).read_bytes() == (installed / "jars" / "credentials.jar").read_bytes()
    else:
        assert own == "", "our source reads credentials in Python"
    assert list(home.iterdir()) == []


def test_the_packed_environment_uses_the_python_of_the_machine(dist: Path, tmp_path: Path) -> None:
    run("sha512sum", "--check", "--strict", "SHA512SUMS", cwd=dist)
    run("sha512sum", "--check", "--strict", "SHA512SUMS", cwd=dist / "jars")
    with tarfile.open(dist / "environment.tar.gz") as archive:
        assert [name for name in archive.getnames() if "/pyspark/jars/" in name] == []
        archive.extractall(tmp_path / "here", filter="fully_trusted")
    moved = (tmp_path / "here").rename(tmp_path / "there")
    code = "import sys, streaming.sweep.task as t; print(sys.version_info[:2], t.__file__)"
    output = run(moved / "bin" / "python", "-c", code, env=BARE, cwd=tmp_path)
    assert output.split() == ["(3,", "11)", str(moved / "lib/python3.11/site-packages/streaming/sweep/task.py")]
    elsewhere = BARE | {"LEDGER_REAPER_PYTHON": getattr(sys, "_base_executable", sys.executable)}
    assert run(moved / "bin" / "python", "-c", code, env=elsewhere, cwd=tmp_path) == output


@dataclass(frozen=True)
class Standalone:
    """A standalone Spark cluster with one worker."""

    master: str
    work: Path
    worker: int


@contextmanager
def standalone(here: Path) -> Iterator[Standalone]:
    """Run a standalone cluster from a copy of PySpark's Spark."""
    home, work = here / "spark", here / "work"
    shutil.copytree(Path(pyspark.__file__).parent, home, copy_function=os.link)
    work.mkdir(parents=True)
    own = BARE | {"SPARK_HOME": str(home), "HOME": str(work), "SPARK_LOCAL_DIRS": str(work / "local")}
    own |= {"SPARK_WORKER_CORES": "2", "SPARK_WORKER_MEMORY": "2g"}
    own |= {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}
    refused = subprocess.run(
        ["python3.11", "-c", "import streaming"], env=own, cwd=work, capture_output=True, check=False
    )
    assert b"No module named 'streaming'" in refused.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    starts = (
        [f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        [f"{package}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(work), master],
    )
    with ExitStack() as stack:
        for number, start in enumerate(starts):
            log = here / f"{number}.log"
            with log.open("wb") as out:
                started = subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *start],
                    env=own,
                    cwd=work,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            stack.enter_context(killed_at_the_end(started))
            _until(lambda log=log: "ALIVE" in log.read_text() or "registered with master" in log.read_text(), log)
        yield Standalone(master, work, started.pid)


def _until(holds, log: Path) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.1)


class Driver:
    """Runs lines of submit-args in an environment without our files, and records everything that others can see."""

    def __init__(self, installed: Path, dist: Path, spark: Standalone, here: Path) -> None:
        self._reaper = installed / "venv" / "bin" / "ledger-reaper"
        self._dist, self._spark, self._here = dist, spark, here
        self._events = here / "events"
        self._events.mkdir()
        self._env = BARE | {"HOME": str(here)} | {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}
        self.log = here / "run.log"
        self._seen: list[str] = []

    def line(self, config: Path, *command: str) -> str:
        """Return the line that `ledger-reaper submit-args` prints."""
        line = run(
            *(self._reaper, "submit-args", "--config", config, "--master", self._spark.master, "--dist", self._dist),
            *(
                "--driver-host",
                "127.0.0.2",
                "--conf",
                "spark.executor.memory=1g",
                "--conf",
                "spark.eventLog.enabled=true",
                "--conf",
                "spark.eventLog.compress=false",
            ),
            *("--conf", f"spark.eventLog.dir={self._events}", "--", *command),
            env=self._env,
            cwd=self._here,
        )
        assert line.count("\n") == 1
        self._seen.append(line)
        return line

    def run(self, line: str) -> None:
        """Execute the line in a shell."""
        with self.log.open("wb") as out:
            started = subprocess.Popen(
                ["bash", "-c", line],
                env=self._env,
                cwd=self._here,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with killed_at_the_end(started):
            deadline = time.monotonic() + 300
            while started.poll() is None and time.monotonic() < deadline:
                self._seen += [*_command_lines(self._spark.worker), *_command_lines(started.pid)]
                time.sleep(0.5)
        assert started.returncode == 0, self.log.read_text()[-6000:]

    def seen(self) -> str:
        """Return the texts of Spark's UI, the list of processes and the log."""
        events = (file.read_text() for file in self._events.rglob("*") if file.is_file())
        return "".join([*events, *self._seen, self.log.read_text()])


JOB = """
import sys
from pathlib import Path
import pyarrow as pa
from deltalake import DeltaTable
from streaming.config.load import load
from streaming.spark.session import Jars, end_jvm, start
from streaming.state.delta import commits

def where(batches):
    import sys, streaming
    for batch in batches:
        names = [f"{sys.executable} {streaming.__file__}"] * batch.num_rows
        yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(names)], names=["id", "name"])

spark = start(load(Path(sys.argv[1])), Jars(), with_streams=False)
schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
table = DeltaTable.create(sys.argv[2], schema)
files = commits.written(spark.range(1000).repartition(2), sys.argv[2], schema, where)
commits.commit(table, files, schema, "chunks", 1)
print("host", spark.sparkContext.getConf().get("spark.driver.host"))
spark.stop()
end_jvm(0)
"""


def test_workers_write_a_table_of_state_with_only_python_and_java(installed: Path, dist: Path, tmp_path: Path) -> None:
    config, script, table = tmp_path / "config.toml", tmp_path / "job.py", tmp_path / "table"
    config.write_text(f'[state]\ndir = "{tmp_path}/state"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    script.write_text(JOB)
    with standalone(tmp_path / "cluster") as spark:
        driver = Driver(installed, dist, spark, tmp_path)
        words = shlex.split(driver.line(config))
        application = next(number for number, word in enumerate(words) if word.endswith("/streaming/__main__.py"))
        driver.run(shlex.join([*words[:application], str(script), str(config), str(table)]))
        assert "host 127.0.0.2" in driver.log.read_text()
        rows = DeltaTable(str(table)).to_pyarrow_table()
        assert sorted(rows["id"].to_pylist()) == list(range(1000))
        (name,) = set(rows["name"].to_pylist())
        python, package = name.split()
        assert python not in (sys.executable, str(installed / "venv" / "bin" / "python"))
        assert package.startswith(str(spark.work)), package
        assert package.endswith("/environment/lib/python3.11/site-packages/streaming/__init__.py")
        assert "streaming.spark.worker_daemon" in driver.seen()


def test_the_service_runs_on_workers_with_only_python_and_java(
    installed: Path, dist: Path, cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    service = deploy()
    topic = new_topic("standalone")
    topics.fill(cluster, topic, 2, ["s"])
    leaked = leak(cluster, topic, 40)
    used = topics.data_ledgers(cluster, topic)[0]
    service.request([b"no request", payload(topic, used), *(payload(topic, ledger_id) for ledger_id in leaked)])
    secret = f"secret{uuid4().hex}"
    credentials = tmp_path / "credentials"
    credentials.write_text(f"[default]\naws_access_key_id = id\naws_secret_access_key = {secret}\n")
    config = service.config.read_text().replace(f"{cluster.home.root}/aws-credentials", str(credentials))
    # this broker needs none, and takes any: so the workers' readers need it
    password = tmp_path / "basic"
    password.write_text(f"reaper:{secret}\n")
    service.config.write_text(config.replace("[pulsar]", f'[pulsar]\nbasic_file = "{password}"'))

    with standalone(tmp_path / "cluster") as spark:
        driver = Driver(installed, dist, spark, tmp_path)
        driver.run(driver.line(service.config, "run", "--until-idle"))

    assert [rows for rows in service.final().values() if len(rows) != 1] == []
    assert Counter(outcome for outcome, _ in service.outcomes().elements()) == {"DELETED": 40, "DEAD_LETTER": 2}
    assert set(leaked).isdisjoint(every_ledger(cluster))
    assert len(list(spark.work.glob("app-*/*/environment/bin/python"))) == 1
    seen = driver.seen()
    assert "spark.submit.deployMode" in seen
    assert "streaming.spark.worker_daemon" in seen
    assert secret not in seen + driver.log.read_text()
    assert "fallback" not in driver.log.read_text()


def _command_lines(process: int) -> list[str]:
    commands = []
    for child in psutil.Process(process).children(recursive=True):
        try:
            commands.append(" ".join(child.cmdline()))
        except psutil.Error:
            continue
    return commands
