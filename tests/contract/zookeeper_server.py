"""A real ZooKeeper from PySpark's jars (3.6.3, or 3.9.5 of PySpark 4): a single server, or an ensemble of three."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
START_SECONDS = 20.0


@dataclass
class ZooKeeperServer:
    """A server process, whose data survive stop() and start()."""

    port: int
    home: Path
    jvm_options: tuple[str, ...] = ()
    config: str = ""
    main: str = "ZooKeeperServerMain"
    process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.begin()
        self.await_answer()

    def begin(self) -> None:
        """Start the server without waiting until it serves: a member of an ensemble serves only with others."""
        config = self.home / "zoo.cfg"
        config.write_text(
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\ndataDir={self.home / 'data'}\ntickTime=500\n"
            "maxSessionTimeout=60000\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
            f"{self.config}"
        )
        self.process = subprocess.Popen(
            # One compiler tier starts in half the time. Without fsync, writes still survive a kill of the process.
            [
                *("java", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dzookeeper.forceSync=no", *self.jvm_options),
                *("-cp", _class_path(), f"org.apache.zookeeper.server.{self.main}", str(config)),
            ],
            stdout=(self.home / "log").open("ab"),
            stderr=subprocess.STDOUT,
        )

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(10)
            self.process = None

    def freeze(self) -> None:
        """Send SIGSTOP and wait until all threads have stopped, which takes a moment on a busy machine."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        while any(_state(task) != "T" for task in Path(f"/proc/{self.process.pid}/task").iterdir()):
            time.sleep(0.001)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    @property
    def mode(self) -> str:
        """Return its mode: standalone, leader or follower; "" while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"srvr")  # ruok is answered before sessions are
                _, found, rest = connection.makefile("rb").read().partition(b"Mode: ")
        except OSError:
            return ""
        return rest.partition(b"\n")[0].decode() if found else ""

    def await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.mode:
                return
            time.sleep(0.02)
        raise TimeoutError(f"ZooKeeper did not start; see {self.home / 'log'}")


@contextmanager
def zookeeper_running(home: Path, *jvm_options: str, config: str = "") -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(free_port(), home, jvm_options, config)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def ensemble_running(home: Path, count: int = 3) -> Iterator[list[ZooKeeperServer]]:
    """Run servers that elect a leader; a server that is silent for ten seconds leaves the ensemble."""
    members = "".join(f"server.{number}=127.0.0.1:{free_port()}:{free_port()}\n" for number in range(1, count + 1))
    servers = []
    for number in range(1, count + 1):
        folder = home / str(number)
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "myid").write_text(str(number))
        config = f"initLimit=20\nsyncLimit=20\n{members}"
        servers.append(ZooKeeperServer(free_port(), folder, config=config, main="quorum.QuorumPeerMain"))
    try:
        for server in servers:
            server.begin()
        for server in servers:
            server.await_answer()
        yield servers
    finally:
        for server in servers:
            server.stop()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _state(task: Path) -> str:
    """Return the state of a thread, which /proc contains after its name in brackets: T if it is stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def _class_path() -> str:
    spec = find_spec("pyspark")
    assert spec is not None, f"PySpark is not installed in {sys.prefix}"
    assert spec.origin is not None
    jars = Path(spec.origin).parent / "jars"
    found = [next(jars.glob(f"{name}-[0-9]*.jar")) for name in JARS]
    found += sorted(jars.glob("netty-*.jar"))  # for a server with TLS
    return ":".join(map(str, found))
