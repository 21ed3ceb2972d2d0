"""A forged request and the true one for the same ledger, in one batch and in both orders, on the real cluster."""

import pytest

from streaming.sandbox import shell, topics
from streaming.sandbox.cluster import Cluster
from tests.integration.conftest import Deploy, leak, new_topic, payload

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_each_has_its_own_answer_and_its_own_owners_certificate_at_the_first_look(
    cluster: Cluster, deploy: Deploy
) -> None:
    small, large = new_topic("small"), new_topic("large")
    topics.fill(cluster, small, 3, ["s"])
    topics.fill(cluster, large, 9, ["s"])
    forged_first, true_first = leak(cluster, small, 2)
    service = deploy()
    service.request(
        [
            payload(large, forged_first),
            payload(small, forged_first),
            payload(small, true_first),
            payload(large, true_first),
        ]
    )
    service.run("run", "--until-idle")

    told = sorted((row["ledger_id"], row["topic"], row["outcome"], row["reason"]) for row in service.receipts())
    refused, deleted = ("DEAD_LETTER", "OTHER_OWNER"), ("DELETED", "UNREFERENCED")
    assert told == sorted(
        (ledger_id, topic, *answer)
        for ledger_id in (forged_first, true_first)
        for topic, answer in ((small, deleted), (large, refused))
    )
    assert not {forged_first, true_first} & shell.list_ledgers(cluster)
    listed = {topic: len(topics.data_ledgers(cluster, topic)) for topic in (small, large)}
    for row in service.receipts():
        assert row["sources"].startswith(f"zookeeper={listed[row['topic']]}@")
