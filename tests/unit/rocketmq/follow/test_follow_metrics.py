import time

from streaming.prometheus import table
from streaming.rocketmq.follow.follow_metrics import FollowMetrics
from streaming.rocketmq.follow.lag import Lag

PREFIX = "ledger_reaper_rocketmq_follow_"


def test_prometheus_gets_the_lag() -> None:
    metrics, before = FollowMetrics(), time.time()
    metrics.export(Lag(end=900, indexed=650, units=7))
    values = {name: metrics.registry.get_sample_value(PREFIX + name) for name in ("lag_bytes", "units")}
    assert values == {"lag_bytes": 250, "units": 7}
    assert (metrics.registry.get_sample_value(table.FOLLOW_READ.name) or 0) >= before
    assert metrics.registry.get_sample_value(f"{PREFIX}log_end_bytes") == 900
    assert metrics.registry.get_sample_value(f"{PREFIX}indexed_bytes") == 650


def test_a_truncated_log_has_no_negative_lag() -> None:
    metrics = FollowMetrics()
    metrics.export(Lag(end=400, indexed=650, units=7))
    assert metrics.registry.get_sample_value(f"{PREFIX}lag_bytes") == 0
