"""Who may delete: one lock an instance, one epoch that outdates every earlier run, one pause flag for all.

The lock keeps honest instances apart, but a stalled process can think it holds it. The epoch is what deletes
are really guarded by: its version is checked inside each transaction, so an outdated run's deletes do nothing.
"""

import contextlib
import getpass
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from threading import Event
from types import TracebackType
from typing import Self

import psutil

from streaming.clock import Clock, SystemClock
from streaming.errors import SafetyError, StopRequestedError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode

log = logging.getLogger("ledger-reaper")

_POLL_SECONDS = 0.25
_SKEW_MS = 5_000  # NTP keeps clocks within milliseconds; the rest is what an answer takes
_CRASHED_PATIENCE_SECONDS = 60.0  # a crashed holder's session ends after its timeout; 40 s is ZooKeeper's usual limit


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as its znode says. since: ISO 8601, UTC."""

    host: str
    pid: int
    since: str
    token: str

    def is_crashed(self) -> bool:
        """Whether it ran on this host and does not any more."""
        return self.host == socket.gethostname() and not psutil.pid_exists(self.pid)


class InstanceLock:
    """Held while the `with` block runs; an ephemeral znode at <root>/instances/<name>/lock.

    on_lost is called, from another thread, when the session that the lock lives by may be over: stop at once.
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
        self.path = f"{root}/instances/{name}/lock"
        self._store = store
        self._name = name
        self._on_lost = on_lost
        self._stop = stop or Event()
        self._mine: Holder | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises SafetyError, which names the holder, or UnavailableError.

        Another instance's lock is refused at once; one that a crash on this host left behind is waited for, unless
        stop is set: StopRequestedError.
        """
        mine = Holder(socket.gethostname(), os.getpid(), _iso(SystemClock()), secrets.token_hex(8))
        data = json.dumps(asdict(mine)).encode()
        self._store.create(self.path.rpartition("/")[0], b"", parents=True)
        waited = 0.0
        while not self._store.create(self.path, data, ephemeral=True):
            holder = self._holder()
            if holder is None:
                continue
            if holder.token == mine.token:  # a create whose answer was lost had worked
                break
            if not holder.is_crashed() or waited >= _CRASHED_PATIENCE_SECONDS:
                raise SafetyError(self._refusal(holder))
            if not waited:
                log.info("waiting for the session of crashed pid %s to end", holder.pid)
            if self._stop.wait(_POLL_SECONDS):
                raise StopRequestedError
            waited += _POLL_SECONDS
        self._mine = mine
        self._store.when_session_ends(self._lost)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the lock back, if it is still ours; where ZooKeeper is away it goes with the session."""
        mine, self._mine = self._mine, None
        with contextlib.suppress(UnavailableError):
            holder = self._holder()
            if mine is not None and holder is not None and holder.token == mine.token:
                self._store.delete(self.path)

    def _lost(self) -> None:
        if self._mine is not None:
            self._on_lost()

    def _holder(self) -> Holder | None:
        node = read_own(self._store, self.path)
        if node is None:
            return None
        try:
            known = json.loads(node.data)
            return Holder(str(known["host"]), int(known["pid"]), str(known["since"]), str(known["token"]))
        except (ValueError, KeyError, TypeError):
            return Holder("unknown", -1, "unknown", "")

    def _refusal(self, holder: Holder) -> str:
        return (
            f"instance {self._name!r} already runs: pid {holder.pid} on {holder.host} since {holder.since} "
            f"holds {self.path}. Stop it, or give this one another service.name and checkpoint directory. "
            "If it has just crashed, its lock goes when its ZooKeeper session times out: start again in a minute."
        )


@dataclass(frozen=True, slots=True)
class Epoch:
    """What proves that no later run of this instance has begun: (path, version) belong into every GuardedDelete."""

    store: MetadataStore
    path: str
    version: int

    @classmethod
    def bump(cls, store: MetadataStore, root: str, name: str, *, clock: Clock | None = None) -> Self:
        """Begin a new epoch; from now on no guarded delete of an earlier one can happen. Raises UnavailableError."""
        path = f"{root}/instances/{name}/epoch"
        data = json.dumps({"who": _who(), "pid": os.getpid(), "since": _iso(clock or SystemClock())}).encode()
        store.create(path, b"", parents=True)
        version = store.set_data(path, data)
        if version is None:
            raise SafetyError(f"{path} was deleted while this instance started: someone cleans up below {root}")
        return cls(store, path, version)

    def still_mine(self) -> bool:
        """Whether no later run has begun. Raises UnavailableError: not knowing is not "yes"."""
        node = read_own(self.store, self.path)
        return node is not None and node.version == self.version


class AgreedClock:
    """The earlier of our clock and ZooKeeper's, by which ledgers are dated: no age judged by it is overstated."""

    def __init__(self, store: MetadataStore, root: str, name: str, *, clock: Clock | None = None) -> None:
        self.path = f"{root}/instances/{name}/clock"
        self._store = store
        self._clock = clock or SystemClock()
        self._is_told = False
        store.create(self.path, b"", parents=True)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC. Raises UnavailableError."""
        self._store.set_data(self.path, b"")
        node = read_own(self._store, self.path)
        if node is None:
            raise UnavailableError(f"{self.path} was deleted; something cleans up among our znodes")
        ours_ms = self._clock.now_ms()
        apart_ms = ours_ms - node.mtime_ms
        if abs(apart_ms) > _SKEW_MS and not self._is_told:
            self._is_told = True
            log.warning("this machine's clock and ZooKeeper's are %s s apart; the earlier counts", apart_ms / 1000)
        return min(ours_ms, node.mtime_ms)


class Pause:
    """The flag at <root>/pause that every instance of the cluster looks at before it deletes."""

    def __init__(self, store: MetadataStore, root: str, *, clock: Clock | None = None) -> None:
        self.path = f"{root}/pause"
        self._store = store
        self._clock = clock or SystemClock()

    def set(self, why: str) -> None:
        """Pause every instance; a second call replaces who, when and why. Raises UnavailableError."""
        data = json.dumps({"who": _who(), "since": _iso(self._clock), "why": why}).encode()
        while not self._store.create(self.path, data, parents=True):
            if self._store.set_data(self.path, data) is not None:
                return

    def clear(self) -> bool:
        """Let them go on; False if they were not paused."""
        return self._store.delete(self.path)

    def reason(self) -> str:
        """Return "" when not paused, else why, who and since when. Raises UnavailableError: unknown is not "no"."""
        node = read_own(self._store, self.path)
        if node is None:
            return ""
        try:
            known = json.loads(node.data)
            return f"{known['why']} (by {known['who']}, since {known['since']})"
        except (ValueError, KeyError, TypeError):
            return f"{self.path} exists"  # made by hand: whoever did that meant it


def read_own(store: MetadataStore, path: str) -> Znode | None:
    """A znode of ours; None where there is none. Raises UnavailableError: unknown is not "no"."""
    (node,) = store.read_many([path])
    if isinstance(node, Unreadable):
        raise UnavailableError(f"can't read {path}: {node.detail}. Check the ACL of our znodes in ZooKeeper")
    return node


def _iso(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="seconds")


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
