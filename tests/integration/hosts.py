"""Several hosts on this machine, for tests in which a host is cut off or dies.

1. A host of `Separate` is a network namespace on a bridge with its own file system (below a folder), host name and
   processes. It has only the system's folders (/usr, /etc …) and the lent folders, which it can't write to.
2. On a machine that can't create namespaces, a host of `Folders` is a folder with a loopback address. A process there
   is frozen instead of cut off; nothing hides this machine's files from it.

The hosts end with the `with` block, or with the process of the test.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from streaming.sandbox.rocketmq.network import free_network

PATH = "/usr/local/bin:/usr/bin:/bin"
_SPACES = ("--mount", "--uts", "--net", "--pid")
_ALONE = ["unshare", *_SPACES, "--fork", "--kill-child"]
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "etc", "dev", "sys")
_SECONDS = 30.0

# A host's first process creates the root directory, and then sleeps.
_BEGIN = """
set -e
root=$1 name=$2; shift 2
mount --make-rprivate /
mkdir -p "$root/proc" "$root/tmp" "$root/root"
chmod 1777 "$root/tmp"
for each in $SYSTEM; do
  if [ -L "/$each" ]; then cp -P "/$each" "$root/$each"
  elif [ -d "/$each" ]; then mkdir -p "$root/$each"; mount --rbind "/$each" "$root/$each"
  fi
