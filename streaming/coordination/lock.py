"""The lock of an instance: no second process of the same name runs. streaming/deletion/instance.py takes it.

A stalled process may still believe that it holds the lock, so only the epoch (epoch.py) protects deletes.
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
from streaming.coordination.identity import iso_time, shown_time
from streaming.coordination.own_znodes import read_own
from streaming.errors import SafetyError, StopRequestedError, UnavailableError
from streaming.ports import MetadataStore

log = logging.getLogger("ledger-reaper")

_POLL_SECONDS = 0.25
WATCH = ".watch"  # suffix of the watcher's lock, after the service's name; no service's name has a dot
_PATIENCE_SECONDS = 60.0  # a dead holder's session ends after its timeout; 40 s is ZooKeeper's usual limit
_ROUNDING_S = 2.0  # a holder starts before it takes the lock, but the lock's time is in whole seconds


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock. The field names are the keys of the lock's znode."""

    host: str
    pid: int
    since: str  # ISO 8601, UTC
    token: str

    @property
    def text(self) -> str:
        """The process, as every text for operators names it."""
        return f"pid {self.pid} on {self.host} since {shown_time(self.since)}"

    def is_alive(self) -> bool:
        """Whether the process certainly runs: on this host, and it started before it took the lock."""
        # a process on another host can't be checked
        if self.host != socket.gethostname():
            return False
        try:
            # a container that is started again keeps its host name, and often gets the same pid
            return psutil.Process(self.pid).create_time() < _seconds(self.since) + _ROUNDING_S
        except (psutil.Error, ValueError):
            return False


def lock_path(root: str, name: str) -> str:
    """Return the path of an instance's lock."""
    return f"{root}/instances/{name}/lock"


def holder_of(store: MetadataStore, path: str) -> Holder | None:
    """Return the holder of a lock, if any. Raises UnavailableError."""
    node = read_own(store, path)
    if node is None:
        return None
    try:
        fields = json.loads(node.data)
        return Holder(str(fields["host"]), int(fields["pid"]), str(fields["since"]), str(fields["token"]))
    except (ValueError, KeyError, TypeError):
        return Holder("unknown", -1, "unknown", "")


class InstanceLock:
    """An ephemeral znode at <root>/instances/<name>/lock, held while the `with` block runs.

    Args:
        on_lost: called from another thread when the ZooKeeper session, and with it the lock, may have ended; the
            instance must stop at once.
        stop: ends the wait for the lock.
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
        # how long to wait for a holder that may be dead: a process of this host that has ended, or any of another host
        self.patience_s = _PATIENCE_SECONDS
        self._held_as: Holder | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises SafetyError, which names the holder, or UnavailableError.

        The error is raised at once if the holder certainly runs. If the holder, or its host, may have died, wait up to
        patience_s for its session to end; raise StopRequestedError if stop is set during that time.
        """
        ours = Holder(socket.gethostname(), os.getpid(), iso_time(SystemClock()), secrets.token_hex(8))
        data = json.dumps(asdict(ours)).encode()
        self._store.create(self.path.rpartition("/")[0], b"", parents=True)
        waited = 0.0
        while not self._store.create(self.path, data, ephemeral=True):
            holder = self._holder()
            if holder is None:
                continue
            if holder.token == ours.token:  # an earlier create succeeded, but its answer was lost
                break
            # only the end of its session shows that another host has died (decision 28)
            if holder.is_alive() or waited >= self.patience_s:
                raise _refusal(self._name, self.path, holder)
            if not waited:
                log.info(
                    "%s has the lock; if it has died, its session ends soon. Waiting %s s",
                    *(holder.text, round(self.patience_s)),
                )
            if self._stop.wait(_POLL_SECONDS):
                raise StopRequestedError
            waited += _POLL_SECONDS
        self._held_as = ours
        self._store.when_session_ends(self._lost)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock if it is still ours; without an answer from ZooKeeper, it ends with the session."""
        ours, self._held_as = self._held_as, None
        with contextlib.suppress(UnavailableError):
            holder = self._holder()
            if ours is not None and holder is not None and holder.token == ours.token:
                self._store.delete(self.path)

    def _lost(self) -> None:
        if self._held_as is not None:
            self._on_lost()

    def _holder(self) -> Holder | None:
        return holder_of(self._store, self.path)


def refuse_second(store: MetadataStore, root: str, name: str) -> None:
    """Raise SafetyError, which names the holder, if another instance has the lock and may be alive.

    For a start that fails before it takes the lock, perhaps because that instance runs. Raises UnavailableError.
    """
    path = lock_path(root, name)
    holder = holder_of(store, path)
    if holder is not None and (holder.host != socket.gethostname() or holder.is_alive()):
        raise _refusal(name, path, holder)


def _refusal(name: str, path: str, holder: Holder) -> SafetyError:
    return SafetyError(
        f"instance {name!r} already runs: {holder.text} holds {path}. "
        "Stop it first; a second instance on this cluster needs a service.name, state.dir, "
        "checkpoints and request topics of its own."
    )


def _seconds(since: str) -> float:
    """Return an ISO time as seconds since the epoch. Raises ValueError."""
    return datetime.fromisoformat(since).timestamp()
