"""Topics of Pulsar's own, by name."""

import pytest

from udfs.space.causes import Cause
from udfs.space.system_topics import cause_of


@pytest.mark.parametrize(
    ("topic", "cause"),
    [
        ("public/default/persistent/orders", None),
        ("public/default/persistent/change_events", None),
        ("public/default/persistent/__change_events", Cause.SYSTEM_TOPICS),
        ("public/default/persistent/__change_events-partition-3", Cause.SYSTEM_TOPICS),
        ("public/default/persistent/__transaction_buffer_snapshot", Cause.TRANSACTIONS),
        ("public/default/persistent/__transaction_buffer_snapshot_segments-partition-0", Cause.TRANSACTIONS),
        ("pulsar/system/persistent/__transaction_log_12", Cause.TRANSACTIONS),
        ("pulsar/system/persistent/transaction_coordinator_assign-partition-7", Cause.TRANSACTIONS),
        ("public/default/persistent/orders-partition-1-billing__transaction_pending_ack", Cause.TRANSACTIONS),
        ("pulsar/system/persistent/loadbalancer-service-unit-state", Cause.SYSTEM_TOPICS),
        ("sla-monitor/standalone/10.0.0.1:8080/persistent/x", Cause.SYSTEM_TOPICS),
    ],
)
def test_causes(topic: str, cause: Cause | None) -> None:
    assert cause_of(topic) is cause
