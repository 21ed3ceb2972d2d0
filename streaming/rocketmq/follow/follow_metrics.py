"""Prometheus metrics of `follow`: its lag behind the broker, which shows when to stop the broker."""

import time

from streaming.prometheus import table
from streaming.prometheus.registry import Registry
from streaming.prometheus.table import Group
from streaming.rocketmq.follow.lag import Lag


class FollowMetrics:
    """Gauges, since a run may start over."""

    def __init__(self) -> None:
        self.registry = Registry(Group.PROCESS)

    def export(self, lag: Lag) -> None:
        """Export the lag."""
        for metric, value in (
            (table.FOLLOW_LAG, lag.bytes_behind),
            (table.FOLLOW_END, lag.end),
            (table.FOLLOW_INDEXED, lag.indexed),
            (table.FOLLOW_UNITS, lag.units),
            (table.FOLLOW_READ, time.time()),
        ):
            self.registry.set(metric, value)
