"""Odd messages on the real cluster: each message ends in exactly one receipt.

The same topics also contain valid requests. The service processes them and continues.
"""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.adapters.pulsar.readers import span_reader
from streaming.clients import admin_for
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.reckoning import reckon
from streaming.spark.installed import has_connector
from tests.combinations import with_connector
from tests.integration.conftest import (
    Deploy,
    Deployment,
    add_request_topics,
    deployment,
    killed_at_the_end,
    load_hook,
    new_topic,
    payload,
    stop,
    wait_until,
)
from tests.integration.odd_messages import ODD, Senders, senders, senders_without_java
from tests.pulsar_fields import key_value
from udfs.records import Reason

pytestmark = [pytest.mark.cluster]

COMMIT = "before:streaming.queries.delivery.batches:commit"  # the receipts are written, the batch is not committed
NOWHERE = "public/default/persistent/nowhere"
VALID = ("ALREADY_GONE", "NOT_FOUND")
_ids = iter(range(6 * 10**15, 7 * 10**15))  # above every id of a real cluster


def valid_request() -> bytes:
    return payload(NOWHERE, next(_ids))


def dead(*reasons: Reason) -> Counter[tuple[str, str]]:
    return Counter(("DEAD_LETTER", str(reason)) for reason in reasons)


@pytest.fixture
def service(deploy: Deploy) -> Deployment:
    """Two request topics with their partitions, and nothing in them."""
    deployed = deploy()
    add_request_topics(deployed, "-other")
    return deployed


@pytest.fixture
def send(service: Deployment) -> Iterator[Senders]:
    with senders_without_java(service.settings.pulsar.service_url) as opened:
        yield opened


def publish(send: Senders, partition: str, *kinds: str) -> Counter[tuple[str, str]]:
    """Send odd messages of these kinds, and a request for each "valid"; return the requests' expected outcomes."""
    for kind in kinds:
        if kind == "valid":
            send.raw.send(partition, valid_request())
        else:
            ODD[kind](send, partition, valid_request())
    return Counter({VALID: kinds.count("valid")})


def test_each_odd_message_ends_in_one_receipt_and_valid_requests_are_processed(
    service: Deployment, send: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_reader, "_READER_TIMEOUT_SECONDS", 1.0)  # for our own reads, not for the service's
    first, other = service.settings.topics.requests
    expected = publish(send, f"{first}-partition-0", "valid", "event_time_2_to_62", "valid")
    expected[VALID] += 1  # the event time does not change the outcome
    expected += publish(send, f"{first}-partition-1", "valid", "flagged_as_encrypted", "marker_with_a_request")
    expected += dead(Reason.ENCRYPTED)
    expected += publish(send, f"{first}-partition-2", "valid", "metadata_is_garbage", "valid", "flagged_as_encrypted")
    expected += dead(Reason.NOT_SHOWN, Reason.ENCRYPTED)
    expected += publish(send, f"{other}-partition-0", "valid", "compressed", "batch_of_fewer_than_declared", "valid")
    expected += dead(Reason.UNREADABLE)
    expected[VALID] += 5  # four compressed messages, and the only message of the batch that declares more

    output = service.console.run("run", "--until-idle")

    assert service.outcomes() == expected, output[-4000:]
    reckoning = reckon(service.settings)
    assert (reckoning.open, reckoning.wrong) == (0, [])
    # the connector fails on some of these messages
    assert ("is parked, and the other topics continue" in output) is has_connector()
    check = service.call("check")
    assert "PROBLEM" not in check


@with_connector
@pytest.mark.long
def test_a_failed_query_leaves_no_reader_on_the_broker_and_a_query_that_cannot_plan_is_stopped(
    service: Deployment, send: Senders, cluster: Cluster, tmp_path: Path
) -> None:
    first = service.settings.topics.requests[0]
    partitions = [f"{first}-partition-{number}" for number in range(2)]
    log = tmp_path / "run.log"

    def readers() -> list[str]:
        paths = [f"{partition.replace('://', '/')}/stats" for partition in partitions]
        stats = [json.loads(topics.admin(cluster, "GET", path)) for path in paths]
        return [name for answer in stats for name in answer["subscriptions"] if name.startswith("reader-")]

    with killed_at_the_end(service.start("run", log=log)) as running:
        for _ in range(3):  # each message fails the query once, while the query reads both partitions
            publish(send, partitions[0], *["valid"] * 5, "event_time_2_to_62", *["valid"] * 5)
            publish(send, partitions[1], *["valid"] * 5)
            before = service.outcomes().total()
            wait_until(lambda: service.outcomes().total() >= before + 16, running, log)  # noqa: B023
        assert "is parked, and the other topics continue" in log.read_text()
        wait_until(lambda: not readers(), running, log, seconds=60)
        wait_until(lambda: f"{first} is read again" in log.read_text(), running, log)
        before = service.outcomes().total()
        publish(send, partitions[1], "valid", "metadata_is_garbage")
        wait_until(lambda: service.outcomes().total() == before + 2, running, log)
        assert f"the broker does not return the last message of {partitions[1]}" in log.read_text()
        stop(running)


