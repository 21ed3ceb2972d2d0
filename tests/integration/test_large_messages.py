"""Messages of many megabytes that cost their sender kilobytes become dead letters within the documented memory.

A broker may also accept less than Pulsar's default (maxMessageSize): copies are cut to fit.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pulsar import CompressionType

from streaming.adapters.pulsar.publish import client
from streaming.adapters.pulsar.readers.read import read
from streaming.clients import admin_for
from streaming.ports import StoredMessage
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.topics.setup import ensure_topics
from tests.integration.conftest import Deploy, Deployment, deployment, leak, new_topic, payload, running_cluster
from udfs.requests.request_format import MAX_REQUEST_BYTES, decode
from udfs.requests.retry import CUT_FROM

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MIB = 1024 * 1024
KINDS = (CompressionType.LZ4, CompressionType.ZLib, CompressionType.ZSTD)
BLANKS = b" " * (MAX_REQUEST_BYTES - 1_000)


def _send_compressed(service: Deployment, body: bytes, count: int, kinds: tuple[CompressionType, ...] = KINDS) -> None:
    """Send `count` messages with the same body."""
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
    with client(service.settings.pulsar) as opened:
        for number, kind in enumerate(kinds):
            producer = opened.create_producer(
                service.settings.topics.requests[0],
                compression_type=kind,
                batching_enabled=False,
                block_if_queue_full=True,
                max_pending_messages=20,
            )
            for _ in range(count // len(kinds) + (number < count % len(kinds))):
                producer.send_async(body, lambda *_: None)
            producer.flush()
            producer.close()


def _dead_letters(service: Deployment) -> list[StoredMessage]:
    settings = service.settings
    with admin_for(settings) as admin:
        return list(read(settings.pulsar, admin.last_positions(settings.topics.dead_letter)))


@pytest.mark.long
def test_two_thousand_messages_of_five_megabytes_and_valid_requests_fit_into_the_documented_memory(
    cluster: Cluster, deploy: Deploy
) -> None:
    topic = new_topic("valid")
    topics.fill(cluster, topic, 2, ["s"])
    leaked = leak(cluster, topic, 60)
    service = deploy(extra="")
    assert service.settings.spark.driver_memory == "2g"
    service.request(payload(topic, ledger_id) for ledger_id in leaked[:20])
    _send_compressed(service, bytes(5 * MIB), 1_000)
    service.request(payload(topic, ledger_id) for ledger_id in leaked[20:40])
    _send_compressed(service, bytes(5 * MIB), 1_000)
    service.request(payload(topic, ledger_id) for ledger_id in leaked[40:])
    service.run("run", "--until-idle", seconds=900)

    assert service.outcomes() == {("DELETED", "UNREFERENCED"): 60, ("DEAD_LETTER", "TOO_LARGE"): 2_000}
    assert all(len(rows) == 1 for rows in service.final().values())
    assert not ledger_list.listed_by_bookie(cluster) & set(leaked)
    letters = Counter((len(letter.payload), letter.properties[CUT_FROM]) for letter in _dead_letters(service))
    assert letters == {(MAX_REQUEST_BYTES + 1, str(5 * MIB)): 2_000}


@dataclass(frozen=True)
class Small:
    """A service whose broker accepts messages of 20 KiB, after it has processed larger messages sent compressed."""

    service: Deployment
    leaked: list[int]
    left: set[int]
    kept: bytes  # a large request for a ledger in use


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    home, here = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("service")
    with running_cluster(home, broker_settings={"maxMessageSize": str(20 * 1024)}) as cluster:
        yield _processed(cluster, here)


def _processed(cluster: Cluster, here: Path) -> Small:
    topic = new_topic("small")
    topics.fill(cluster, topic, 2, ["s"])
    leaked, listed = leak(cluster, topic, 5), topics.data_ledgers(cluster, topic)
    service = deployment(cluster, here)
    _send_compressed(service, bytes(MIB), 3)
    kept = payload(topic, listed[0]) + BLANKS
    _send_compressed(service, kept, 1, (CompressionType.ZSTD,))
    service.request(payload(topic, ledger_id) for ledger_id in leaked)
    service.console.run("run", "--until-idle")
    return Small(service, leaked, ledger_list.listed_by_bookie(cluster), kept)


@pytest.mark.long
def test_copies_fit_a_broker_with_a_small_message_size_and_delay_no_request(small: Small) -> None:
    assert small.service.outcomes() == {
        ("DELETED", "UNREFERENCED"): 5,
        ("DEAD_LETTER", "TOO_LARGE"): 3,
        ("DEAD_LETTER", "IN_USE"): 1,  # after all tries: each retry was a whole request
    }
    assert all(len(rows) == 1 for rows in small.service.final().values())
    assert not small.left & set(small.leaked)
    letters = {letter.properties[CUT_FROM]: letter.payload for letter in _dead_letters(small.service)}
    assert letters.keys() == {str(MIB), str(len(small.kept))}
    assert decode(letters[str(len(small.kept))]) == decode(small.kept)
