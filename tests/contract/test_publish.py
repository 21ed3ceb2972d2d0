"""Published copies are stored and found again; a failed publication is retried or ends the service."""

import json
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streaming.adapters.pulsar.publish import publish, publish_in_batches
from streaming.config.load import load
from streaming.config.sections import PulsarSettings
from streaming.deletion.chunks.outbox import PulsarCopies, _Publisher, refuse_outdated, sequence_id
from streaming.errors import ConfigError, FencedError, ReaperError, SafetyError, UnavailableError
from streaming.ports import Copy
from streaming.spark.java_errors import translated
from streaming.topics.sizes import require_room_for_copies
from tests.builders import data_request
from tests.contract.http_stub import CannedAnswer, http_stub
from tests.contract.publish_broker import MAX_MESSAGE_BYTES, PublishBroker
from tests.pulsar_fields import entry, key_value
from udfs import columns as c
from udfs.formats.entry import Entry, contents_of, parse_entry
from udfs.requests.request_format import decode, encode
from udfs.requests.retry import COPY_ID, CUT_FROM, LEAST_MESSAGE_BYTES, REAL_TOPIC, REASON

TOPIC = "persistent://pulsar/ledger-deletion/d-RETRY-partition-0"
THREE = [Copy(sequence_id=(1 << 20) + row, key=None, payload=b"{}", properties={}) for row in range(3)]

Opened = Callable[..., tuple[PublishBroker, PulsarSettings]]


@pytest.fixture
def opened() -> Iterator[Opened]:
    brokers = []

    def make(**options: object) -> tuple[PublishBroker, PulsarSettings]:
        broker = PublishBroker(**options)  # type: ignore[arg-type]
        brokers.append(broker)
        settings = load(None).pulsar.model_copy(update={"service_url": broker.url, "timeout_seconds": 3})
        return broker, settings

    yield make
    for broker in brokers:
        broker.close()


def test_acknowledged_copies_are_stored(opened: Opened) -> None:
    broker, settings = opened()
    assert publish(settings, TOPIC, "p-0", THREE) == 3
    assert [number for number, _ in broker.sent] == [copy.sequence_id for copy in THREE]


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        pytest.param(False, UnavailableError, id="no answer is waited for"),
        pytest.param(None, FencedError, id="another instance has taken the producer"),
    ],
)
def test_a_failed_publication_is_an_error_of_ours(
    opened: Opened, verdict: bool | None, kind: type[ReaperError]
) -> None:
    _, settings = opened(on_send=lambda number: True if number == THREE[0].sequence_id else verdict)
    with pytest.raises(kind) as caught:
        publish(settings, TOPIC, "p-0", THREE)
    as_an_executor_tells_it = RuntimeError("".join(traceback.format_exception(caught.value)))
    assert type(translated(as_an_executor_tells_it)) is kind


@pytest.mark.parametrize("is_batched", [False, True])
def test_no_copy_follows_a_lost_copy(opened: Opened, is_batched: bool) -> None:
    """The last stored copy identifies those before it: a broker that works again stores nothing after a gap."""
    began_s, stored = time.monotonic(), []

    def works_again(_number: int) -> bool:
        stored.append(time.monotonic() - began_s > 2.9)  # just before the client gives up, after 3 s
        return stored[-1]

    _broker, settings = opened(on_send=works_again)
    many = [Copy(sequence_id=number, key=None, payload=b"{}", properties={}) for number in range(1, 5_001)]
    with pytest.raises(UnavailableError, match="were not acknowledged"):
        (publish_in_batches if is_batched else publish)(settings, TOPIC, "p-0", many)
    time.sleep(0.5)
    assert not any(stored)