@with_connector
@pytest.mark.long
def test_a_kill_between_receipts_and_commit_of_a_batch_read_by_the_fallback_repeats_nothing(
    service: Deployment, send: Senders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, retry = service.settings.topics.requests[0], service.settings.topics.retry
    expected = publish(send, f"{first}-partition-0", "valid", "event_time_2_to_62", "valid", "flagged_as_encrypted")
    expected += dead(Reason.ENCRYPTED)
    expected[VALID] += 1
    with monkeypatch.context() as killing:
        load_hook(killing, "crash", CRASH_PIDS=tmp_path / "pid", CRASH_AT=COMMIT)
        assert service.start("run", "--until-idle", log=tmp_path / "run.log").wait(200) == -signal.SIGKILL
    assert service.outcomes() == expected
    before = service.receipts()
    # a producer with rights on RETRY can publish odd messages there, too
    expected += publish(send, f"{retry}-partition-0", "valid", "flagged_as_encrypted", "event_time_2_to_62")
    expected += dead(Reason.ENCRYPTED)
    expected[VALID] += 1

    service.run("run", "--until-idle", seconds=300)

    assert service.outcomes() == expected
    assert [row for row in service.receipts() if row in before] == before
    assert reckon(service.settings).open == 0


@pytest.mark.long
def test_transactions_and_unreadable_messages_do_not_delay_the_messages_after_them(
    transactional: Cluster, tmp_path: Path
) -> None:
    service = deployment(transactional, tmp_path)
    topics = add_request_topics(service, *(f"-{number}" for number in range(3)))
    with senders(service.settings.pulsar.service_url, transactions=True) as send:
        expected = publish(send, f"{topics[0]}-partition-0", "valid", "committed")
        expected += publish(send, f"{topics[0]}-partition-1", "valid", "aborted", "valid", "aborted")
        expected += publish(send, f"{topics[0]}-partition-2", "valid", "encrypted", "encrypted_batch", "valid")
        expected += publish(send, f"{topics[1]}-partition-0", "open_unknown_to_the_coordinator", "valid", "aborted")
        expected += publish(send, f"{topics[2]}-partition-0", "valid", "metadata_is_garbage")
        expected += publish(send, f"{topics[3]}-partition-0", "valid", "batch_of_two_thousand_million", "valid")
        expected += publish(send, f"{topics[3]}-partition-1", "negative_size_in_a_batch", "chunked", "valid")
        expected += publish(send, f"{topics[3]}-partition-2", "uncompressed_size_4_gib", "batch_all_compacted_out")
    expected += dead(*[Reason.ABORTED_TRANSACTION] * 6, Reason.ENCRYPTED, Reason.ENCRYPTED, Reason.OPEN_TRANSACTION)
    expected += dead(Reason.NOT_SHOWN, Reason.UNREADABLE, Reason.UNREADABLE, *[Reason.CHUNK] * 4, Reason.UNREADABLE)
    expected[VALID] += 4  # two of the committed transaction, and one of each batch with a wrong size

    output = service.run("run", "--until-idle", seconds=600)

    assert service.outcomes() == expected, output[-4000:]
    reckoning = reckon(service.settings)
    assert (reckoning.open, reckoning.wrong) == (0, [])
    assert service.call("backlog", "--json")
    assert "PROBLEM" not in service.call("check")


@pytest.mark.long
def test_retries_after_an_open_transaction_are_found_again_with_any_key_and_properties(
    transactional: Cluster, tmp_path: Path
) -> None:
    service = deployment(transactional, tmp_path)
    (first,), retry = add_request_topics(service), service.settings.topics.retry
    owner = new_topic("odd-key")
    topics.fill(transactional, owner, 2, ["s"])
    in_use = topics.data_ledgers(transactional, owner)[0]
    properties = [key_value("a", "\x01" * 8_000), key_value("b", "x" * 50_000)]
    with senders(service.settings.pulsar.service_url) as send:
        send.raw.send(f"{first}-partition-0", payload(owner, in_use), partition_key="\x00\ufffd")
        send.raw.send(f"{first}-partition-1", payload(owner, in_use), partition_key="k", properties=properties)
        with admin_for(service.settings) as admin:
            partitions = admin.partitions(retry) or 0
        for number in range(partitions):
            publish(send, f"{retry}-partition-{number}", "open_unknown_to_the_coordinator")

    output = service.run("run", "--until-idle", seconds=300)

    expected = dead(Reason.IN_USE, Reason.IN_USE, *[Reason.OPEN_TRANSACTION] * partitions)
    assert (partitions > 0, service.outcomes()) == (True, expected), output[-4000:]
    assert "PROBLEM" not in service.call("check")
