"""The clock of the service: this machine's or ZooKeeper's, whichever is earlier."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from streaming.clock import Clock, SystemClock
from streaming.coordination.own_znodes import read_own
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore

log = logging.getLogger("ledger-reaper")
_SKEW_MS = 5_000  # NTP keeps clocks within milliseconds; the rest is what an answer takes
_KEPT_MS = 1_000
_ASK_AGAIN_MS = 10_000  # after ZooKeeper gave no answer


@dataclass(frozen=True, slots=True)
class _Reading:
    earlier_ms: int
    later_ms: int
    read_ns: int  # on the monotonic clock


class AgreedClock:
    """The earlier of our clock and ZooKeeper's, by which ledgers are dated: no age judged by it is overstated.

    Safe to use from many threads. It asks ZooKeeper once a second at most; between two readings time goes on at this
    machine's pace, however its wall clock is set.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        name: str,
        *,
        clock: Clock | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = f"{root}/instances/{name}/clock"
        self.monotonic_ns = monotonic_ns
        self._store = store
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._last: _Reading | None = None
        self._is_told = False
        store.create(self.path, b"", parents=True)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC. Raises UnavailableError."""
        reading = self._reading()
        return reading.earlier_ms + self._since_ms(reading)

    def later_ms(self) -> int:
        """The later of the two clocks: what is dated by it is never kept too briefly. Raises UnavailableError."""
        reading = self._reading()
        return reading.later_ms + self._since_ms(reading)

    def _reading(self) -> _Reading:
        with self._lock:
            if self._last is None or self._since_ms(self._last) >= _KEPT_MS:
                self._last = self._ask()
            return self._last

    def _since_ms(self, reading: _Reading) -> int:
        return (self.monotonic_ns() - reading.read_ns) // 1_000_000

    def _ask(self) -> _Reading:
        self._store.set_data(self.path, b"")
        node = read_own(self._store, self.path)
        if node is None:
            raise UnavailableError(f"{self.path} was deleted; something cleans up among our znodes")
        ours_ms = self._clock.now_ms()
        apart_ms = ours_ms - node.mtime_ms
        if abs(apart_ms) > _SKEW_MS and not self._is_told:
            self._is_told = True
            log.warning("this machine's clock and ZooKeeper's are %s s apart; the earlier counts", apart_ms / 1000)
        # the answer took a while, by which the time is understated: that makes no age too long
        return _Reading(min(ours_ms, node.mtime_ms), max(ours_ms, node.mtime_ms), self.monotonic_ns())


class PacedClock:
    """The agreed clock for what must not stop with ZooKeeper: during an outage it goes on at this machine's pace."""

    def __init__(self, agreed: AgreedClock) -> None:
        """Raises UnavailableError."""
        self._agreed = agreed
        self._last = (agreed.now_ms(), agreed.monotonic_ns())
        self._is_answered = True

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        last_ms, read_ns = self._last
        paced_ms = last_ms + (self._agreed.monotonic_ns() - read_ns) // 1_000_000
        if not self._is_answered and paced_ms - last_ms < _ASK_AGAIN_MS:
            return paced_ms
        try:
            now_ms, self._is_answered = self._agreed.now_ms(), True
        except UnavailableError:
            now_ms, self._is_answered = paced_ms, False
        self._last = (now_ms, self._agreed.monotonic_ns())
        return now_ms
