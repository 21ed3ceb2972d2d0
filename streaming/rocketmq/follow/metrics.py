"""What `follow` shows Prometheus: how far it is behind the broker, so that an operator knows when to stop it."""

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

from streaming.prometheus import serve

if TYPE_CHECKING:
    from streaming.rocketmq.follow.run import Lag


class FollowMetrics:
    """Gauges, since a run may begin anew. One per process; it has a registry of its own, so that tests can have two."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._behind, self._end, self._indexed, self._units, self._looked = (
            Gauge(f"ledger_reaper_rocketmq_follow_{name}", text, registry=self.registry)
            for name, text in (
                ("behind_bytes", "Bytes of the commitlog that are whole and have no rows in RocksDB yet"),
                ("log_end_bytes", "Physical offset behind the last record of the commitlog that is known to be whole"),
                ("indexed_bytes", "Physical offset before which every message has its rows in RocksDB"),
                ("units", "Units that this run has written"),
                ("looked_at_seconds", "When the commitlog was last looked at, in seconds since 1970; 0: not yet"),
            )
        )

    def serve(self, address: str, port: int) -> int:
        """Serve on this address of the machine; port 0 takes a free one. Returns the port."""
        return serve(self.registry, address, port)

    def show(self, lag: "Lag") -> None:
        """Show how far it is."""
        self._behind.set(lag.bytes_behind)
        self._end.set(lag.end)
        self._indexed.set(lag.indexed)
        self._units.set(lag.units)
        self._looked.set(time.time())
