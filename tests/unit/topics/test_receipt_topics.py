"""The topic of a lane's receipts is created once, and stays as its tenant wants it."""

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.errors import RefusedError, UnavailableError
from streaming.topics.receipt_topics import ensure_receipt_topic

TOPIC = "persistent://public/default/__ledger_deletion-RECEIPT"
SETTINGS = load(None)
KEPT = (SETTINGS.topics.retention_minutes, -1)


def test_a_missing_topic_is_created_without_partitions_and_with_retention() -> None:
    pulsar = MemoryPulsar()
    ensure_receipt_topic(pulsar, SETTINGS, TOPIC)
    assert (pulsar.partitions(TOPIC), pulsar.retention(TOPIC)) == (0, KEPT)


def test_a_topic_whose_retention_could_not_be_set_gets_it_later() -> None:
    pulsar = MemoryPulsar()
    pulsar.faults.fail_at(2)
    with pytest.raises(UnavailableError):
        ensure_receipt_topic(pulsar, SETTINGS, TOPIC)
    assert pulsar.retention(TOPIC) != KEPT
    ensure_receipt_topic(pulsar, SETTINGS, TOPIC)
    assert pulsar.retention(TOPIC) == KEPT


def test_a_tenants_own_retention_stays() -> None:
    pulsar = MemoryPulsar()
    ensure_receipt_topic(pulsar, SETTINGS, TOPIC)
    pulsar.publish(TOPIC)
    pulsar.set_retention(TOPIC, minutes=1, megabytes=1)
    ensure_receipt_topic(pulsar, SETTINGS, TOPIC)
    assert pulsar.retention(TOPIC) == (1, 1)


def test_a_topic_that_its_tenant_created_with_partitions_gets_nothing() -> None:
    pulsar = MemoryPulsar()
    pulsar.create_partitioned_topic(TOPIC, 1_000)
    with pytest.raises(RefusedError, match="has 1000 partitions"):
        ensure_receipt_topic(pulsar, SETTINGS, TOPIC)


def test_no_namespace_is_created_for_receipts() -> None:
    pulsar = MemoryPulsar()
    with pytest.raises(RefusedError):
        ensure_receipt_topic(pulsar, SETTINGS, "persistent://gone/ns/__ledger_deletion-RECEIPT")
    assert pulsar.namespaces("gone") == []
