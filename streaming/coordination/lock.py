"""The lock of an instance: no second one of the same name runs. streaming/deletion/instance.py takes it at the start.

The lock keeps honest instances apart, but a stalled process can think that it holds the lock. The epoch (epoch.py) is
what really guards deletes: each transaction checks its version, so the deletes of an outdated run do nothing.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from threading import Event
from types import TracebackType
from typing import Self

import psutil

from streaming.clock import SystemClock
from streaming.coordination.identity import iso_time
from streaming.coordination.own_znodes import read_own
from streaming.errors import SafetyError, StopRequestedError, UnavailableError
from streaming.ports import MetadataStore

log = logging.getLogger("ledger-reaper")

_POLL_SECONDS = 0.25
WATCH = ".watch"  # behind a service's name: the lock of its watcher. No service can have a name with a dot.
_PATIENCE_SECONDS = 60.0  # a dead holder's session ends after its timeout; 40 s is ZooKeeper's usual limit
_ABOUT_THEN_S = 2.0  # a lock is taken after its holder began, but its time is written in whole seconds


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, as the lock's znode says. since: ISO 8601, UTC."""

    host: str
    pid: int
    since: str
    token: str

    def is_alive(self) -> bool:
        """Whether it surely runs: on this host, and began before it took the lock.

        Nobody can tell of another host's. A container that is started again has its old name, and often its old pid.
        """
        if self.host != socket.gethostname():
            return False
        try:
            return psutil.Process(self.pid).create_time() < _seconds(self.since) + _ABOUT_THEN_S
        except (psutil.Error, ValueError):
            return False


def lock_path(root: str, name: str) -> str:
    """Return where an instance's lock is."""
    return f"{root}/instances/{name}/lock"


def holder_of(store: MetadataStore, path: str) -> Holder | None:
    """Return who holds a lock; None: nobody. Raises UnavailableError."""
    node = read_own(store, path)
    if node is None:
        return None
    try:
        known = json.loads(node.data)
        return Holder(str(known["host"]), int(known["pid"]), str(known["since"]), str(known["token"]))
    except (ValueError, KeyError, TypeError):
        return Holder("unknown", -1, "unknown", "")


class InstanceLock:
    """Held while the `with` block runs; an ephemeral znode at <root>/instances/<name>/lock.

    on_lost is called, from another thread, when the session that the lock lives by may be over: stop at once.
    patience_s: so long we wait for the lock of a process that may be dead: one of this host that is gone, and any of
    another host.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        name: str,
        *,
        on_lost: Callable[[], None],
        stop: Event | None = None,
    ) -> None:
        self.path = lock_path(root, name)
        self._store = store
        self._name = name
        self._on_lost = on_lost
        self._stop = stop or Event()
        self.patience_s = _PATIENCE_SECONDS
        self._mine: Holder | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises SafetyError, which names the holder, or UnavailableError.

        Where a process that surely runs holds it, that is at once. Where its holder may have died, with its host
        perhaps, we wait for the lock to go, and raise StopRequestedError if stop is set meanwhile.
        """
        mine = Holder(socket.gethostname(), os.getpid(), iso_time(SystemClock()), secrets.token_hex(8))
        data = json.dumps(asdict(mine)).encode()
        self._store.create(self.path.rpartition("/")[0], b"", parents=True)
        waited = 0.0
        while not self._store.create(self.path, data, ephemeral=True):
            holder = self._holder()
            if holder is None:
                continue
            if holder.token == mine.token:  # a create whose answer was lost had worked
                break
            if holder.is_alive() or waited >= self.patience_s:
                raise _refusal(self._name, self.path, holder)
            if not waited:
                log.info(
                    "pid %s on %s has held the lock since %s; if it has died, its session ends soon. Waiting %s s",
                    *(holder.pid, holder.host, holder.since, round(self.patience_s)),
                )
            if self._stop.wait(_POLL_SECONDS):
                raise StopRequestedError
            waited += _POLL_SECONDS
        self._mine = mine
        self._store.when_session_ends(self._lost)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the lock back if it is still ours; where ZooKeeper does not answer, it goes with the session."""
        mine, self._mine = self._mine, None
        with contextlib.suppress(UnavailableError):
            holder = self._holder()
            if mine is not None and holder is not None and holder.token == mine.token:
                self._store.delete(self.path)

    def _lost(self) -> None:
        if self._mine is not None:
            self._on_lost()

    def _holder(self) -> Holder | None:
        return holder_of(self._store, self.path)


def refuse_second(store: MetadataStore, root: str, name: str) -> None:
    """Raise SafetyError, which names the holder, if another instance has the lock and is not surely dead.

    For a start that fails before it asks for the lock, perhaps because that instance runs. Raises UnavailableError.
    """
    path = lock_path(root, name)
    holder = holder_of(store, path)
    if holder is not None and (holder.host != socket.gethostname() or holder.is_alive()):
        raise _refusal(name, path, holder)


def _refusal(name: str, path: str, holder: Holder) -> SafetyError:
    return SafetyError(
        f"instance {name!r} already runs: pid {holder.pid} on {holder.host} since {holder.since} "
        f"holds {path}. Stop it first; a second one on this cluster needs a service.name, state.dir, "
        "checkpoints and request topics of its own."
    )


def _seconds(since: str) -> float:
    """Since 1970. Raises ValueError."""
    return datetime.fromisoformat(since).timestamp()
