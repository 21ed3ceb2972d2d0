"""The clock by which ages are judged: this machine's or ZooKeeper's, whichever is earlier."""

import logging

from streaming.clock import Clock, SystemClock
from streaming.coordination.own_znodes import read_own
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore

log = logging.getLogger("ledger-reaper")
_SKEW_MS = 5_000  # NTP keeps clocks within milliseconds; the rest is what an answer takes


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
