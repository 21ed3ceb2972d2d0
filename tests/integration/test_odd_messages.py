"""The fallback reads every odd kind of message from a real broker: each message once, with its reason.

The broker has transactions enabled, so this module uses a cluster of its own.
"""

import resource
import time
import uuid
from collections.abc import Iterator

import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.adapters.pulsar.readers.entries import fallback_entries
from streaming.errors import UnavailableError
from streaming.sandbox import cluster_faults
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from tests.integration.conftest import payload
from tests.integration.odd_messages import NEEDS_TRANSACTIONS, ODD, Senders, senders
from tests.pulsar_settings import pulsar_settings
from udfs.entry_ranges import Range, spans_of
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.undelivered import Undeliverable, UndeliveredMessage

pytestmark = [pytest.mark.cluster, pytest.mark.long]

REQUEST = payload("public/default/persistent/nowhere", 4 * 10**15)
EVERYTHING = (1 << 62, 1 << 62)
MIB = 1 << 20

SENT = None  # the message is processed like any other
ENCRYPTED, CHUNK, UNREADABLE = Undeliverable.ENCRYPTED, Undeliverable.CHUNK, Undeliverable.UNREADABLE
ABORTED, OPEN, NOT_SHOWN = Undeliverable.ABORTED_TRANSACTION, Undeliverable.OPEN_TRANSACTION, Undeliverable.NOT_SHOWN

# the messages that are read for each kind; for other kinds, one message that is processed like any other
EXPECTED: dict[str, list[Undeliverable | None]] = {
    "event_time_of_one_message_of_a_batch": [SENT] * 3,
    "batch_with_nulls": [SENT] * 3,
    "batch_of_nulls": [SENT] * 2,
    "compacted_out": [SENT] * 2,
    "batch_all_compacted_out": [],
    "key_flagged_as_base64_in_a_batch": [SENT] * 2,
    "batch": [SENT] * 10,
    "compressed": [SENT] * 4,
    "compressed_batches": [SENT] * 12,
    "larger_once_decompressed": [UNREADABLE],
    "flagged_as_compressed": [UNREADABLE],
    "uncompressed_size_too_small": [UNREADABLE],
    "uncompressed_size_1_gib": [UNREADABLE],
    "uncompressed_size_4_gib": [UNREADABLE],
    "batch_of_fewer_than_declared": [SENT, UNREADABLE],
    "batch_of_more_than_declared": [SENT] * 2,
    "no_batch_flagged_as_batch": [UNREADABLE],
    "batch_of_zero": [UNREADABLE],
    "batch_of_zero_that_claims_to_be_compressed": [UNREADABLE],
    "batch_of_minus_one": [UNREADABLE],
    "batch_of_two_thousand_million": [SENT, UNREADABLE],
    "negative_size_in_a_batch": [SENT, UNREADABLE],
    "encrypted": [ENCRYPTED],
    "encrypted_batch": [ENCRYPTED],
    "encrypted_and_compressed": [ENCRYPTED],
    "flagged_as_encrypted": [ENCRYPTED],
    "metadata_is_garbage": [NOT_SHOWN],
    "metadata_without_required_fields": [NOT_SHOWN],
    "metadata_that_brokers_do_not_answer_for": [NOT_SHOWN],
    "metadata_is_empty": [NOT_SHOWN],
    "chunked": [CHUNK] * 4,
    "chunks_without_an_end": [CHUNK] * 2,
    "first_chunk_without_an_end": [CHUNK],
    "last_chunk_alone": [CHUNK],
    "chunk_of_two_thousand_million": [CHUNK],
    "marker_of_a_replicated_subscription": [],
    "marker_with_a_request": [],
    "unknown_marker": [],
    "marker_of_an_unknown_commit": [],
    "committed": [SENT] * 2,
    "aborted": [ABORTED] * 2,
    "open_transaction": [OPEN],
    "open_for_seconds": [OPEN],
    "open_unknown_to_the_coordinator": [OPEN],
}

# a topic may have all of these; it can't have several schemas
AFTER_OTHERS = sorted(kind for kind in ODD.keys() - NEEDS_TRANSACTIONS if not kind.startswith("schema_"))


@pytest.fixture(scope="module")
def send(transactional: Cluster) -> Iterator[Senders]:
    with senders(transactional.addresses.pulsar, transactions=True) as opened:
        yield opened


