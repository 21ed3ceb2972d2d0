"""Recognises the topics that brokers create for themselves, by their names."""

from udfs.paths import base_topic, tenant_of
from udfs.requests.topic_pattern import PULSARS_TENANTS
from udfs.space.causes import Cause

_OF_TRANSACTIONS = "__transaction_"  # logs, and snapshots of transaction buffers
_PENDING_ACK = "__transaction_pending_ack"
_COORDINATORS = "transaction_coordinator_assign"
_CHANGE_EVENTS = "__change_events"


def cause_of(topic: str) -> Cause | None:
    """Return the cause of all bytes of a topic of Pulsar's own; None: the topic is a user's."""
    name = base_topic(topic).rpartition("/")[2]
    if name.startswith(_OF_TRANSACTIONS) or name.endswith(_PENDING_ACK) or name == _COORDINATORS:
        return Cause.TRANSACTIONS
    if name == _CHANGE_EVENTS or tenant_of(topic) in PULSARS_TENANTS:
        return Cause.SYSTEM_TOPICS
    return None
