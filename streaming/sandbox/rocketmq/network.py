"""A network namespace for RocketMQ where this machine lets us make one: the broker's HA port listens on every address.

The namespace lives as long as a process that does nothing but hold it, and its cable (a veth pair, by which this
machine and nobody else reaches it) goes with it. A namespace with `lo` alone would not do: a producer hung there.
"""

import contextlib
import secrets
import socket
import subprocess
import time
from pathlib import Path

import psutil

from streaming.errors import ReaperError
from streaming.sandbox import process
from streaming.sandbox.home import HOST

_SECONDS = 15.0
_TRIES = 20


def make(record: Path, log: Path, cwd: Path) -> str:
    """Make a namespace, held by the process of `record`; returns the address in it, or loopback where none is made."""
    address = f"{free_network()}.2"
    process.start(["unshare", "--net", "sleep", "infinity"], env={"PATH": _PATH}, log=log, record=record, cwd=cwd)
    try:
        _connect(_held(record), address)
    except (ReaperError, OSError, subprocess.SubprocessError) as error:
        process.stop(record, grace_seconds=_SECONDS)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"no network namespace: {error}\n")
        return HOST
    return address


def inside(record: Path) -> list[str]:
    """What goes before a command that is to run in the namespace; nothing where none was made."""
    holder = process.find(record)
    return ["nsenter", "--target", str(holder.pid), "--net"] if holder else []


def end(record: Path) -> None:
    """Let go of the namespace; it goes with the last process in it."""
    process.stop(record, grace_seconds=_SECONDS)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _held(record: Path) -> int:
    """The holder's pid, once its namespace is another one than ours: before, the cable would end here."""
    deadline = time.monotonic() + _SECONDS
    while (holder := process.find(record)) is not None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if _namespace(str(holder.pid)) != _namespace("self"):
                return holder.pid
        time.sleep(0.05)
    raise ReaperError("`unshare --net` made none")


def _namespace(pid: str) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def _connect(pid: int, address: str) -> None:
    here, cable = f"{address.rpartition('.')[0]}.1", f"lr{secrets.token_hex(4)}"
    enter = ("nsenter", "--target", str(pid), "--net")
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _ip("address", "add", f"{here}/30", "dev", cable)
    _ip("link", "set", cable, "up")
    _ip("address", "add", f"{address}/30", "dev", "eth0", enter=enter)
    for link in ("lo", "eth0"):
        _ip("link", "set", link, "up", enter=enter)


def _ip(*words: str, enter: tuple[str, ...] = ()) -> None:
    done = subprocess.run(
        [*enter, "ip", *words], env={"PATH": _PATH}, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise ReaperError(f"`ip {' '.join(words)}` says: {done.stderr.strip()}")


def free_network() -> str:
    """The first three numbers of a /24 of which this machine has no address. Raises ReaperError."""
    held = {each.address.rpartition(".")[0] for of in psutil.net_if_addrs().values() for each in of if _is_v4(each)}
    for _ in range(_TRIES):
        network = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}"
        if network not in held:
            return network
    raise ReaperError("no free network was found")


def _is_v4(address: object) -> bool:
    return getattr(address, "family", None) == socket.AF_INET
