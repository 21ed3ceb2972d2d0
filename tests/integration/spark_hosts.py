"""A Spark cluster of several hosts: a master on this machine, a worker on each host of its own, and drivers on others.

A worker's host has Spark, Java and Python, and nothing of ours. A driver's host has what deploy/install.sh and
deploy/dist.sh have built, and the configuration.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from tests.integration.hosts import PATH, Host, Hosts, until

_SPARK = "/opt/spark"
_WORK = "/opt/work"
_DEPLOY = "org.apache.spark.deploy"
_SECONDS = 60.0
# A host that is silent for so long has gone (60 s by default): tests wait for it.
WORKER_TIMEOUT_S = 12
_DAEMONS = f"-Dspark.worker.timeout={WORKER_TIMEOUT_S} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The same for executors and drivers, of each other (120 s by default).
SOONER = ("spark.network.timeout=30s", "spark.network.timeoutInterval=10s", "spark.executor.heartbeatInterval=5s")


@dataclass(slots=True)
class Driver:
    """A driver that runs on a host. process: on this machine, the shell that the line was pasted into."""

    host: Host
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(slots=True)
class SparkHosts:
    """Hosts with Spark on them. environment: what workers and drivers find in theirs, credentials perhaps."""

    hosts: Hosts
    here: Path
    installed: Path
    dist: Path
    environment: Mapping[str, str]
    stack: ExitStack
    cores: int = 1
    master: str = ""
    workers: dict[str, Host] = field(default_factory=dict)
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self, workers: Iterable[str]) -> None:
        """Start the master, and a worker on each new host of these names."""
        with socket.socket() as free:
            free.bind((self.hosts.address, 0))
            port = free.getsockname()[1]
        log = self.here / "master.log"
        with log.open("wb") as out:
            home = str(Path(pyspark.__file__).parent)
            master = subprocess.Popen(
                [
                    f"{home}/bin/spark-class",
                    f"{_DEPLOY}.master.Master",
                    *("--host", self.hosts.address, "--port", str(port), "--webui-port", "0"),
                ],
                env={"PATH": PATH} | self._of_a_daemon(home, self.hosts.address),
                cwd=self.here,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.stack.callback(_end, master)
        self.master = f"spark://{self.hosts.address}:{port}"
        until(lambda: "ALIVE" in log.read_text(), log, _SECONDS)
        for name in workers:
            self.add_worker(name)

    def add_worker(self, name: str) -> Host:
        """A new host joins the cluster."""
        spark = Path(pyspark.__file__).parent
        host = self.hosts.add(name, {spark: _SPARK, **of_java()})
        host.path(_WORK).mkdir(parents=True)
        # a folder that stands for a host knows no other place than its own
        home, work = (_SPARK, _WORK) if host.is_separate else (str(spark), str(host.path(_WORK)))
        log = self.here / f"{name}-worker.log"
        daemon = [f"{home}/bin/spark-class", f"{_DEPLOY}.worker.Worker", "--host", host.address, "--webui-port", "0"]
        own = self._of_a_daemon(home, host.address) | {
            "SPARK_WORKER_CORES": str(self.cores),
            "SPARK_WORKER_MEMORY": "4g",
            "SPARK_LOCAL_DIRS": f"{work}/local",
            "HOME": work,
        }
        self._daemons.append(host.start([*daemon, "--work-dir", work, self.master], log, {**own, **self.environment}))
        until(lambda: "registered with master" in log.read_text(), log, _SECONDS)
        self.workers[name] = host
        return host

    def add_driver(self, name: str, config: Path) -> Host:
        """A host for a driver, which can read the configuration's folder at its place."""
        lent = {each: str(each) for each in (self.installed, self.dist, config.parent)}
        return self.hosts.add(name, {**lent, **of_java(), **of_python()})

    def drive(self, host: Host, config: Path, *command: str, conf: Iterable[str] = ()) -> Driver:
        """Run a command of ours as `submit-args` says, on a driver's host."""
        log = self.here / f"{host.name}-driver.log"
        wanted = (*SOONER, "spark.executor.memory=1g", "spark.executor.cores=1", *conf)
        reaper = self.installed / "venv" / "bin" / "ledger-reaper"
        line = [
            *(str(reaper), "submit-args", "--config", str(config), "--master", self.master, "--dist", str(self.dist)),
            *("--driver-host", host.address, *(part for each in wanted for part in ("--conf", each))),
            *("--", *command),
        ]
        home = "/tmp" if host.is_separate else str(host.path("/tmp"))
        own = {"HOME": home, "LEDGER_REAPER_JARS": str(self.dist / "jars"), **self.environment}
        # the line is printed first, and pasted then, as an operator does it
        script = 'cd "$HOME"; line=$("$@") && eval "exec $line"'
        return Driver(host, host.start(["bash", "-c", script, "bash", *line], log, own), log)

    def unpacked(self, name: str) -> list[Path]:
        """The environments of ours that executors of a worker's host have unpacked."""
        return list(self.workers[name].path(_WORK).glob("app-*/*/environment/bin/python"))

    def said(self, name: str) -> str:
        """What executors of a worker's host have written to their logs."""
        logs = self.workers[name].path(_WORK).glob("app-*/*/stderr")
        return "".join(log.read_text(errors="replace") for log in logs)

    def executor_seconds(self) -> float:
        """CPU seconds that the executors that run, and their Python workers, have used up to now."""
        found: dict[int, float] = {}
        for daemon in self._daemons:
            for executor in psutil.Process(daemon.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if any("CoarseGrainedExecutorBackend" in word for word in executor.cmdline()):
                        for each in (executor, *executor.children(recursive=True)):
                            times = each.cpu_times()
                            found[each.pid] = times.user + times.system
        return sum(found.values())

    @staticmethod
    def _of_a_daemon(home: str, address: str) -> dict[str, str]:
        own = {"SPARK_HOME": home, "SPARK_LOCAL_IP": address, "SPARK_NO_DAEMONIZE": "1"}
        own |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _DAEMONS}
        return own | {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(_SECONDS)


def of_java() -> dict[Path, str]:
    return _elsewhere(Path(os.environ["JAVA_HOME"])) if "JAVA_HOME" in os.environ else {}


def of_python() -> dict[Path, str]:
    """The Python that the installation was made with, and that its virtual environment takes."""
    return _elsewhere(Path(sys.base_prefix))


def _elsewhere(folder: Path) -> dict[Path, str]:
    """A folder that a host has to be lent, as it is no part of the system."""
    return {} if folder.is_relative_to("/usr") else {folder: str(folder)}
