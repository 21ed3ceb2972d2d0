"""Nobody can stop it: whatever is published, on the real cluster, each message ends in exactly one receipt.

Beside the odd messages there are honest requests, in the same topics. They are done, and the service goes on.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pulsar
import pytest

from streaming.clients import admin_for
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.reckoning import reckon
from tests.integration.conftest import (
    Deploy,
    Deployment,
    deployment,
    killed_at_the_end,
    new_topic,
    payload,
    read_further,
    stop,
    wait_until,
)
from tests.integration.odd_messages import ODD, Senders, senders
from tests.integration.raw_producer import RawProducer
from tests.pulsar_fields import key_value
from udfs.records import Reason

pytestmark = [pytest.mark.cluster]

NOWHERE = "public/default/persistent/nowhere"
HOOK = Path(__file__).parent.parent / "data" / "crash"
HONEST = ("ALREADY_GONE", "NOT_FOUND")
_ids = iter(range(6 * 10**15, 7 * 10**15))  # no cluster gets that far


def honest() -> bytes:
    return payload(NOWHERE, next(_ids))


def dead(*reasons: Reason) -> Counter[tuple[str, str]]:
    return Counter(("DEAD_LETTER", str(reason)) for reason in reasons)


@pytest.fixture
def service(deploy: Deploy) -> Deployment:
    """Two request topics with their partitions, and nothing in them."""
    made = deploy()
    read_further(made, "-other")
    return made


@pytest.fixture
def send(service: Deployment) -> Iterator[Senders]:
    url = service.settings.pulsar.service_url
    opened = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        with RawProducer(url) as raw:
            yield Senders(opened, raw, cast("Any", None))
    finally:
        opened.close()


def publish(send: Senders, partition: str, *what: str) -> Counter[tuple[str, str]]:
    """Send these kinds of odd messages; "honest" is an ordinary request. Returns how the honest ones are to end."""
    for kind in what:
        if kind == "honest":
            send.raw.send(partition, honest())
        else:
            ODD[kind](send, partition, honest())
    return Counter({HONEST: what.count("honest")})


def test_whatever_is_published_each_message_ends_in_one_receipt_and_honest_requests_are_done(
    service: Deployment, send: Senders
) -> None:
    first, other = service.settings.topics.requests
    expected = publish(send, f"{first}-partition-0", "honest", "event_time_2_to_62", "honest")
    expected[HONEST] += 1  # once it is read, an event time changes nothing
    expected += publish(send, f"{first}-partition-1", "honest", "said_to_be_encrypted", "marker_with_a_request_in_it")
    expected += dead(Reason.ENCRYPTED)
    expected += publish(send, f"{first}-partition-2", "honest", "metadata_is_garbage", "honest", "said_to_be_encrypted")
    expected += dead(Reason.NOT_SHOWN, Reason.ENCRYPTED)
    expected += publish(send, f"{other}-partition-0", "honest", "compressed", "batch_of_fewer_than_it_says", "honest")
    expected += dead(Reason.UNREADABLE)
    expected[HONEST] += 5  # four compressed ones, and the one message that the lying batch has

    said = service.run("run", "--until-idle", seconds=300)

    assert service.outcomes() == expected, said[-4000:]
    found = reckon(service.settings)
    assert (found.open, found.wrong) == (0, [])
    assert "is parked, and the other topics go on" in said
    checked = service.call("check")
    assert "PROBLEM" not in checked


def test_a_query_that_failed_leaves_no_reader_behind_and_one_that_cannot_plan_is_stopped(
    service: Deployment, send: Senders, cluster: Cluster, tmp_path: Path
) -> None:
    first = service.settings.topics.requests[0]
    partitions = [f"{first}-partition-{number}" for number in range(2)]
    log = tmp_path / "run.log"

    def readers() -> list[str]:
        stats = (json.loads(topics.admin(cluster, "GET", f"{each.replace('://', '/')}/stats")) for each in partitions)
        return [name for each in stats for name in each["subscriptions"] if name.startswith("reader-")]

    with killed_at_the_end(service.start("run", log=log)) as running:
        for _ in range(3):  # each fails the query once, while it reads both partitions
            publish(send, partitions[0], *["honest"] * 5, "event_time_2_to_62", *["honest"] * 5)
            publish(send, partitions[1], *["honest"] * 5)
            before = service.outcomes().total()
            wait_until(lambda: service.outcomes().total() >= before + 16, running, log)  # noqa: B023
        assert "is parked, and the other topics go on" in log.read_text()
        wait_until(lambda: not readers(), running, log, seconds=60)
        wait_until(lambda: f"{first} is read again" in log.read_text(), running, log)
        before = service.outcomes().total()
        publish(send, partitions[1], "honest", "metadata_is_garbage")
        wait_until(lambda: service.outcomes().total() == before + 2, running, log)
        assert f"the broker does not return the last message of {partitions[1]}" in log.read_text()
        stop(running)


@pytest.mark.long
def test_a_kill_between_the_receipts_and_the_commit_of_a_batch_that_the_fallback_read_repeats_nothing(
    service: Deployment, send: Senders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, retry = service.settings.topics.requests[0], service.settings.topics.retry
    expected = publish(send, f"{first}-partition-0", "honest", "event_time_2_to_62", "honest", "said_to_be_encrypted")
    expected += dead(Reason.ENCRYPTED)
    expected[HONEST] += 1
    with monkeypatch.context() as killing:
        killing.setenv("PYTHONPATH", os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")]))
        killing.setenv("CRASH_PIDS", str(tmp_path / "pid"))
        killing.setenv("CRASH_AT", "before:streaming.queries.batches:commit")
        assert service.start("run", "--until-idle", log=tmp_path / "run.log").wait(200) == -signal.SIGKILL
    assert service.outcomes() == expected
    before = service.receipts()
    # RETRY is a topic like any other to whoever may publish there
    expected += publish(send, f"{retry}-partition-0", "honest", "said_to_be_encrypted", "event_time_2_to_62")
    expected += dead(Reason.ENCRYPTED)
    expected[HONEST] += 1

    service.run("run", "--until-idle", seconds=300)

    assert service.outcomes() == expected
    assert [row for row in service.receipts() if row in before] == before
    assert reckon(service.settings).open == 0


@pytest.mark.long
def test_transactions_and_what_is_worst_to_read_keep_nothing_behind_them_waiting(
    transactional: Cluster, tmp_path: Path
) -> None:
    service = deployment(transactional, tmp_path)
    topics = read_further(service, *(f"-{number}" for number in range(3)))
    with senders(service.settings.pulsar.service_url, transactions=True) as send:
        expected = publish(send, f"{topics[0]}-partition-0", "honest", "committed")
        expected += publish(send, f"{topics[0]}-partition-1", "honest", "aborted", "honest", "aborted")
        expected += publish(send, f"{topics[0]}-partition-2", "honest", "encrypted", "encrypted_batch", "honest")
        expected += publish(send, f"{topics[1]}-partition-0", "open_and_no_coordinator_knows", "honest", "aborted")
        expected += publish(send, f"{topics[2]}-partition-0", "honest", "metadata_is_garbage")
        expected += publish(send, f"{topics[3]}-partition-0", "honest", "batch_of_two_thousand_million", "honest")
        expected += publish(send, f"{topics[3]}-partition-1", "negative_size_in_a_batch", "chunked", "honest")
        expected += publish(send, f"{topics[3]}-partition-2", "uncompressed_size_4_gib", "batch_all_compacted_out")
    expected += dead(*[Reason.ABORTED_TRANSACTION] * 6, Reason.ENCRYPTED, Reason.ENCRYPTED, Reason.OPEN_TRANSACTION)
    expected += dead(Reason.NOT_SHOWN, Reason.UNREADABLE, Reason.UNREADABLE, *[Reason.CHUNK] * 4, Reason.UNREADABLE)
    expected[HONEST] += 4  # two of the committed transaction, and one of each batch that lies

    said = service.run("run", "--until-idle", seconds=600)

    assert service.outcomes() == expected, said[-4000:]
    found = reckon(service.settings)
    assert (found.open, found.wrong) == (0, [])
    assert service.call("backlog", "--json")
    assert "PROBLEM" not in service.call("check")


@pytest.mark.long
def test_what_is_put_off_is_found_again_behind_an_open_transaction_whatever_it_says_of_itself(
    transactional: Cluster, tmp_path: Path
) -> None:
    service = deployment(transactional, tmp_path)
    (first,), retry = read_further(service), service.settings.topics.retry
    owner = new_topic("odd-key")
    topics.fill(transactional, owner, 2, ["s"])
    in_use = topics.data_ledgers(transactional, owner)[0]
    about = [key_value("a", "\x01" * 8_000), key_value("b", "x" * 50_000)]
    with senders(service.settings.pulsar.service_url) as send:
        send.raw.send(f"{first}-partition-0", payload(owner, in_use), partition_key="\x00\ufffd")
        send.raw.send(f"{first}-partition-1", payload(owner, in_use), partition_key="k", properties=about)
        with admin_for(service.settings) as admin:
            partitions = admin.partitions(retry) or 0
        for number in range(partitions):
            publish(send, f"{retry}-partition-{number}", "open_and_no_coordinator_knows")

    said = service.run("run", "--until-idle", seconds=300)

    expected = dead(Reason.IN_USE, Reason.IN_USE, *[Reason.OPEN_TRANSACTION] * partitions)
    assert (partitions > 0, service.outcomes()) == (True, expected), said[-4000:]
    assert "PROBLEM" not in service.call("check")