def test_no_copy_is_sent_after_a_copy_without_an_answer(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.adapters.pulsar.publish._WINDOW", 1)
    broker, settings = opened(on_send=lambda _number: False)
    with pytest.raises(UnavailableError, match=r"1 of 1 messages .* were not acknowledged"):
        publish(settings, TOPIC, "p-0", THREE[:2])
    assert [number for number, _ in broker.sent] == [THREE[0].sequence_id]


def test_a_broker_that_answers_slowly_is_waited_for_while_it_answers(opened: Opened) -> None:
    def answers_slowly(_number: int) -> bool:
        time.sleep(1)
        return True

    broker, settings = opened(on_send=answers_slowly)
    assert publish(settings, TOPIC, "p-0", THREE * 2) == 6  # takes twice the timeout
    assert len(broker.sent) == 6


@pytest.mark.parametrize("is_batched", [False, True])
def test_each_copy_is_a_message_in_its_order(opened: Opened, is_batched: bool) -> None:
    broker, settings = opened()
    copies = [
        Copy(sequence_id=None, key=f"k{number % 7}".encode(), payload=b"%d" % number, properties={"N": f"{number}"})
        for number in range(3_000)
    ]
    send = publish_in_batches if is_batched else publish
    assert send(settings, TOPIC, "p-0", copies) == len(copies)
    stored = [content for _, data in broker.sent for _, content in contents_of(parse_entry(data))]
    assert [(content.key, content.payload, content.properties) for content in stored] == [
        (copy.key, copy.payload, copy.properties) for copy in copies
    ]
    assert (len(broker.sent) < len(copies) / 10) is is_batched


def test_copies_of_chunks_without_receipts_stop_the_start(opened: Opened) -> None:
    broker, settings = opened(last_sequence_id=sequence_id(7, 3))
    targets = {TOPIC.removesuffix("-partition-0"): 2, "persistent://pulsar/ledger-deletion/d-DLQ": 0}
    copies = PulsarCopies(load(None).model_copy(update={"pulsar": settings}), targets)
    remembered = copies.remembered("T")
    assert set(remembered) == {TOPIC, TOPIC.replace("-0", "-1"), "persistent://pulsar/ledger-deletion/d-DLQ"}
    refuse_outdated(remembered, 7)
    assert broker.producers == [f"ledger-reaper-main-T-{number}" for number in (0, 1, -1)]
    with pytest.raises(SafetyError, match=r"end with chunk 6, and \S+-partition-0 has copies of chunk 7.*Restore"):
        refuse_outdated(remembered, 6)


REQUEST = data_request(5)
RETRIED = encode(REQUEST)[:-1] + b',"ignored":"' + b"x" * 60_000 + b'"}'
LARGE: dict[str, tuple[bytes, bytes, dict[str, str]]] = {
    "a payload": (b"x" * 65_537, b"k", {REASON: "TOO_LARGE: too large", CUT_FROM: "5000000"}),
    "a request with a field that we do not read": (RETRIED, b"k", {REAL_TOPIC: TOPIC}),
    "properties": (b"{}", b"k", {f"{n}": "" for n in range(9_000)} | {REASON: "NOT_JSON"}),
    "a key that is no text": (b"{}", b"\xff" * 7_000, {"a": "b"}),
    "what we write ourselves": (b"{}", b"k", {REASON: "\U0001f980" * 1_000, REAL_TOPIC: "t" * 4_096, "a": "b" * 9_000}),
}


def _send(opened: Opened, takes_bytes: int, limits: dict[str, int] | None = None) -> dict[str, Entry]:
    """Send a copy of each kind to a broker with this limit, and return what it has stored."""
    broker, settings = opened(takes_bytes=takes_bytes)
    row = {c.TARGET: TOPIC.removesuffix("-partition-0"), c.TARGET_PARTITION: 0, c.CHUNK: 1, c.DELAY_MS: 0}
    rows: list[Any] = [
        row | {c.PAYLOAD: payload, c.MESSAGE_KEY: key, c.MESSAGE_PROPERTIES: properties}
        for payload, key, properties in LARGE.values()
    ]
    _Publisher(settings=settings, table_id="T", producer_prefix="p", stored={}, limits=limits or {})(rows)
    assert [number for number, _ in broker.sent] == [sequence_id(1, row) for row in range(len(LARGE))]
    assert max(len(data) for _, data in broker.sent) <= min([takes_bytes, *(limits or {}).values()])
    return {kind: parse_entry(data) for kind, (_, data) in zip(LARGE, broker.sent, strict=True)}


@pytest.mark.parametrize(
    ("takes_bytes", "limits"),
    [
        pytest.param(LEAST_MESSAGE_BYTES, {}, id="the broker"),
        pytest.param(MAX_MESSAGE_BYTES, {TOPIC.removesuffix("-partition-0"): LEAST_MESSAGE_BYTES}, id="the topic"),
    ],
)
def test_a_copy_is_reduced_to_a_smaller_limit(opened: Opened, takes_bytes: int, limits: dict[str, int]) -> None:
    stored = _send(opened, takes_bytes, limits)
    assert decode(stored["a request with a field that we do not read"].payload) == REQUEST
    assert stored["a request with a field that we do not read"].properties[REAL_TOPIC] == TOPIC
    assert stored["a payload"].properties[CUT_FROM] == "5000000"
    assert stored["a payload"].payload == b"x" * len(stored["a payload"].payload)
    assert len(stored["a payload"].payload) > LEAST_MESSAGE_BYTES // 2
    assert stored["properties"].properties.keys() == {REASON, "COPY_ID"}
    assert stored["what we write ourselves"].properties[REAL_TOPIC] == "t" * 4_096


def test_a_copy_within_the_limit_is_unchanged(opened: Opened) -> None:
    stored = _send(opened, MAX_MESSAGE_BYTES)
    for kind, (payload, _, properties) in LARGE.items():
        assert (stored[kind].payload, stored[kind].properties.items() >= properties.items()) == (payload, True), kind


@pytest.mark.parametrize(("takes_bytes", "is_enough"), [(LEAST_MESSAGE_BYTES, True), (LEAST_MESSAGE_BYTES - 1, False)])
def test_a_limit_too_small_for_any_copy_stops_the_start(opened: Opened, takes_bytes: int, is_enough: bool) -> None:
    _, settings = opened(takes_bytes=takes_bytes)
    if is_enough:
        assert require_room_for_copies(settings, TOPIC) == takes_bytes
    else:
        with pytest.raises(ConfigError, match=r"accepts messages of at most 16383 bytes .* raise maxMessageSize"):
            require_room_for_copies(settings, TOPIC)


def test_each_partitions_producer_sends_its_rows_with_their_indexes(opened: Opened) -> None:
    broker, settings = opened()
    retry, dlq = TOPIC.removesuffix("-partition-0"), "persistent://pulsar/ledger-deletion/d-DLQ"
    nothing = dict.fromkeys((c.PAYLOAD, c.MESSAGE_KEY, c.MESSAGE_PROPERTIES, c.DELAY_MS))
    rows = [
        {c.TARGET: target, c.TARGET_PARTITION: number, c.CHUNK: 4} | nothing
        for target, number in [(dlq, -1), (retry, 0), (retry, 0), (retry, 1), (retry, 1)]
    ]
    publisher = _Publisher(
        settings=settings, table_id="T", producer_prefix="p", stored={f"{retry}-partition-1": sequence_id(4, 0)}
    )
    publisher(rows)  # type: ignore[arg-type]
    assert broker.producers == ["p--1", "p-0", "p-1"]
    sent = [sequence_id(4, 0), sequence_id(4, 0), sequence_id(4, 1), sequence_id(4, 1)]
    assert [number for number, _ in broker.sent] == sent


def _copy(*ids: str) -> bytes:
    return entry(b"{}", properties=[key_value(COPY_ID, copy_id) for copy_id in ids])


def test_if_a_broker_forgot_the_producer_the_newest_stored_copy_is_found_by_time(opened: Opened) -> None:
    ours = TOPIC
    anothers = TOPIC.replace("-0", "-1")
    entries = {
        ours: {
            (5, 0): _copy("T/9"),  # from before that time
            (5, 1): _copy("T/7"),
            (5, 2): _copy("T/6"),
            (5, 3): _copy("another/50"),
            (5, 4): _copy(),
        },
        anothers: {(5, 1): _copy("another/8"), (5, 2): _copy("T/nonsense")},
    }
    _, settings = opened(entries=entries)
    with http_stub() as admin:
        for topic, partition in entries.items():
            path = f"/admin/v2/{topic.replace('://', '/')}"
            admin.answer_with(f"{path}/messageid/1234", _json(ledgerId=5, entryId=1))
            admin.answer_with(f"{path}/partitions", _json(partitions=0))
            admin.answer_with(f"{path}/lastMessageId", _json(ledgerId=5, entryId=max(partition)[1]))
            # the open ledger's entries are counted in a separate field
            stats = {"ledgers": [{"ledgerId": 5, "entries": 0}], "currentLedgerEntries": max(partition)[1] + 1}
            admin.answer_with(f"{path}/internalStats", _json(**stats, cursors={}, pendingAddEntriesCount=0))
        with_admin = settings.model_copy(update={"admin_url": admin.url})
        copies = PulsarCopies(load(None).model_copy(update={"pulsar": with_admin}), {})
        assert copies.stored([ours, anothers], "T", 1234) == {ours: 7}


def _json(**fields: Any) -> CannedAnswer:
    return CannedAnswer(200, json.dumps(fields).encode())
