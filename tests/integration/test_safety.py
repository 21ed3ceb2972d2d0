"""Requests that are forged, for another tenant's ledger, or for an owner whose list shrank are kept or refused."""

import json
import re
from pathlib import Path

import pytest

from streaming.clients import admin_for
from streaming.errors import ConfigError
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.orphans import consume_and_trim
from streaming.sandbox.parts import part_clients
from streaming.topics.setup import ensure_topics, faults_of
from tests.integration.conftest import Deploy, create_tenant, kill, leak, new_topic, payload, stop, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LEDGERS = 12


@pytest.mark.long
def test_forged_foreign_and_doubtful_requests_delete_nothing_and_get_their_reasons(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic("safe")
    topics.fill(cluster, topic, LEDGERS, ["s"])
    leaked, held, foreign = leak(cluster, topic, 3)
    in_use = topics.data_ledgers(cluster, topic)[-2]
    service = deploy()
    own = service.settings.topics.requests[0]
    tenant = new_topic("rival").rpartition("/")[2]
    create_tenant(cluster, tenant, "reaper")
    tenant_topic = f"persistent://{tenant}/reaper/{own.rpartition('/')[2]}"
    with admin_for(service.settings) as admin:  # a producer would create it without partitions
        admin.create_partitioned_topic(tenant_topic, 4)
        admin.ensure_subscription(tenant_topic, service.settings.topics.subscription)
    monkeypatch.setenv("LEDGER_REAPER__TOPICS__REQUESTS", json.dumps([own, tenant_topic]))
    monkeypatch.setenv("LEDGER_REAPER__SAFETY__MAX_SHRINK", "0.5")
    monkeypatch.setenv("LEDGER_REAPER__SAFETY__SHRINK_APPLIES_ABOVE_LEDGERS", "5")
    service.request([payload(topic, leaked)])
    _publish(cluster, own, payload(topic, in_use), _FORGED)
    _publish(cluster, tenant_topic, payload(topic, foreign), {})

    def outcomes_of(ledger_id: int) -> list[tuple[str, str]]:
        return [(row["outcome"], row["reason"]) for row in service.receipts() if row["ledger_id"] == ledger_id]

    log = tmp_path / "run.log"
    running = service.start("run", log=log)
    try:
        wait_until(lambda: len(outcomes_of(in_use)) == 3 and outcomes_of(leaked) and outcomes_of(foreign), running, log)
        consume_and_trim(cluster, topic, "s", (LEDGERS - 3) * topics.ENTRIES_PER_LEDGER)
        service.request([payload(topic, held)])
        wait_until(lambda: len(outcomes_of(held)) > 3, running, log)
        assert set(outcomes_of(held)) == {("RETRY", "SOURCE_SHRANK")}
        assert held in ledger_list.listed_by_bookie(cluster)
        stop(running)
        with monkeypatch.context() as slower:  # else the retry is due again before the run is idle
            slower.setenv("LEDGER_REAPER__TWO_PHASE__RECONSUME_LATER_SECONDS", "20")
            last_line = service.run("run", "--until-idle", code=4).splitlines()[-1]
        assert "what is left waits for the operator: 1 request is kept as SOURCE_SHRANK" in last_line
        assert f"`ledger-reaper accept --topic {topic}`" in last_line
        assert "accepted" in service.run("accept", "--topic", topic)
        service.run("run", "--until-idle")
        assert outcomes_of(held)[-1][0] == "DELETED"
    finally:
        kill(running)

    assert outcomes_of(leaked) == [("DELETED", "UNREFERENCED")]
    assert outcomes_of(foreign) == [("DEAD_LETTER", "OTHER_TENANT")]
    assert outcomes_of(in_use) == [("RETRY", "IN_USE"), ("RETRY", "IN_USE"), ("DEAD_LETTER", "IN_USE")]
    rows = {row["ledger_id"]: row for row in service.receipts()}
    assert re.match(rf"zookeeper=({LEDGERS}|{LEDGERS + 1})@\d+ broker=\d+ at=\d{{13}}$", rows[leaked]["sources"])
    assert rows[in_use]["message_id"] != _FORGED["ORIGIN_MESSAGE_ID"]
    assert rows[in_use]["topic"] == topic
    assert "1 shrank" in log.read_text()
    assert {in_use, foreign} <= ledger_list.listed_by_bookie(cluster)


def test_t10_a_request_topic_whose_messages_would_expire_is_refused(cluster: Cluster, deploy: Deploy) -> None:
    settings = deploy().settings
    topic = settings.topics.requests[0]
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
        assert faults_of(admin, settings, topic) == []
        _publish(cluster, topic, b"a request", {})
        admin.set_message_ttl(topic, seconds=60)
        topics.wait_for(lambda: bool(faults_of(admin, settings, topic)), "policy")
        with pytest.raises(ConfigError, match="message TTL"):
            ensure_topics(admin, settings)


_FORGED = {
    "RECONSUMETIMES": "1000000",
    "DELAY_TIME": "600000000",
    "REAL_TOPIC": "persistent://rival/reaper/other",
    "ORIGIN_MESSAGE_ID": "9:9:9",
    "OWNER_ABSENT_SINCE": f"1:{'0' * 64}",
}


def _publish(cluster: Cluster, topic: str, content: bytes, properties: dict[str, str]) -> None:
    with part_clients.pulsar_client(cluster.addresses.pulsar) as client:
        producer = client.create_producer(topic)
        producer.send(content, properties=properties)
        producer.close()
