"""A real ZooKeeper, the one in PySpark's jars (3.6.3), alone on a free port; up in about a second."""

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

NETTY = ("buffer", "codec", "common", "handler", "resolver", "transport")  # what a server with TLS needs
NATIVE = ("transport-classes-epoll", "transport-native-unix-common")
PLAIN = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
JARS = (*PLAIN, *(f"netty-{each}" for each in (*NETTY, *NATIVE)))
START_SECONDS = 20.0


@dataclass
class ZooKeeperServer:
    """One server process; its data outlive stop() and start()."""

    port: int
    home: Path
    jvm_options: tuple[str, ...] = ()
    config: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        config = self.home / "zoo.cfg"
        config.write_text(
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\ndataDir={self.home / 'data'}\ntickTime=500\n"
            "maxSessionTimeout=60000\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
            f"{self.config}"
        )
        self.process = subprocess.Popen(
            # One compiler tier: up in half the time. No fsync: what it wrote survives its kill all the same.
            [
                *("java", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dzookeeper.forceSync=no", *self.jvm_options),
                *("-cp", _class_path(), "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)),
            ],
            stdout=(self.home / "log").open("ab"),
            stderr=subprocess.STDOUT,
        )
        self._await_answer()

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(10)
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    connection.sendall(b"srvr")  # ruok is answered before sessions are
                    if b"Mode: standalone" in connection.makefile("rb").read():
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise TimeoutError(f"ZooKeeper did not start; see {self.home / 'log'}")


@contextmanager
def zookeeper_running(home: Path, *jvm_options: str, config: str = "") -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(free_port(), home, jvm_options, config)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _class_path() -> str:
    spec = find_spec("pyspark")
    assert spec is not None, f"PySpark is not installed in {sys.prefix}"
    assert spec.origin is not None
    jars = Path(spec.origin).parent / "jars"
    return ":".join(
        str(next(jars.glob(f"{name}-[0-9]*.jar"))) for name in (*JARS, *(f"netty-{each}" for each in NETTY))
    )