done
mount -t proc proc "$root/proc"
mount --bind "$root.names" "$root/etc/hosts"
for each in "$@"; do
  from=${each%%:*} to=${each#*:}
  mkdir -p "$root$to"
  mount --bind "$from" "$root$to"
  mount -o remount,bind,ro "$root$to"
done
hostname "$name"
touch "$root/tmp/ready"
exec chroot "$root" sleep infinity
"""


class Host(Protocol):
    """A host, or a folder that replaces a host."""

    name: str
    address: str
    is_separate: bool  # the host has its own file system

    def path(self, inside: str) -> Path:
        """Return the path of the host's file on this machine."""
        ...

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command on the host; the log is on this machine."""
        ...

    def cut(self) -> None:
        """Cut the host off the network; its processes continue."""
        ...

    def join(self) -> None:
        """Connect the host again."""
        ...

    def kill(self) -> None:
        """Cut the host off and kill its processes, as after a power failure."""
        ...


class Hosts(Protocol):
    """Creates hosts."""

    address: str  # at which the hosts reach this machine

    def add(self, name: str, lent: Mapping[Path, str]) -> Host:
        """Create a host.

        Args:
            name: of the host.
            lent: folders of this machine that the host may read, and their paths on the host.
        """
        ...


@dataclass(slots=True)
class _Separate:
    """A host with its own namespaces."""

    name: str
    address: str
    _root: Path
    _cable: str
    _first: int  # the process that keeps all its namespaces alive
    is_separate: bool = True

    def path(self, inside: str) -> Path:
        return self._root / inside.lstrip("/")

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        inside = ["nsenter", "--target", str(self._first), *_SPACES, "--root", "--wd"]
        return _start([*inside, *_with(environment), *command], log)

    def cut(self) -> None:
        _run("ip", "link", "set", self._cable, "down")

    def join(self) -> None:
        _run("ip", "link", "set", self._cable, "up")

    def kill(self) -> None:
        self.cut()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._first, signal.SIGKILL)


@dataclass(slots=True)
class Separate:
    """Creates hosts on a bridge. Several bridges can exist at once: names and network are chosen at random."""

    address: str
    _bridge: str
    _here: Path
    _stack: contextlib.ExitStack
    _count: int = 1

    def add(self, name: str, lent: Mapping[Path, str]) -> Host:
        self._count += 1
        address = f"{self.address.rpartition('.')[0]}.{self._count}"
        root, cable = self._here / name, f"{self._bridge}h{self._count}"
        root.mkdir()
        Path(f"{root}.names").write_text(f"127.0.0.1 localhost\n{address} {name}\n{self.address} outside\n")
        binds = [f"{folder}:{inside}" for folder, inside in lent.items()]
        command = [*_ALONE, "sh", "-c", _BEGIN, "sh", str(root), name, *binds]
        log = Path(f"{root}.log")
        started = _start(command, log, os.environ | {"SYSTEM": " ".join(_SYSTEM)})
        self._stack.callback(_end, started)
        first = _first_of(started, log)
        peer = ("type", "veth", "peer", "name", "eth0", "netns", str(first))
        _run("ip", "link", "add", cable, *peer)
        self._stack.callback(_run_unchecked, "ip", "link", "delete", cable)
        _run("ip", "link", "set", cable, "master", self._bridge, "up")
        inside = ("nsenter", "--target", str(first), "--net", "ip")
        _run(*inside, "address", "add", f"{address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _run(*inside, "link", "set", link, "up")
        until((root / "tmp" / "ready").exists, log)
        return _Separate(name, address, root, cable, first)


@contextlib.contextmanager
def separate(here: Path) -> Iterator[Separate]:
    """Create a bridge for hosts with files in `here`."""
    with contextlib.ExitStack() as stack:
        bridge, address = f"lr{secrets.token_hex(3)}", f"{free_network()}.1"
        _run("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(_run_unchecked, "ip", "link", "delete", bridge)
        _run("ip", "address", "add", f"{address}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        yield Separate(address, bridge, here, stack)


def why_not_separate() -> str:
    """Return why this machine can't create separate hosts; "" if it can."""
    for tool in ("ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            return f"there is no `{tool}` here"
    bridge = f"lr{secrets.token_hex(3)}"
    for command in ([*_ALONE, "true"], ["ip", "link", "add", bridge, "type", "bridge"]):
        tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if tried.returncode:
            return f"`{' '.join(command)}` reports: {tried.stderr.strip()}"
    _run_unchecked("ip", "link", "delete", bridge)
    return ""


@dataclass(slots=True)
class _Folder:
    """A folder, a loopback address, and the processes that were started there."""

    name: str
    address: str
    _root: Path
    is_separate: bool = False
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def path(self, inside: str) -> Path:
        return self._root / inside.lstrip("/")

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self.path("/tmp").mkdir(exist_ok=True)
        self._started.append(_start([*_with(environment), *command], log, folder=self._root))
        return self._started[-1]

    def cut(self) -> None:
        self._send(signal.SIGSTOP)

    def join(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for process in self._started:
            with contextlib.suppress(psutil.Error):
                for member in _with_children(psutil.Process(process.pid)):
                    with contextlib.suppress(psutil.Error):
                        member.send_signal(number)


@dataclass(slots=True)
class Folders:
    """Creates folders that replace hosts; processes there find lent folders at their paths on this machine."""

    address: str
    _here: Path
    _stack: contextlib.ExitStack
    _count: int = 1

    def add(self, name: str, lent: Mapping[Path, str]) -> Host:
        self._count += 1
        root = self._here / name
        root.mkdir()
        host = _Folder(name, f"127.0.0.{self._count}", root)
        self._stack.callback(host.kill)
        return host


@contextlib.contextmanager
def folders(here: Path) -> Iterator[Folders]:
    """Create folders below `here` that replace hosts."""
    with contextlib.ExitStack() as stack:
        yield Folders("127.0.0.1", here, stack)


def _start(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a new process group; it dies with this process."""
    with log.open("ab") as out:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else [*command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            cwd=folder,
        )


def _with(environment: Mapping[str, str]) -> list[str]:
    return ["env", "-i", f"PATH={PATH}", "LANG=C.UTF-8", *(f"{key}={value}" for key, value in environment.items())]


def _first_of(started: subprocess.Popen[bytes], log: Path) -> int:
    """Return the first process in the new namespaces; its parent is unshare, outside of them."""
    children: list[psutil.Process] = []

    def has_started() -> bool:
        children[:] = psutil.Process(started.pid).children()
        return bool(children)

    until(has_started, log)
    return children[0].pid


def _end(started: subprocess.Popen[bytes]) -> None:
    started.kill()  # --kill-child ends all processes inside
    started.wait(_SECONDS)


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def until(holds: Callable[[], object], log: Path, seconds: float = _SECONDS) -> None:
    """Wait for a condition; fail with the end of the log."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-5000:]
        time.sleep(0.2)


def _run(*command: str) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    assert completed.returncode == 0, f"{' '.join(command)}: {completed.stderr}"


def _run_unchecked(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)
