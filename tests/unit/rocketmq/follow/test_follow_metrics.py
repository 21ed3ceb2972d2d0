import time
from urllib.request import urlopen

from streaming.rocketmq.follow.follow_metrics import FollowMetrics
from streaming.rocketmq.follow.lag import Lag

PREFIX = "ledger_reaper_rocketmq_follow_"


def test_prometheus_gets_the_lag() -> None:
    metrics, before = FollowMetrics(), time.time()
    metrics.export(Lag(end=900, indexed=650, units=7))
    values = {name: metrics.registry.get_sample_value(PREFIX + name) for name in ("behind_bytes", "units")}
    assert values == {"behind_bytes": 250, "units": 7}
    assert (metrics.registry.get_sample_value(f"{PREFIX}looked_at_seconds") or 0) >= before


def test_a_truncated_log_has_no_negative_lag() -> None:
    metrics = FollowMetrics()
    metrics.export(Lag(end=400, indexed=650, units=7))
    assert metrics.registry.get_sample_value(f"{PREFIX}behind_bytes") == 0


def test_it_is_served_as_text() -> None:
    metrics = FollowMetrics()
    metrics.export(Lag(end=900, indexed=650, units=7))
    with urlopen(f"http://127.0.0.1:{metrics.serve('127.0.0.1', 0)}/metrics") as answer:
        text = answer.read().decode()
    assert f"{PREFIX}log_end_bytes 900.0" in text
    assert f"{PREFIX}indexed_bytes 650.0" in text
