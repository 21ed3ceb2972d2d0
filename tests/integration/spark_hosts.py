"""A Spark cluster of several hosts: a master on this machine, workers and drivers on hosts of their own.

A worker's host has only Spark, Java and Python. A driver's host has the output of deploy/install.sh and
deploy/dist.sh, and the configuration.
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
# After this silence a host counts as lost (60 s by default): tests wait for it.
WORKER_TIMEOUT_S = 12
_DAEMONS = f"-Dspark.worker.timeout={WORKER_TIMEOUT_S} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The same between executors and drivers (120 s by default).
SOONER = ("spark.network.timeout=30s", "spark.network.timeoutInterval=10s", "spark.executor.heartbeatInterval=5s")


@dataclass(slots=True)
class Driver:
    """A driver on a host."""

    host: Host
    process: subprocess.Popen[bytes]  # the shell that executes the printed line
    log: Path


@dataclass(slots=True)
class SparkHosts:
    """Hosts with Spark."""

    hosts: Hosts
    here: Path
    installed: Path
    dist: Path
    environment: Mapping[str, str]  # of workers and drivers, such as credentials
    stack: ExitStack
    cores: int = 1
    master: str = ""
    workers: dict[str, Host] = field(default_factory=dict)
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, workers: Iterable[str]) -> None:
        """Start the master, and a worker on a new host for each name."""
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
                env={"PATH": PATH} | self._daemon_environment(home, self.hosts.address),
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
        """Add a new host to the cluster."""
        spark = Path(pyspark.__file__).parent
        host = self.hosts.add(name, {spark: _SPARK, **of_java()})
        host.path(_WORK).mkdir(parents=True)
        # a folder in place of a host sees the paths of this machine
        home, work = (_SPARK, _WORK) if host.is_separate else (str(spark), str(host.path(_WORK)))
        log = self.here / f"{name}-worker.log"
        daemon = [f"{home}/bin/spark-class", f"{_DEPLOY}.worker.Worker", "--host", host.address, "--webui-port", "0"]
        own = self._daemon_environment(home, host.address) | {
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
        """Add a host for a driver, which reads the configuration's folder at the same path."""
        lent = {folder: str(folder) for folder in (self.installed, self.dist, config.parent)}
        return self.hosts.add(name, {**lent, **of_java(), **of_python()})

    def drive(self, host: Host, config: Path, *command: str, conf: Iterable[str] = ()) -> Driver:
        """Run a command on a driver's host through the line of `submit-args`."""
        log = self.here / f"{host.name}-driver.log"
        options = (*SOONER, "spark.executor.memory=1g", "spark.executor.cores=1", *conf)
        reaper = self.installed / "venv" / "bin" / "ledger-reaper"
        line = [
            *(str(reaper), "submit-args", "--config", str(config), "--master", self.master, "--dist", str(self.dist)),
            *("--driver-host", host.address, *(word for option in options for word in ("--conf", option))),
            *("--", *command),
        ]
        home = "/tmp" if host.is_separate else str(host.path("/tmp"))
        own = {"HOME": home, "LEDGER_REAPER_JARS": str(self.dist / "jars"), **self.environment}
        # the line is printed and then executed, as by an operator
        script = 'cd "$HOME"; line=$("$@") && eval "exec $line"'
        return Driver(host, host.start(["bash", "-c", script, "bash", *line], log, own), log)

    def unpacked(self, name: str) -> list[Path]:
        """Return our environments that executors of a worker's host have unpacked."""
        return list(self.workers[name].path(_WORK).glob("app-*/*/environment/bin/python"))

    def output(self, name: str) -> str:
        """Return the logs of the executors of a worker's host."""
        logs = self.workers[name].path(_WORK).glob("app-*/*/stderr")
        return "".join(log.read_text(errors="replace") for log in logs)

    def executor_seconds(self) -> float:
        """Return the CPU seconds that the running executors and their Python workers have used."""
        seconds: dict[int, float] = {}
        for daemon in self._daemons:
            for executor in psutil.Process(daemon.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if any("CoarseGrainedExecutorBackend" in word for word in executor.cmdline()):
                        for process in (executor, *executor.children(recursive=True)):
                            times = process.cpu_times()
                            seconds[process.pid] = times.user + times.system
        return sum(seconds.values())

    @staticmethod
    def _daemon_environment(home: str, address: str) -> dict[str, str]:
        own = {"SPARK_HOME": home, "SPARK_LOCAL_IP": address, "SPARK_NO_DAEMONIZE": "1"}
        own |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _DAEMONS}
        return own | {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(_SECONDS)


def of_java() -> dict[Path, str]:
    return _elsewhere(Path(os.environ["JAVA_HOME"])) if "JAVA_HOME" in os.environ else {}


def of_python() -> dict[Path, str]:
    """Return the folder of the Python that the installation's virtual environment uses."""
    return _elsewhere(Path(sys.base_prefix))


def _elsewhere(folder: Path) -> dict[Path, str]:
    """Return a folder outside of the system's folders, which a host must be lent."""
    return {} if folder.is_relative_to("/usr") else {folder: str(folder)}