def _read(cluster: Cluster, topic: str) -> list[UndeliveredMessage]:
    return [message for _position, message in _read_positions(cluster, topic)]


def _read_positions(cluster: Cluster, topic: str) -> list[tuple[Position, UndeliveredMessage]]:
    addresses = cluster.addresses
    settings = pulsar_settings(
        service_url=addresses.pulsar,
        admin_url=addresses.admin,
        timeout_seconds=30,
    )
    with PulsarAdmin(PulsarAdminSettings(admin_url=addresses.admin)) as admin:
        spans = list(spans_of(admin.internal_stats(topic).ledgers, Range(BEFORE_ALL, EVERYTHING)))
        return list(fallback_entries(settings, admin, topic, spans))


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("is_last", [False, True], ids=["in between", "last"])
def test_the_fallback_finds_every_odd_message_and_its_neighbours(
    transactional: Cluster, send: Senders, kind: str, is_last: bool
) -> None:
    topic = f"persistent://public/default/{kind}-{uuid.uuid4().hex[:8]}"
    send.raw.send(topic, REQUEST)
    ODD[kind](send, topic, REQUEST)
    if not is_last:
        send.raw.send(topic, REQUEST)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, *odd = _read(transactional, topic)
    taken_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024

    ordinary = [(first.why, first.content.payload)]
    if not is_last:
        last = odd.pop()
        ordinary.append((last.why, last.content.payload))
    assert ordinary == [(None, REQUEST)] * len(ordinary)
    assert [message.why for message in odd] == EXPECTED.get(kind, [SENT])
    assert taken_bytes < 64 * MIB


@pytest.mark.timeout(900)
def test_every_entry_after_an_open_transaction_has_messages_unless_it_has_none_before(
    transactional: Cluster, send: Senders
) -> None:
    """No reader gets these entries, so their messages are read from the admin API, which returns less of them."""
    topic = f"persistent://public/default/opened-{uuid.uuid4().hex[:8]}"
    ODD["open_unknown_to_the_coordinator"](send, topic, REQUEST)
    with PulsarAdmin(PulsarAdminSettings(admin_url=transactional.addresses.admin)) as admin:
        admin.ensure_subscription(topic, "keeps-its-ledgers")
        kinds: dict[Position, str] = {}
        for kind in AFTER_OTHERS:
            before = admin.internal_stats(topic).last
            ODD[kind](send, topic, REQUEST)
            for span in spans_of(admin.internal_stats(topic).ledgers, Range(before, EVERYTHING)):
                kinds |= {(span.ledger, entry): kind for entry in range(span.first, span.last + 1)}
    read = {position for position, _message in _read_positions(transactional, topic)}
    without = {kind for position, kind in kinds.items() if position not in read}
    assert without == {kind for kind in AFTER_OTHERS if EXPECTED.get(kind, [SENT]) == []}


def test_no_entry_is_skipped_while_the_bookies_are_down(transactional: Cluster, send: Senders) -> None:
    topic = f"persistent://public/default/bookies-{uuid.uuid4().hex[:8]}"
    for _ in range(3):
        send.raw.send(topic, REQUEST)
    ODD["open_unknown_to_the_coordinator"](send, topic, REQUEST)
    for _ in range(3):
        send.raw.send(topic, REQUEST)
    ODD["metadata_is_garbage"](send, topic, REQUEST)
    alone = f"{topic}-alone"  # no other entry of its partitions shows whether the bookie answers
    send.raw.send(alone, REQUEST)
    time.sleep(5)  # until the broker's cache is empty
    with cluster_faults.paused(transactional, Part.BOOKIE):
        for each in (topic, alone):
            with pytest.raises(UnavailableError):
                _read(transactional, each)
    cluster_faults.kill(transactional, Part.BOOKIE)
    try:
        for each in (topic, alone):
            with pytest.raises(UnavailableError):
                _read(transactional, each)
    finally:
        cluster_faults.restart(transactional, Part.BOOKIE)
    assert [message.why for message in _read(transactional, alone)] == [SENT]
    reasons = [message.why for message in _read(transactional, topic)]
    assert reasons == [SENT] * 3 + [OPEN] + [SENT] * 3 + [NOT_SHOWN]
