"""Creates a network namespace for RocketMQ if the machine permits it: the broker's HA port listens on every address.

A process that does nothing else keeps the namespace open. Only this machine reaches the namespace, by a cable (a veth
pair), which is removed with the namespace.
"""

import contextlib
import secrets
import socket
import subprocess
import time
from pathlib import Path

import psutil

from streaming.errors import ReaperError
from streaming.sandbox.home import HOST
from streaming.sandbox.parts import process

_SECONDS = 15.0
_TRIES = 20


def make(record: Path, log: Path, cwd: Path) -> str:
    """Create a namespace, which a process (`record`) keeps open. Return its address; loopback if there is none."""
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
    """Return the prefix of a command that runs in the namespace; empty without a namespace."""
    holder = process.find(record)
    return ["nsenter", "--target", str(holder.pid), "--net"] if holder else []


def end(record: Path) -> None:
    """Release the namespace; it ends with the last process in it."""
    process.stop(record, grace_seconds=_SECONDS)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _held(record: Path) -> int:
    """Return the holder's pid once its namespace differs from ours."""
    deadline = time.monotonic() + _SECONDS
    while (holder := process.find(record)) is not None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            # before they differ, the cable would end in our own namespace
            if _namespace(str(holder.pid)) != _namespace("self"):
                return holder.pid
        time.sleep(0.05)
    raise ReaperError("`unshare --net` created no namespace")


def _namespace(pid: str) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def _connect(pid: int, address: str) -> None:
    here, cable = f"{address.rpartition('.')[0]}.1", f"lr{secrets.token_hex(4)}"
    enter = ("nsenter", "--target", str(pid), "--net")
    # `lo` alone is not enough: a producer hung in such a namespace
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
        raise ReaperError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


def free_network() -> str:
    """Return the first three numbers of a /24 in which this machine has no address. Raises ReaperError."""
    addresses = (address for interface in psutil.net_if_addrs().values() for address in interface)
    used = {address.address.rpartition(".")[0] for address in addresses if _is_v4(address)}
    for _ in range(_TRIES):
        network = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}"
        if network not in used:
            return network
    raise ReaperError("no free network was found")


def _is_v4(address: object) -> bool:
    return getattr(address, "family", None) == socket.AF_INET
