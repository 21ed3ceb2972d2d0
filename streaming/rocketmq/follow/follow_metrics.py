"""Prometheus metrics of `follow`: its lag behind the broker, which shows when to stop the broker."""

import time

from prometheus_client import CollectorRegistry, Gauge

from streaming.prometheus import serve
from streaming.rocketmq.follow.lag import Lag


class FollowMetrics:
    """Gauges, since a run may start over. They have their own registry, so that tests can have two."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._behind, self._end, self._indexed, self._units, self._read_at = (
            Gauge(f"ledger_reaper_rocketmq_follow_{name}", text, registry=self.registry)
            for name, text in (
                ("behind_bytes", "Bytes of the commitlog that are complete and have no rows in RocksDB yet"),
                (
                    "log_end_bytes",
                    "Physical offset after the last complete record of the commitlog, as far as known",
                ),
                ("indexed_bytes", "Physical offset before which every message has its rows in RocksDB"),
                ("units", "Units that this run has written"),
                ("looked_at_seconds", "When the commitlog was last read, in seconds since 1970; 0: not yet"),
            )
        )

    def serve(self, address: str, port: int) -> int:
        """Serve on this address of the machine, and return the port; port 0 takes a free port."""
        return serve(self.registry, address, port)

    def export(self, lag: Lag) -> None:
        """Export the lag."""
        self._behind.set(lag.bytes_behind)
        self._end.set(lag.end)
        self._indexed.set(lag.indexed)
        self._units.set(lag.units)
        self._read_at.set(time.time())
