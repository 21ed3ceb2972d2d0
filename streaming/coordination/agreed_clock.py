"""The service's clock: the earlier of this machine's and ZooKeeper's."""

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
_MAX_SKEW_MS = 5_000  # NTP keeps clocks within milliseconds; the rest is the time that an answer takes
_VALID_MS = 1_000  # a reading is reused for this long
_RETRY_MS = 10_000  # pause after ZooKeeper gave no answer


@dataclass(frozen=True, slots=True)
class _Reading:
    earlier_ms: int
    later_ms: int
    read_ns: int  # on the monotonic clock


class AgreedClock:
    """Dates ledgers by the earlier of this machine's clock and ZooKeeper's, so that no age is overstated.

    Asks ZooKeeper at most once a second. Between two readings the time advances with the monotonic clock, so changes
    of this machine's wall clock have no effect. Thread-safe.
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
        self._is_skew_logged = False
        store.create(self.path, b"", parents=True)

    def now_ms(self) -> int:
        """Return the earlier clock's milliseconds since the epoch, UTC. Raises UnavailableError."""
        reading = self._reading()
        return reading.earlier_ms + self._since_ms(reading)

    def later_ms(self) -> int:
        """Return the later of the two clocks, for data that must not be deleted early. Raises UnavailableError."""
        reading = self._reading()
        return reading.later_ms + self._since_ms(reading)

    def _reading(self) -> _Reading:
        with self._lock:
            if self._last is None or self._since_ms(self._last) >= _VALID_MS:
                self._last = self._ask()
            return self._last

    def _since_ms(self, reading: _Reading) -> int:
        return (self.monotonic_ns() - reading.read_ns) // 1_000_000

    def _ask(self) -> _Reading:
        self._store.set_data(self.path, b"")
        node = read_own(self._store, self.path)
        if node is None:
            raise UnavailableError(f"{self.path} was deleted: find out which program deletes below zookeeper.own_root")
        local_ms = self._clock.now_ms()
        skew_ms = local_ms - node.mtime_ms
        if abs(skew_ms) > _MAX_SKEW_MS and not self._is_skew_logged:
            self._is_skew_logged = True
            log.warning("this machine's clock and ZooKeeper's are %s s apart; the earlier counts", skew_ms / 1000)
        # the reading is dated after the answer arrived: the time is understated by the delay, so no age is overstated
        return _Reading(min(local_ms, node.mtime_ms), max(local_ms, node.mtime_ms), self.monotonic_ns())


class PacedClock:
    """The agreed clock for work that must not stop with ZooKeeper.

    During an outage of ZooKeeper the time advances with the monotonic clock.
    """

    def __init__(self, agreed: AgreedClock) -> None:
        """Read the agreed clock once. Raises UnavailableError."""
        self._agreed = agreed
        self._last = (agreed.now_ms(), agreed.monotonic_ns())
        self._is_answered = True

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, UTC."""
        last_ms, read_ns = self._last
        paced_ms = last_ms + (self._agreed.monotonic_ns() - read_ns) // 1_000_000
        if not self._is_answered and paced_ms - last_ms < _RETRY_MS:
            return paced_ms
        try:
            now_ms, self._is_answered = self._agreed.now_ms(), True
        except UnavailableError:
            now_ms, self._is_answered = paced_ms, False
        self._last = (now_ms, self._agreed.monotonic_ns())
        return now_ms
